"""Standalone tunnel listener for tests and benchmarks; the gateway uses its HTTP front instead."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import cast

from herder.tunnel import websocket
from herder.tunnel.limits import KIB
from herder.tunnel.registry import Registry

_HEAD_BYTES = 32 * KIB

Authenticate = Callable[[Mapping[str, str]], str | None]
"""Returns the client key for request headers (lower-case names), or None to reject."""


async def serve(
    registry: Registry,
    authenticate: Authenticate,
    host: str = "127.0.0.1",
    port: int = 0,
    context: ssl.SSLContext | None = None,
    *,
    peering: bool = False,
) -> asyncio.Server:
    """Listen for tunnel clients."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: _Handshake(registry, authenticate, peering), host, port, ssl=context)


class _Handshake(asyncio.Protocol):
    def __init__(self, registry: Registry, authenticate: Authenticate, peering: bool) -> None:
        self._registry = registry
        self._peering = peering
        self._authenticate = authenticate
        self._received = b""
        self._transport = cast(asyncio.Transport, None)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        seconds = self._registry.limits.server_handshake
        self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > _HEAD_BYTES:
                self._refuse("431 Request Header Fields Too Large", "request headers are too large")
            return
        method, headers = parse_head(self._received[:end])
        self._respond(method.partition(" ")[0], headers)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()

    def _respond(self, method: str, headers: dict[str, str]) -> None:
        self._stop_timer()
        if problem := websocket.upgrade_problem(method, headers):
            self._refuse("400 Bad Request", problem)
        elif (key := self._authenticate(headers)) is None:
            self._refuse("401 Unauthorized", "failed authentication")
        else:
            self._registry.accept(key, headers, self, peering=self._peering)

    def _refuse(self, status: str, text: str) -> None:
        body = text.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def take(self, protocol: asyncio.BaseProtocol, response: bytes = b"") -> asyncio.Transport:
        rest = self._received[self._received.index(b"\r\n\r\n") + 4 :]
        self._transport.write(response)
        hand_over(self._transport, protocol, rest)
        return self._transport


def parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    """Return the first line, and the headers with lower-case names."""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name = name.strip().lower()
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return first, headers


def hand_over(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, rest: bytes) -> None:
    """Give a protocol the connection, including bytes that were received early."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    assert isinstance(protocol, asyncio.BufferedProtocol)
    while rest:
        buffer = memoryview(protocol.get_buffer(len(rest)))
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        protocol.buffer_updated(count)
        rest = rest[count:]
