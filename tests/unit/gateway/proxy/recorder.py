"""A cluster API that records every request byte by byte, and responds as a test defines."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from herder.engine.wire import User
from herder.gateway.proxy import Target
from tests.support.kube import Authority

Responder = Callable[["Received", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

_STATUS = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Unauthorized","code":401}'
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n" % len(_STATUS) + _STATUS


@dataclass(frozen=True)
class Received:
    line: str
    headers: list[tuple[str, str]]  # names in lower case
    body: bytes
    connection: int

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


async def respond_ok(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)


class Recorder:
    def __init__(self, cluster: str, authority: Authority) -> None:
        self.cluster = cluster
        self.authority = authority
        self.received: list[Received] = []
        self.connections = 0
        self.answer: Responder = respond_ok
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> Recorder:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.authority.issue("downstream", server=True))
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    def target(self, ca: str | None = None) -> Target:
        return Target(self.cluster, self.address, self.authority.path.read_text() if ca is None else ca, "agent")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.add(writer)
        try:
            while True:
                received = await _request(reader, number)
                self.received.append(received)
                await self.answer(received, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


async def _request(reader: asyncio.StreamReader, number: int) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")
    line, *rest = head.split("\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (header.partition(":") for header in rest)]
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    return Received(line, headers, await reader.readexactly(length), number)


class StaticTokens:
    """For tests without impersonators: every user has a token that contains the user's name."""

    def __init__(self) -> None:
        self.generation = 0

    async def authorization(self, target: Target, user: User) -> str:
        return f"Bearer of-{user.name}-in-{target.cluster}-{self.generation}"

    def refused(self, target: Target, user: User) -> None:
        self.generation += 1

    def forget(self, cluster: str, user_name: str = "") -> None:
        """There is no cache."""
