"""A machine that is not a server: it joins one and registers its Node."""

from __future__ import annotations

import asyncio

from .config import K3sConfig
from .http_client import client_of, fetch_with_retry
from .node import running_node


async def run(config: K3sConfig) -> None:
    client = client_of(config, await fetch_with_retry(config.server_url + "/cacerts"))
    try:
        async with running_node(client, config, server=False):
            await asyncio.Event().wait()
    finally:
        await client.close()
