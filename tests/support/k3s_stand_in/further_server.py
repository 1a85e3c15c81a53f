"""A server that joins another: its ports are there, and what is said at them is passed on to the first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from .asking import client_of, fetched
from .components import running_components
from .first_server import BOOTSTRAP
from .node import running_node
from .told import SUPERVISOR_PORT, Told


async def serve(told: Told, ready: Callable[[], None]) -> None:
    shared = json.loads(await fetched(told.joins + BOOTSTRAP, told.configuration.token))
    told.tls.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, content in shared.items():
        (told.tls / name).write_text(content)
        (told.tls / name).chmod(0o600)
    client = client_of(told, shared["server-ca.crt"])
    passing_on = await asyncio.start_server(lambda *here: _pass_on(told, *here), "0.0.0.0", SUPERVISOR_PORT)
    try:
        async with passing_on, running_components(told), running_node(client, told, server=True):
            ready()
            await asyncio.Event().wait()
    finally:
        await client.close()


async def _pass_on(told: Told, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    there = urlsplit(told.joins)
    try:
        back, forth = await asyncio.open_connection(there.hostname, there.port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, forth), _copy(back, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()
