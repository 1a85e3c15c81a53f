"""Tunnels between the replicas of the gateway: an agent that is connected to one of them is reached through all.

Each opens one to every other and tells there which agents it has. Who may open one knows the token that all replicas
share; that it is sent to nobody else, the authority of their certificates makes sure, which they share too.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Mapping
from functools import partial

from herder.api.management.names import TUNNEL_ID, TUNNEL_TOKEN, TUNNELS
from herder.engine.control.supervision import supervised
from herder.gateway.replicas import Replicas
from herder.gateway.sharing import Shared
from herder.tunnel.client import Target
from herder.tunnel.peering import Peering
from herder.tunnel.registry import Registry


class Peers:
    def __init__(self, tunnels: Registry, replicas: Replicas, shared: Shared) -> None:
        self.replicas = replicas
        self._tunnels = tunnels
        self._shared = shared
        self._news = asyncio.Event()
        self._open: dict[str, asyncio.Task[None]] = {}
        replicas.listen(self._news.set)

    async def find(self, tasks: asyncio.TaskGroup) -> None:
        """Those that are there, by tasks that know them from here on."""
        tasks.create_task(self.replicas.run())
        await self.replicas.ready()

    async def join(self, tasks: asyncio.TaskGroup) -> None:
        """They may come here now, and we go there."""
        await self.replicas.enter()
        tasks.create_task(supervised(self.replicas.stay, name="gateway-lease"))
        tasks.create_task(supervised(self._keep_open, name="gateway-peers"))

    async def _keep_open(self) -> None:
        self._open.clear()  # of an earlier attempt, whose tasks ended with it
        async with asyncio.TaskGroup() as tasks:
            while True:
                others = self.replicas.others()
                for name in self._open.keys() - others.keys():
                    self._open.pop(name).cancel()
                for name in others.keys() - self._open.keys():
                    peering = Peering(self._tunnels, partial(self._target, others[name]))
                    self._open[name] = tasks.create_task(peering.run())
                await self._news.wait()
                self._news.clear()

    def _target(self, address: str) -> Target:
        headers = {TUNNEL_ID: self.replicas.own, TUNNEL_TOKEN: self._shared.token}
        context = ssl.create_default_context(cadata=self._shared.authority.certificate_pem.decode())
        return Target(f"wss://{address}{TUNNELS[0]}", headers, context)

    def admitted(self, headers: Mapping[str, str]) -> str:
        """The replica that these headers (names in lower case) are of, where they are of one; else ""."""
        name, token = headers.get(TUNNEL_ID, ""), headers.get(TUNNEL_TOKEN, "")
        known = name != self.replicas.own and self.replicas.alive(name)
        right = hmac.compare_digest(token.encode(errors="replace"), self._shared.token.encode())
        return name if known and right else ""
