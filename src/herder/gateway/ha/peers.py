"""Tunnels between gateway replicas: an agent connected to one replica is reachable through all.

Each replica opens a tunnel to every other and announces its agents there. Replicas authenticate by a shared token, and
verify each other's certificates by a shared CA, so that the token is sent to nobody else.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Mapping
from functools import partial

from herder.api.management.names import TUNNEL_ID, TUNNEL_TOKEN, TUNNELS
from herder.engine.control.supervision import supervised
from herder.gateway.ha.replicas import Replicas
from herder.gateway.ha.shared_secret import GatewaySecret
from herder.tunnel.client import Target
from herder.tunnel.peering import Peering
from herder.tunnel.registry import Registry


class Peers:
    """Maintains the tunnels to the other replicas."""

    def __init__(self, tunnels: Registry, replicas: Replicas, shared: GatewaySecret) -> None:
        self.replicas = replicas
        self._tunnels = tunnels
        self._shared = shared
        self._changed = asyncio.Event()
        self._tunnel_tasks: dict[str, asyncio.Task[None]] = {}
        replicas.listen(self._changed.set)

    async def find(self, tasks: asyncio.TaskGroup) -> None:
        """Start watching the other replicas."""
        tasks.create_task(self.replicas.run())
        await self.replicas.ready()

    async def join(self, tasks: asyncio.TaskGroup) -> None:
        """Announce this replica and open tunnels to the others."""
        await self.replicas.announce()
        tasks.create_task(supervised(self.replicas.renew_lease, name="gateway-lease"))
        tasks.create_task(supervised(self._maintain_tunnels, name="gateway-peers"))

    async def _maintain_tunnels(self) -> None:
        self._tunnel_tasks.clear()  # Tasks of an earlier attempt ended with it.
        async with asyncio.TaskGroup() as tasks:
            while True:
                others = self.replicas.others()
                for name in self._tunnel_tasks.keys() - others.keys():
                    self._tunnel_tasks.pop(name).cancel()
                for name in others.keys() - self._tunnel_tasks.keys():
                    peering = Peering(self._tunnels, partial(self._target, others[name]))
                    self._tunnel_tasks[name] = tasks.create_task(peering.run())
                await self._changed.wait()
                self._changed.clear()

    def _target(self, address: str) -> Target:
        headers = {TUNNEL_ID: self.replicas.own, TUNNEL_TOKEN: self._shared.token}
        context = ssl.create_default_context(cadata=self._shared.authority.certificate_pem.decode())
        return Target(f"wss://{address}{TUNNELS[0]}", headers, context)

    def admitted(self, headers: Mapping[str, str]) -> str:
        """Name of the replica that sent these headers (lower-case names); "" if they are not from one."""
        name, token = headers.get(TUNNEL_ID, ""), headers.get(TUNNEL_TOKEN, "")
        known = name != self.replicas.own and self.replicas.alive(name)
        token_matches = hmac.compare_digest(token.encode(errors="replace"), self._shared.token.encode())
        return name if known and token_matches else ""
