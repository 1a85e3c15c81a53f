"""Detect another Cluster API core on the cluster, at startup and while ours runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from herder.api.capi.core import (
    CLUSTER_CRD_NAME,
    CORE_LABEL,
    CRD,
    DEPLOYMENT,
    LEASE,
    LEASE_NAME,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    Evidence,
    Mode,
    Verdict,
    decide,
)
from herder.api.capi.inventory import INSIDE, PROVIDERS, core_provider, in_memory_providers, is_ours
from herder.api.capi.names import PROVIDER
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change
from herder.engine.control.informer import Informer
from herder.engine.logs import get_logger
from herder.engine.meta.errors import Forbidden, NotFound, StatusError
from herder.engine.meta.kinds import Kind, Object

log = get_logger(__name__)

PACE_SECONDS = 0.5
"""Debounce: an installer writes many objects, and detection runs when it pauses."""


class Source(NamedTuple):
    """A kind of object that may be evidence."""

    kind: Kind
    labels: str = ""
    fields: str = ""


WEBHOOKS = (Source(VALIDATING_WEBHOOKS), Source(MUTATING_WEBHOOKS))
INVENTORY = Source(PROVIDERS)
DEPLOYMENTS = Source(DEPLOYMENT, labels=f"{PROVIDER}={CORE_LABEL}")
LEASES = Source(LEASE, fields=f"metadata.name={LEASE_NAME}")
DEFINITIONS = Source(CRD, fields=f"metadata.name={CLUSTER_CRD_NAME}")
SOURCES = (*WEBHOOKS, INVENTORY, DEPLOYMENTS, LEASES, DEFINITIONS)


class CoreDetector:
    """Detects other cores by the objects that they create."""

    def __init__(self, client: Client, mode: Mode, *, clock: Callable[[], datetime], inside: bool = False) -> None:
        self._client = client
        self._mode = mode
        self._clock = clock
        self._inside = inside
        self._changed = asyncio.Event()

    async def look(self) -> Verdict:
        return decide(self._mode, replace(await gather(self._client, self._clock()), inside=self._inside))

    async def follow(self, last: Verdict, report: Callable[[Verdict], None]) -> None:
        """Report each verdict that differs from the last; runs forever."""
        async with asyncio.TaskGroup() as tasks:
            for source in SOURCES:
                tasks.create_task(self._listen(source))
            while True:
                await self._changed.wait()
                await asyncio.sleep(PACE_SECONDS)
                self._changed.clear()
                try:
                    verdict = await self.look()
                except StatusError as error:
                    log.warning("cannot check for another Cluster API core", error=str(error))
                    self._changed.set()
                    continue
                if verdict != last:
                    report(verdict)
                    last = verdict

    async def _listen(self, source: Source) -> None:
        informer = Informer(
            self._client, Cache(source.kind), self._on_change, labels=source.labels, fields=source.fields
        )
        await informer.run()

    def _on_change(self, change: Change) -> None:
        if change.old is None or change.new is None or _evidence_fields(change.old) != _evidence_fields(change.new):
            self._changed.set()


def _evidence_fields(obj: Object) -> Any:
    """Fields that can be evidence; Lease renewals and Deployment status change all the time."""
    if obj.get("kind") == LEASE.kind:
        return (obj.get("spec") or {}).get("holderIdentity")
    meta = obj["metadata"]
    marks = [meta.get("labels"), (meta.get("annotations") or {}).get(INSIDE)]
    return [marks, obj.get("spec"), obj.get("webhooks"), obj.get("type"), obj.get("version")]


async def gather(client: Client, now: datetime) -> Evidence:
    """Current evidence. Forbidden sources are reported; kinds that are not served count as empty."""
    found: dict[Source, tuple[Object, ...]] = {}
    unseen: list[str] = []
    for source in SOURCES:
        found[source] = ()
        try:
            page = await client.list_all(source.kind.resource, labels=source.labels, fields=source.fields)
            found[source] = tuple(page.items)
        except NotFound:
            pass
        except Forbidden:
            unseen.append(source.kind.plural)
    return Evidence(
        at=now,
        webhooks=tuple(configuration for source in WEBHOOKS for configuration in found[source]),
        providers=found[INVENTORY],
        deployments=found[DEPLOYMENTS],
        leases=found[LEASES],
        definitions=found[DEFINITIONS],
        unseen=tuple(unseen),
    )


async def register_providers(client: Client, *, core: bool, in_memory: bool, inside: bool = False) -> None:
    """Add our providers to clusterctl's inventory."""
    wanted = [*([core_provider(inside=inside)] if core else []), *(in_memory_providers() if in_memory else [])]
    for provider in wanted:
        await client.apply(PROVIDERS.resource, provider)


async def unregister_core(client: Client) -> None:
    """Remove our core from clusterctl's inventory when it does not run."""
    await _remove_ours(client, core_provider())


async def _remove_ours(client: Client, provider: Object) -> None:
    name, namespace = provider["metadata"]["name"], provider["metadata"]["namespace"]
    with contextlib.suppress(NotFound):
        found = await client.get(PROVIDERS.resource, name, namespace=namespace)
        if is_ours(found):
            uid = found["metadata"]["uid"]
            await client.delete(PROVIDERS.resource, name, namespace=namespace, uid=uid)
