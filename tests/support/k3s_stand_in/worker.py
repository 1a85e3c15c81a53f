"""A machine that is no server: it joins one, and registers its Node."""

from __future__ import annotations

import asyncio

from .asking import client_of, fetched
from .node import running_node
from .told import Told


async def work(told: Told) -> None:
    client = client_of(told, await fetched(told.joins + "/cacerts"))
    try:
        async with running_node(client, told, server=False):
            await asyncio.Event().wait()
    finally:
        await client.close()
