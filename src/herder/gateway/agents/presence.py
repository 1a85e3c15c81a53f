"""Record on management Clusters whether their agent is connected, since when, and to which gateway replica.

One replica at a time owns the record of a cluster. When its tunnel closes, it hands over to another replica with a
tunnel, and reports disconnection only if there is none; if a replica dies, the others take over. Everything is event
driven, and failed writes are retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.capi.names import annotations_of
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import AGENT_PREFIX, CONNECTED_SINCE, CONNECTED_TO
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import Conflict, NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.gateway.agents.clusters import Clusters
from herder.gateway.ha.replicas import Membership

log = get_logger(__name__)

RECONNECT_SECONDS = 45.0
"""How long agents of a failed replica may take to reconnect before they count as disconnected."""
DEBOUNCE_SECONDS = 1.0
"""An agent that reconnects within this time was never disconnected, so that the condition does not flap."""
RETRY_SECONDS = 5.0

AnnotationPatch = dict[str, str | None]
"""Annotations to set; None removes one."""


class Presence:
    """Writes the connection annotations of management Clusters."""

    def __init__(
        self,
        client: Client,
        clock: Callable[[], datetime],
        *,
        clusters: Clusters,
        replicas: Membership,
        peer_of: Callable[[str], str] = lambda _cluster: "",
        debounce: float = DEBOUNCE_SECONDS,
        reconnect: float = RECONNECT_SECONDS,
        retry: float = RETRY_SECONDS,
    ) -> None:
        """`peer_of` returns another replica with a tunnel of that cluster's agent, or ""."""
        self._client = client
        self._clock = clock
        self._clusters = clusters
        self._replicas = replicas
        self._peer_of = peer_of
        self._debounce = debounce
        self._reconnect = reconnect
        self._retry = retry
        self._since: dict[str, str] = {}  # clusters whose agent is connected to this replica
        # of those, agents that may reconnect within the debounce time
        self._disconnecting: dict[str, asyncio.TimerHandle] = {}
        self._orphaned: dict[str, tuple[str, float]] = {}  # by cluster: the failed replica, and until when to wait
        self._pending: dict[str, None] = {}
        self._wakeup = asyncio.Event()
        clusters.listen(self._enqueue)
        replicas.listen(self._enqueue_all)

    def changed(self, key: str, present: bool) -> None:
        """Callback of the tunnel registry."""
        if key.startswith(AGENT_PREFIX):
            return
        if present:
            if (timer := self._disconnecting.pop(key, None)) is not None:
                timer.cancel()
            self._since.setdefault(key, timestamp(self._clock()))
            self._enqueue(key)
        else:
            self._disconnecting[key] = asyncio.get_running_loop().call_later(self._debounce, self._disconnected, key)

    def _disconnected(self, cluster: str) -> None:
        del self._disconnecting[cluster], self._since[cluster]
        self._enqueue(cluster)

    def _enqueue(self, cluster: str) -> None:
        self._pending[cluster] = None
        self._wakeup.set()

    def _enqueue_all(self) -> None:
        for cluster in self._clusters.ids():
            self._enqueue(cluster)

    async def run(self) -> None:
        """Run until canceled; caches of clusters and replicas must be synced."""
        self._enqueue_all()
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            failed = [cluster for cluster in list(self._pending) if not await self._write(cluster)]
            if failed:
                await asyncio.sleep(self._retry)
                for cluster in failed:
                    self._enqueue(cluster)

    async def _write(self, cluster: str) -> bool:
        """Write with the resourceVersion that was read; a conflict is retried with the next event."""
        self._pending.pop(cluster, None)
        known = self._clusters.get(cluster)
        if known is None:
            self._orphaned.pop(cluster, None)
            return True
        wanted = self._wanted(cluster, known)
        if not wanted:
            return True
        patch = {"metadata": {"resourceVersion": known["metadata"]["resourceVersion"], "annotations": wanted}}
        try:
            await self._client.patch(MANAGEMENT_CLUSTER.resource, cluster, patch)
        except (NotFound, Conflict):
            pass
        except (StatusError, OSError) as error:
            log.warning("cannot record whether an agent is connected", cluster=cluster, error=str(error))
            return False
        return True

    # --- desired annotations ----------------------------------------------------------------------------------------

    def _wanted(self, cluster: str, known: Object) -> AnnotationPatch:
        """Annotations that must change."""
        since, owner = (annotations_of(known).get(name, "") for name in (CONNECTED_SINCE, CONNECTED_TO))
        owner_alive = bool(since) and self._replicas.alive(owner)
        if owner_alive or not since:
            self._orphaned.pop(cluster, None)
        if cluster in self._since:
            return {} if owner_alive else {CONNECTED_SINCE: self._since[cluster], CONNECTED_TO: self._replicas.own}
        if owner_alive and owner == self._replicas.own:
            peer = self._peer_of(cluster)
            return {CONNECTED_TO: peer} if peer else _disconnected_patch()
        if since and not owner_alive and self._grace_expired(cluster, owner):
            return _disconnected_patch()
        return {}

    def _grace_expired(self, cluster: str, gone: str) -> bool:
        """Whether the agent of a failed replica has had enough time to reconnect to another."""
        now = asyncio.get_running_loop().time()
        previous, until = self._orphaned.get(cluster, ("", 0.0))
        if previous != gone or cluster not in self._orphaned:
            self._orphaned[cluster] = (gone, now + self._reconnect)
            asyncio.get_running_loop().call_later(self._reconnect, self._enqueue, cluster)
            return False
        return now >= until


def _disconnected_patch() -> AnnotationPatch:
    return {CONNECTED_SINCE: None, CONNECTED_TO: None}
