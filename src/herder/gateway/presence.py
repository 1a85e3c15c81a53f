"""Writes on management Clusters whether their agent has a tunnel here, and since when: conditions are made of it.

Sessions come and go as events, so nothing is asked regularly. What could not be written is tried again until it is so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.capi.names import annotations_of
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import AGENT_PREFIX, CONNECTED_SINCE
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import NotFound, StatusError

log = get_logger(__name__)

RETURN_SECONDS = 45.0
"""After a start, agents that were connected before have so long to come back before they count as gone."""
SETTLE_SECONDS = 1.0
"""An agent that is back so soon was never away: its condition does not flap."""
RETRY_SECONDS = 5.0


class Presence:
    def __init__(
        self,
        client: Client,
        clock: Callable[[], datetime],
        *,
        settle: float = SETTLE_SECONDS,
        returning: float = RETURN_SECONDS,
        retry: float = RETRY_SECONDS,
    ) -> None:
        self._client = client
        self._clock = clock
        self._settle = settle
        self._returning = returning
        self._retry = retry
        self._since: dict[str, str] = {}  # clusters whose agent is here
        self._written: set[str] = set()  # clusters that are said to be connected, by us
        self._unwritten: dict[str, None] = {}
        self._news = asyncio.Event()

    def changed(self, key: str, present: bool) -> None:
        """As the registry of tunnels tells it."""
        if key.startswith(AGENT_PREFIX):
            return
        if present:
            self._since[key] = timestamp(self._clock())
            self._note(key)
        else:
            self._since.pop(key, None)
            asyncio.get_running_loop().call_later(self._settle, self._note, key)

    def _note(self, cluster: str) -> None:
        self._unwritten[cluster] = None
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forget_those_before())
            group.create_task(self._write_news())

    async def _write_news(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            failed = [cluster for cluster in list(self._unwritten) if not await self._write(cluster)]
            if failed:
                await asyncio.sleep(self._retry)
                self._note_all(failed)

    def _note_all(self, clusters: Iterable[str]) -> None:
        for cluster in clusters:
            self._note(cluster)

    async def _write(self, cluster: str) -> bool:
        self._unwritten.pop(cluster, None)
        since = self._since.get(cluster)
        if since is not None and cluster in self._written:
            return True  # it was away for a moment only
        patch = {"metadata": {"annotations": {CONNECTED_SINCE: since}}}
        try:
            await self._client.patch(MANAGEMENT_CLUSTER.resource, cluster, patch)
        except NotFound:
            self._written.discard(cluster)
            return True
        except (StatusError, OSError) as error:
            log.warning("whether an agent is connected could not be written", cluster=cluster, error=str(error))
            return False
        if since is None:
            self._written.discard(cluster)
        else:
            self._written.add(cluster)
        return True

    async def _forget_those_before(self) -> None:
        """A manager that died could not say that its agents are not connected to it any more."""
        await asyncio.sleep(self._returning)
        while True:
            try:
                known = (await self._client.list_all(MANAGEMENT_CLUSTER.resource, metadata_only=True)).items
            except (StatusError, OSError) as error:
                log.warning("the managed clusters could not be listed", error=str(error))
                await asyncio.sleep(self._retry)
                continue
            for each in known:
                name = each["metadata"]["name"]
                if annotations_of(each).get(CONNECTED_SINCE) and name not in self._since:
                    self._note(name)
            return
