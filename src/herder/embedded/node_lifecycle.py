"""Mark Nodes as unreachable when they stop renewing their Lease, like kube-controller-manager's node lifecycle
controller.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

from herder.embedded.node import LEASE_NAMESPACE, LEASE_SECONDS, LEASES, NODES
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import NotFound, StatusError

log = get_logger(__name__)

UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}


class LostNodes:
    """Each Lease has a timer that a renewal resets, so nothing is polled."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._telling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except StatusError as problem:
                log.warning("cannot watch leases", problem=problem.message)
            await asyncio.sleep(1.0)

    async def _follow(self) -> None:
        events = self._client.watch(LEASES, namespace=LEASE_NAMESPACE, initial_events=True)
        async with aclosing(events):
            async for event in events:
                name = event.object["metadata"].get("name", "")
                if event.type in {"ADDED", "MODIFIED"}:
                    self._heard(name)
                elif event.type == "DELETED" and (timer := self._timers.pop(name, None)):
                    timer.cancel()

    def _heard(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(LEASE_SECONDS, self._lost, name)

    def _lost(self, name: str) -> None:
        self._timers.pop(name, None)
        task = asyncio.ensure_future(self._mark_lost(name))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _mark_lost(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": f"the node has not been heard of for {LEASE_SECONDS} s",
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }
        try:
            await self._client.patch(NODES, name, {"status": {"conditions": [condition]}}, subresource="status")
        except NotFound:
            return
        except StatusError as problem:
            log.warning("cannot update the status of a lost node", node=name, problem=problem.message)
        log.warning("node is lost", node=name)
