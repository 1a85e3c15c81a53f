"""A TCP load balancer before several servers: each connection goes to the first server that accepts it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

from tests.support.kube import free_port


class Balancer:
    def __init__(self, ports: Sequence[int]) -> None:
        """`ports` of servers on loopback, in the order in which they are tried."""
        self.port = free_port()
        self._ports = ports
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Balancer:
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self._listening.set()
        await self._stop.wait()
        server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # when the balancer stops
            for port in self._ports:
                with suppress(OSError):
                    upstream = await asyncio.open_connection("127.0.0.1", port)
                    await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))
                    return
            writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while chunk := await source.read(64 * 1024):
                sink.write(chunk)
                await sink.drain()
    finally:
        sink.close()
