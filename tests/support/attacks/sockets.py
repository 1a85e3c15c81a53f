"""Clients that hold connections, send endlessly or do not read: on plain sockets, since no library does this."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.support.attacks.requests import CONFIGMAPS, Attack

BODY_BYTES = 3 << 20
PIECE = b"a" * (64 << 10)


@dataclass(frozen=True)
class Target:
    """A server, and the credentials of its attacker."""

    url: str
    token: str
    namespace: str

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 443

    async def connect(self, buffer: int = 64 << 10) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, port = self.address
        return await asyncio.open_connection(host, port, ssl=context, limit=buffer)

    def head(self, method: str, path: str, *headers: str, known: bool = True) -> bytes:
        """The request line and headers; without a token unless `known`."""
        lines = [f"{method} {path.format(namespace=self.namespace)} HTTP/1.1", f"Host: {urlsplit(self.url).netloc}"]
        lines += [f"Authorization: Bearer {self.token}"] if known else []
        return "\r\n".join([*lines, *headers, "", ""]).encode()


Run = Callable[[Target, float], Awaitable[None]]


async def _send_endlessly(target: Target, beginning: bytes, piece: bytes, seconds: float) -> None:
    """Send for as long as the server reads; reconnect when it closes the connection."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                with suppress(OSError):
                    _, writer = await target.connect()
                    try:
                        writer.write(beginning)
                        while not writer.is_closing():
                            writer.write(piece)
                            await writer.drain()
                            await asyncio.sleep(
                                0
                            )  # a closed connection drains at once, and the timeout would never fire
                    finally:
                        writer.transport.abort()
                await asyncio.sleep(0.05)


async def _at_once(count: int, work: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(*(work() for _ in range(count)))


async def endless_trailers(target: Target, seconds: float) -> None:
    head = target.head("POST", CONFIGMAPS, "Transfer-Encoding: chunked", known=False)
    await _at_once(4, lambda: _send_endlessly(target, head + b"1\r\n{\r\n0\r\nX-Trailer: ", PIECE, seconds))


async def junk_after_upgrade(target: Target, seconds: float) -> None:
    head = target.head("GET", "/api/v1/namespaces", "Connection: Upgrade", "Upgrade: websocket")
    await _at_once(4, lambda: _send_endlessly(target, head, PIECE, seconds))


async def bodies_before_authentication(target: Target, seconds: float) -> None:
    """60 bodies of 3 MiB, each without its last byte."""

    async def one() -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                head = target.head("POST", CONFIGMAPS, f"Content-Length: {BODY_BYTES}", known=False)
                reader, writer = await target.connect()
                try:
                    writer.write(head)
                    for _ in range(BODY_BYTES // len(PIECE) - 1):
                        writer.write(PIECE)
                        await writer.drain()
                    writer.write(PIECE[:-1])
                    await reader.read()
                finally:
                    writer.transport.abort()

    await _at_once(60, one)


async def pipelined_bodies(target: Target, seconds: float) -> None:
    """Requests of 3 MiB, pipelined on each connection, without reading a response."""
    head = target.head("POST", CONFIGMAPS, "Content-Type: application/json", f"Content-Length: {BODY_BYTES}")
    body = b"[" + b" " * (BODY_BYTES - 2) + b"]"
    await _at_once(4, lambda: _send_endlessly(target, b"", head + body, seconds))


async def _watch(target: Target, seconds: float) -> None:
    """Open a watch that starts with all objects, and read nothing of it."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            _, writer = await target.connect(buffer=4096)
            try:
                writer.write(target.head("GET", CONFIGMAPS + "?watch=true&timeoutSeconds=600"))
                await writer.drain()
                await asyncio.sleep(seconds)
            finally:
                writer.transport.abort()


async def watchers_that_do_not_read(target: Target, seconds: float) -> None:
    await _at_once(20, lambda: _watch(target, seconds))


async def thousand_watches(target: Target, seconds: float) -> None:
    async def one(number: int) -> None:
        await asyncio.sleep(number * 0.002)  # a thousand simultaneous handshakes would measure the client
        await _watch(target, seconds)

    await asyncio.gather(*(one(number) for number in range(1000)))


CONNECTIONS: dict[str, Run] = {
    "endless trailers, anonymous": endless_trailers,
    "junk after an upgrade": junk_after_upgrade,
    "60 bodies of 3 MiB, anonymous": bodies_before_authentication,
    "pipelined bodies of 3 MiB": pipelined_bodies,
    "20 watchers of 30 MB that do not read": watchers_that_do_not_read,
    "1,000 watches": thousand_watches,
}


async def send_repeatedly(target: Target, attack: Attack, seconds: float) -> None:
    """Send one request of an ordinary user repeatedly, two at a time."""
    body = attack.body()

    async def one() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    with suppress(OSError, asyncio.IncompleteReadError):
                        await _exchange(target, attack, body)
                    await asyncio.sleep(0.01)

    await _at_once(2, one)


async def _exchange(target: Target, attack: Attack, body: bytes) -> None:
    reader, writer = await target.connect()
    try:
        headers = (f"Content-Type: {attack.content_type}", f"Content-Length: {len(body)}", "Connection: close")
        writer.write(target.head(attack.method, attack.path, *headers) + body)
        await writer.drain()
        while await reader.read(1 << 16):
            pass
    finally:
        writer.transport.abort()
