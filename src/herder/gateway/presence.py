"""Writes on management Clusters whether their agent has a tunnel, since when, and which replica of the gateway says so:
conditions are made of it.

One replica at a time answers for a cluster. It hands over to another that has a tunnel too when its own is gone, and
says that there is none only when nobody has; for one that died, the others do. Sessions, clusters and replicas come
and go as events, so nothing is asked regularly. What could not be written is tried again until it is so.
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
from herder.gateway.clusters import Clusters
from herder.gateway.replicas import Membership

log = get_logger(__name__)

RETURN_SECONDS = 45.0
"""When who answered for them is gone, agents have so long to come back before they count as gone too."""
SETTLE_SECONDS = 1.0
"""An agent that is back so soon was never away: its condition does not flap."""
RETRY_SECONDS = 5.0

AnnotationPatch = dict[str, str | None]
"""Annotations as they are to be; None for one that is not to be there."""


class Presence:
    def __init__(
        self,
        client: Client,
        clock: Callable[[], datetime],
        *,
        clusters: Clusters,
        replicas: Membership,
        peer_with: Callable[[str], str] = lambda _cluster: "",
        settle: float = SETTLE_SECONDS,
        returning: float = RETURN_SECONDS,
        retry: float = RETRY_SECONDS,
    ) -> None:
        """`peer_with`: another replica that has a tunnel of that cluster's agent now, or ""."""
        self._client = client
        self._clock = clock
        self._clusters = clusters
        self._replicas = replicas
        self._peer_with = peer_with
        self._settle = settle
        self._returning = returning
        self._retry = retry
        self._since: dict[str, str] = {}  # clusters whose agent is here
        self._leaving: dict[str, asyncio.TimerHandle] = {}  # of those, whose agent may be back in a moment
        self._forsaken: dict[str, tuple[str, float]] = {}  # by cluster: who answered for it, and until when we wait
        self._unwritten: dict[str, None] = {}
        self._news = asyncio.Event()
        clusters.listen(self._note)
        replicas.listen(self._note_all)

    def changed(self, key: str, present: bool) -> None:
        """As the registry of tunnels tells it."""
        if key.startswith(AGENT_PREFIX):
            return
        if present:
            if (leaving := self._leaving.pop(key, None)) is not None:
                leaving.cancel()
            self._since.setdefault(key, timestamp(self._clock()))
            self._note(key)
        else:
            self._leaving[key] = asyncio.get_running_loop().call_later(self._settle, self._left, key)

    def _left(self, cluster: str) -> None:
        del self._leaving[cluster], self._since[cluster]
        self._note(cluster)

    def _note(self, cluster: str) -> None:
        self._unwritten[cluster] = None
        self._news.set()

    def _note_all(self) -> None:
        for cluster in self._clusters.ids():
            self._note(cluster)

    async def run(self) -> None:
        """Until cancelled; all clusters and replicas are known already."""
        self._note_all()
        while True:
            await self._news.wait()
            self._news.clear()
            failed = [cluster for cluster in list(self._unwritten) if not await self._write(cluster)]
            if failed:
                await asyncio.sleep(self._retry)
                for cluster in failed:
                    self._note(cluster)

    async def _write(self, cluster: str) -> bool:
        """Only onto the cluster that was looked at: one that has changed since is looked at again."""
        self._unwritten.pop(cluster, None)
        known = self._clusters.get(cluster)
        if known is None:
            self._forsaken.pop(cluster, None)
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
            log.warning("whether an agent is connected could not be written", cluster=cluster, error=str(error))
            return False
        return True

    # --- what is to be said -------------------------------------------------------------------------------------------

    def _wanted(self, cluster: str, known: Object) -> AnnotationPatch:
        """What is to be said otherwise than it is."""
        since, answers = (annotations_of(known).get(name, "") for name in (CONNECTED_SINCE, CONNECTED_TO))
        answered = bool(since) and self._replicas.alive(answers)
        if answered or not since:
            self._forsaken.pop(cluster, None)
        if cluster in self._since:
            return {} if answered else {CONNECTED_SINCE: self._since[cluster], CONNECTED_TO: self._replicas.own}
        if answered and answers == self._replicas.own:
            peer = self._peer_with(cluster)
            return {CONNECTED_TO: peer} if peer else _nobody()
        if since and not answered and self._has_waited(cluster, answers):
            return _nobody()
        return {}

    def _has_waited(self, cluster: str, gone: str) -> bool:
        """For the agent of a replica that is gone: it may be on its way to another."""
        now = asyncio.get_running_loop().time()
        whom, until = self._forsaken.get(cluster, ("", 0.0))
        if whom != gone or cluster not in self._forsaken:
            self._forsaken[cluster] = (gone, now + self._returning)
            asyncio.get_running_loop().call_later(self._returning, self._note, cluster)
            return False
        return now >= until


def _nobody() -> AnnotationPatch:
    return {CONNECTED_SINCE: None, CONNECTED_TO: None}
