"""The Node of a machine, as k3s registers it, and the port where a kubelet says that it is well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from herder.embedded.node import Node, serve_health
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object

from .told import KUBELET_PORT, Told

DEFAULT_PODS = "110"


class K3sNode(Node):
    def __init__(self, client: Client, told: Told, *, server: bool) -> None:
        super().__init__(client, told.configuration, server=server)
        self._pods = told.arguments["kubelet"].get("max-pods", DEFAULT_PODS)

    def _node(self) -> Object:
        made = super()._node()
        made["spec"]["providerID"] = f"k3s://{made['metadata']['name']}"
        return made

    def _status(self) -> Object:
        status = super()._status()
        resources = {**status["capacity"], "pods": self._pods}
        return {**status, "capacity": resources, "allocatable": resources}


@asynccontextmanager
async def running_node(client: Client, told: Told, *, server: bool) -> AsyncIterator[K3sNode]:
    node = K3sNode(client, told, server=server)
    health = await serve_health("127.0.0.1", KUBELET_PORT, node.registered.is_set)
    task = asyncio.ensure_future(node.run())
    try:
        yield node
    finally:
        task.cancel()
        health.close()
