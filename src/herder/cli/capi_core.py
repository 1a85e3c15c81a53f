"""Finds out whether another Cluster API core works on the cluster, at the start and for as long as ours might run."""

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
"""An installer writes many objects; the cluster is looked at when it pauses."""


class Source(NamedTuple):
    """Where evidence may lie."""

    kind: Kind
    labels: str = ""
    fields: str = ""


WEBHOOKS = (Source(VALIDATING_WEBHOOKS), Source(MUTATING_WEBHOOKS))
INVENTORY = Source(PROVIDERS)
DEPLOYMENTS = Source(DEPLOYMENT, labels=f"{PROVIDER}={CORE_LABEL}")
LEASES = Source(LEASE, fields=f"metadata.name={LEASE_NAME}")
DEFINITIONS = Source(CRD, fields=f"metadata.name={CLUSTER_CRD_NAME}")
SOURCES = (*WEBHOOKS, INVENTORY, DEPLOYMENTS, LEASES, DEFINITIONS)


class CoreChoice:
    def __init__(self, client: Client, mode: Mode, *, clock: Callable[[], datetime], inside: bool = False) -> None:
        self._client = client
        self._mode = mode
        self._clock = clock
        self._inside = inside
        self._news = asyncio.Event()

    async def look(self) -> Verdict:
        return decide(self._mode, replace(await gather(self._client, self._clock()), inside=self._inside))

    async def follow(self, last: Verdict, report: Callable[[Verdict], None]) -> None:
        """Tell each verdict that differs from the last, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for source in SOURCES:
                tasks.create_task(self._listen(source))
            while True:
                await self._news.wait()
                await asyncio.sleep(PACE_SECONDS)
                self._news.clear()
                try:
                    verdict = await self.look()
                except StatusError as error:
                    log.warning("cannot check for another Cluster API core", error=str(error))
                    self._news.set()
                    continue
                if verdict != last:
                    report(verdict)
                    last = verdict

    async def _listen(self, source: Source) -> None:
        informer = Informer(self._client, Cache(source.kind), self._hear, labels=source.labels, fields=source.fields)
        await informer.run()

    def _hear(self, change: Change) -> None:
        if change.old is None or change.new is None or _told_by(change.old) != _told_by(change.new):
            self._news.set()


def _told_by(obj: Object) -> Any:
    """What of an object can be evidence: a lease is renewed all the time, a Deployment reports all the time."""
    if obj.get("kind") == LEASE.kind:
        return (obj.get("spec") or {}).get("holderIdentity")
    meta = obj["metadata"]
    marks = [meta.get("labels"), (meta.get("annotations") or {}).get(INSIDE)]
    return [marks, obj.get("spec"), obj.get("webhooks"), obj.get("type"), obj.get("version")]


async def gather(client: Client, now: datetime) -> Evidence:
    """What is there now. What is forbidden to read is told; what the cluster does not know is not there."""
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


async def enter_inventory(client: Client, *, core: bool, in_memory: bool, inside: bool = False) -> None:
    """clusterctl's inventory says what of ours runs."""
    wanted = [*([core_provider(inside=inside)] if core else []), *(in_memory_providers() if in_memory else [])]
    for provider in wanted:
        await client.apply(PROVIDERS.resource, provider)


async def leave_inventory(client: Client) -> None:
    """Our core does not run (any more): clusterctl is not to take ours for another's."""
    await _remove_ours(client, core_provider())


async def _remove_ours(client: Client, provider: Object) -> None:
    name, namespace = provider["metadata"]["name"], provider["metadata"]["namespace"]
    with contextlib.suppress(NotFound):
        found = await client.get(PROVIDERS.resource, name, namespace=namespace)
        if is_ours(found):
            uid = found["metadata"]["uid"]
            await client.delete(PROVIDERS.resource, name, namespace=namespace, uid=uid)
