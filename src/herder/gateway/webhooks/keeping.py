"""Keeps a real API server asking us: the certificates in their Secret, what is served, and the configurations.

Every replica does so. They share the Secret, so whoever comes first makes the certificates and the others use them.
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
from herder.gateway.webhooks.configurations import CLUSTER_API, Configuration, Place, rendered
from herder.gateway.webhooks.rotation import Certificates
from herder.gateway.webhooks.server import Webhooks

log = get_logger(__name__)

SECRET_NAME = "herder-webhook-certificates"
MANAGER = "herder-webhooks"
_PAUSE_SECONDS = 2.0  # between two rounds, whatever happens
_BLIND_SECONDS = 30.0  # where nothing can be watched
_LONGEST_WAIT_SECONDS = 3600.0


async def keep(
    client: Client,
    webhooks: Webhooks,
    place: Place,
    configurations: Sequence[Configuration] = CLUSTER_API,
    *,
    clock: Callable[[], datetime],
    namespace: str = "herder-system",
) -> None:
    """Until cancelled. Something that fails is tried again: what is in force meanwhile stays in force."""
    while True:
        try:
            until, seen = await _round(client, webhooks, place, configurations, clock(), namespace)
            await _news(client, seen, seconds=(until - clock()).total_seconds())
        except (StatusError, OSError, TimeoutError) as error:
            log.warning("webhooks are not up to date", error=str(error))
        await asyncio.sleep(_PAUSE_SECONDS)


async def install(
    client: Client,
    webhooks: Webhooks,
    place: Place,
    configurations: Sequence[Configuration] = CLUSTER_API,
    *,
    clock: Callable[[], datetime],
    namespace: str = "herder-system",
) -> None:
    """One round of `keep`: when it returns, the configurations are there and the server can answer."""
    await _round(client, webhooks, place, configurations, clock(), namespace)


async def remove(client: Client, configurations: Sequence[Configuration] = CLUSTER_API) -> None:
    """Nobody is to ask us any more."""
    for configuration in configurations:
        with suppress(NotFound):
            await client.delete(configuration.kind.resource, configuration.name)


async def _round(
    client: Client,
    webhooks: Webhooks,
    place: Place,
    configurations: Sequence[Configuration],
    now: datetime,
    namespace: str,
) -> tuple[datetime, list[tuple[Kind, Object]]]:
    """Bring everything up to date; when to do so again, and the objects as they were left."""
    secret, kept = await _settled(client, place.names, now, namespace)
    webhooks.show(kept.serving.certificate_pem, kept.serving.key_pem)
    seen = [(SECRET, secret)]
    for configuration in configurations:
        kind, wanted = configuration.kind, rendered(configuration, place, kept.bundle)
        seen.append((kind, await client.apply(kind.resource, wanted, field_manager=MANAGER)))
    return rotation.due(kept), seen


# --- the Secret -------------------------------------------------------------------------------------------------


async def _settled(
    client: Client, names: tuple[str, ...], now: datetime, namespace: str
) -> tuple[Object, Certificates]:
    """The Secret and what is in it, made or renewed by us unless another replica was faster."""
    while True:
        secret = await _find(client, namespace)
        kept = _readable(secret)
        wanted = rotation.made(names, now) if kept is None else rotation.stepped(kept, names, now)
        if secret is not None and wanted is kept:
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
        log.warning("webhook certificates cannot be used and are made anew", secret=SECRET_NAME, problem=str(error))
        return None


async def _write(client: Client, secret: Object | None, wanted: Certificates, namespace: str) -> Object:
    data = rotation.to_data(wanted)
    if secret is not None:
        return await client.update(SECRET.resource, {**secret, "data": data})  # its revision locks it
    meta = {"name": SECRET_NAME, "namespace": namespace}
    created = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": data}
    return await client.create(SECRET.resource, created, namespace=namespace)


# --- waiting ----------------------------------------------------------------------------------------------------


async def _news(client: Client, seen: list[tuple[Kind, Object]], *, seconds: float) -> None:
    """Until one of the objects changes, or that much time has passed."""
    watches = [asyncio.ensure_future(_change(client, kind, obj)) for kind, obj in seen]
    try:
        timeout = min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS)
        await asyncio.wait(watches, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _change(client: Client, kind: Kind, obj: Object) -> None:
    """Until the object is not what we left. A watch that ends or fails counts as news: the next round will tell."""
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
