"""A worker node of the embedded distribution: joins a server and renews its Node."""

from __future__ import annotations

import asyncio

from herder.embedded.configuration import NODE_PORT, Configuration, ConfigurationError
from herder.embedded.node import Node, serve_health
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig


async def join(reported: Configuration) -> None:
    """Run until cancelled."""
    if not reported.server:
        raise ConfigurationError("server is required on a node; set it to the URL of a server")
    authority = reported.data_dir / "agent" / "server-ca.crt"
    try:
        trusted = authority.read_bytes()
    except OSError as problem:
        raise ConfigurationError(
            f"{authority}: {problem.strerror}; the node needs this CA to verify the server"
        ) from None
    client = Client(HttpTransport(RestConfig(server=reported.server, ca=trusted, token=reported.token)))
    node = Node(client, reported, server=False)
    health = await serve_health(reported.address, NODE_PORT, node.registered.is_set)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(node.run())
    finally:
        health.close()
        await client.close()
