"""Maintain the webhooks of a real API server: certificate Secret, serving certificate and configurations.

Every replica runs this. They share the Secret: the first creates the certificates and the others use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime

from herder.api.capi.kinds import SECRET
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import AlreadyExists, Conflict, NotFound, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.gateway.webhooks import rotation
from herder.gateway.webhooks.configurations import CLUSTER_API, Configuration, WebhookAddress, rendered
from herder.gateway.webhooks.rotation import Certificates
from herder.gateway.webhooks.server import Webhooks

log = get_logger(__name__)

SECRET_NAME = "herder-webhook-certificates"
MANAGER = "herder-webhooks"
_PAUSE_SECONDS = 2.0  # minimum interval between two passes
_BLIND_SECONDS = 30.0  # if the watch fails
_LONGEST_WAIT_SECONDS = 3600.0


async def keep(
    client: Client,
    webhooks: Webhooks,
    address: WebhookAddress,
    configurations: Sequence[Configuration] = CLUSTER_API,
    *,
    clock: Callable[[], datetime],
    namespace: str = "herder-system",
) -> None:
    """Run until canceled. Failures are retried; existing configurations stay in force."""
    while True:
        try:
            until, seen = await _reconcile_once(client, webhooks, address, configurations, clock(), namespace)
            await _wait_for_change(client, seen, seconds=(until - clock()).total_seconds())
        except (StatusError, OSError, TimeoutError) as error:
            log.warning("webhooks are not up to date", error=str(error))
        await asyncio.sleep(_PAUSE_SECONDS)


async def install(
    client: Client,
    webhooks: Webhooks,
    address: WebhookAddress,
    configurations: Sequence[Configuration] = CLUSTER_API,
    *,
    clock: Callable[[], datetime],
    namespace: str = "herder-system",
) -> None:
    """Reconcile once: when it returns, the configurations exist and the server can answer."""
    await _reconcile_once(client, webhooks, address, configurations, clock(), namespace)


async def remove(client: Client, configurations: Sequence[Configuration] = CLUSTER_API) -> None:
    """Delete the configurations."""
    for configuration in configurations:
        with suppress(NotFound):
            await client.delete(configuration.kind.resource, configuration.name)


async def _reconcile_once(
    client: Client,
    webhooks: Webhooks,
    address: WebhookAddress,
    configurations: Sequence[Configuration],
    now: datetime,
    namespace: str,
) -> tuple[datetime, list[tuple[Kind, Object]]]:
    """Update everything; returns when to do so again, and the written objects."""
    secret, current = await _ensure_certificates(client, address.names, now, namespace)
    webhooks.set_certificate(current.serving.certificate_pem, current.serving.key_pem)
    seen = [(SECRET, secret)]
    for configuration in configurations:
        kind, wanted = configuration.kind, rendered(configuration, address, current.bundle)
        seen.append((kind, await client.apply(kind.resource, wanted, field_manager=MANAGER)))
    return rotation.next_rotation(current), seen


# --- Secret ---------------------------------------------------------------------------------------------------------


async def _ensure_certificates(
    client: Client, names: tuple[str, ...], now: datetime, namespace: str
) -> tuple[Object, Certificates]:
    """The Secret and its certificates, created or renewed unless another replica was faster."""
    while True:
        secret = await _find(client, namespace)
        current = _readable(secret)
        wanted = rotation.generate(names, now) if current is None else rotation.rotate(current, names, now)
        if secret is not None and wanted is current:
            return secret, wanted
        try:
            return await _write(client, secret, wanted, namespace), wanted
        except (AlreadyExists, Conflict):
            continue


async def _find(client: Client, namespace: str) -> Object | None:
    try:
        return await client.get(SECRET.resource, SECRET_NAME, namespace=namespace)
    except NotFound:
        return None


def _readable(secret: Object | None) -> Certificates | None:
    if secret is None:
        return None
    try:
        return rotation.from_data(secret.get("data") or {})
    except ValueError as error:
        log.warning("webhook certificates are invalid; regenerating them", secret=SECRET_NAME, problem=str(error))
        return None


async def _write(client: Client, secret: Object | None, wanted: Certificates, namespace: str) -> Object:
    data = rotation.to_data(wanted)
    if secret is not None:
        # resourceVersion guards against concurrent updates
        return await client.update(SECRET.resource, {**secret, "data": data})
    meta = {"name": SECRET_NAME, "namespace": namespace}
    created = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": data}
    return await client.create(SECRET.resource, created, namespace=namespace)


# --- watches --------------------------------------------------------------------------------------------------------


async def _wait_for_change(client: Client, seen: list[tuple[Kind, Object]], *, seconds: float) -> None:
    """Wait until one of the objects changes or the time has passed."""
    watches = [asyncio.ensure_future(_change(client, kind, obj)) for kind, obj in seen]
    try:
        timeout = min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS)
        await asyncio.wait(watches, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _change(client: Client, kind: Kind, obj: Object) -> None:
    """Wait until the object changes. A watch that ends or fails counts as a change."""
    meta = obj["metadata"]
    watch = client.watch(
        kind.resource,
        namespace=meta.get("namespace", ""),
        fields=f"metadata.name={meta['name']}",
        resource_version=meta["resourceVersion"],
    )
    try:
        async with aclosing(watch) as events:
            async for event in events:
                if event.type != "BOOKMARK":
                    return
    except (StatusError, OSError, TimeoutError):
        await asyncio.sleep(_BLIND_SECONDS)
