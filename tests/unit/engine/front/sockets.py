"""An HTTP front whose handler the test sets, and raw connections to it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from herder.engine.front.http import HttpFront
from herder.engine.wire import Request, Response

Handler = Callable[[Request], Awaitable[Response]]

TIMEOUT = 10
BODY_BYTES = 3 << 20
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class RecordingHandler:
    """A request handler that records requests, and echoes them unless the test sets another handler."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.handler: Handler = self.echo

    async def handle(self, request: Request) -> Response:
        self.requests.append(request)
        return await self.handler(request)

    async def echo(self, request: Request) -> Response:
        echoed = f"{request.method} {request.path} {request.query} ".encode() + request.body
        return Response(200, {"content-type": "text/plain"}, echoed)


class RunningFront:
    def __init__(self, recorder: RecordingHandler, front: HttpFront, port: int) -> None:
        self.recorder = recorder
        self.front = front
        self.port = port
        self._connected: list[Raw] = []

    @classmethod
    async def listen(cls, recorder: RecordingHandler, upgrade: Any = None) -> RunningFront:
        front = HttpFront(recorder, clock=lambda: NOW, body_bytes=BODY_BYTES, upgrade=upgrade)
        _, port = await front.listen("127.0.0.1", 0, None)
        return cls(recorder, front, port)

    async def stop(self) -> None:
        for raw in self._connected:
            raw.close()
        await self.front.stop()

    async def connect(self) -> Raw:
        raw = Raw(*await asyncio.open_connection("127.0.0.1", self.port))
        self._connected.append(raw)
        return raw

    async def ask(self, content: bytes) -> Answer:
        raw = await self.connect()
        raw.send(content)
        return await raw.answer()


class Answer:
    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split(" ", 2)[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.body = body


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, content: bytes) -> None:
        self.writer.write(content)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        async with asyncio.timeout(TIMEOUT):
            head = (await self.reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n")
            answer = Answer(head, b"")
            if "content-length" in answer.headers and not bodiless:
                answer.body = await self.reader.readexactly(int(answer.headers["content-length"]))
        return answer

    async def line(self) -> bytes:
        async with asyncio.timeout(TIMEOUT):
            return await self.reader.readline()

    async def rest(self) -> bytes:
        async with asyncio.timeout(TIMEOUT):
            return await self.reader.read()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Reset the connection (RST instead of FIN)."""
        connected = self.writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
