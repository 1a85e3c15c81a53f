"""The Node of a machine, as k3s registers it, and the health port of its kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from herder.embedded.node import Node, serve_health
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object

from .config import KUBELET_PORT, K3sConfig

DEFAULT_PODS = "110"


class K3sNode(Node):
    def __init__(self, client: Client, config: K3sConfig, *, server: bool) -> None:
        super().__init__(client, config.configuration, server=server)
        self._pods = config.arguments["kubelet"].get("max-pods", DEFAULT_PODS)

    def _node(self) -> Object:
        node = super()._node()
        node["spec"]["providerID"] = f"k3s://{node['metadata']['name']}"
        return node

    def _status(self) -> Object:
        status = super()._status()
        resources = {**status["capacity"], "pods": self._pods}
        return {**status, "capacity": resources, "allocatable": resources}


@asynccontextmanager
async def running_node(client: Client, config: K3sConfig, *, server: bool) -> AsyncIterator[K3sNode]:
    node = K3sNode(client, config, server=server)
    health = await serve_health("127.0.0.1", KUBELET_PORT, node.registered.is_set)
    task = asyncio.ensure_future(node.run())
    try:
        yield node
    finally:
        task.cancel()
        health.close()
