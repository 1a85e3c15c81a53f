"""A server that joins another: it listens on the same ports and forwards connections to the first server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from .components import running_components
from .config import SUPERVISOR_PORT, K3sConfig
from .first_server import BOOTSTRAP
from .http_client import client_of, fetch_with_retry
from .node import running_node


async def serve(config: K3sConfig, ready: Callable[[], None]) -> None:
    shared = json.loads(await fetch_with_retry(config.server_url + BOOTSTRAP, config.configuration.token))
    config.tls.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, content in shared.items():
        (config.tls / name).write_text(content)
        (config.tls / name).chmod(0o600)
    client = client_of(config, shared["server-ca.crt"])
    listener = await asyncio.start_server(lambda *here: _forward(config, *here), "0.0.0.0", SUPERVISOR_PORT)
    try:
        async with listener, running_components(config), running_node(client, config, server=True):
            ready()
            await asyncio.Event().wait()
    finally:
        await client.close()


async def _forward(config: K3sConfig, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    target = urlsplit(config.server_url)
    try:
        upstream_reader, upstream_writer = await asyncio.open_connection(target.hostname, target.port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, upstream_writer), _copy(upstream_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()
