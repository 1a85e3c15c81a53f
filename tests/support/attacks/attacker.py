"""The attacker's side: raw connections to an attack server, and limits on what an attack may cost the server."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.attacks.server import token_of

TIMEOUT = 20
TURN_MS = 50
CONNECTION_BYTES = 4 << 20  # a body of 3 MiB, and what is received ahead of it
USER_BYTES = 24 << 20  # bodies of 16 MiB, and what all connections of a user receive ahead and have not sent
PROCESS_BYTES = 72 << 20  # bodies of 64 MiB
_ROOT = Path(__file__).parents[3]
_LONGEST_LINE = 64 << 20


class Target:
    """The server under attack."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, ca: str) -> None:
        self._process = process
        self._port = port
        self._context = ssl.create_default_context(cadata=ca)
        self.connections: list[RawConnection] = []

    @classmethod
    async def start(cls) -> Target:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.attacks.server",
            cwd=_ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        ready = json.loads(await process.stdout.readline())
        return cls(process, ready["port"], ready["ca"])

    async def stop(self) -> None:
        self.hang_up()
        self._process.kill()
        await self._process.communicate()

    async def connect(self) -> RawConnection:
        async with asyncio.timeout(TIMEOUT):
            raw = RawConnection(
                *await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context, limit=_LONGEST_LINE)
            )
        self.connections.append(raw)
        return raw

    def hang_up(self) -> None:
        """Close all connections of the attack."""
        while self.connections:
            self.connections.pop().reset()

    async def ask(self, method: str, path: str, user: str = "", body: Any = None) -> tuple[int, dict[str, str], bytes]:
        """Send one request on its own connection; return status, headers and body."""
        raw = await self.connect()
        raw.send(request(method, path, user, None if body is None else json.dumps(body).encode()))
        answer = await raw.answer()
        raw.reset()
        self.connections.remove(raw)
        return answer

    async def _command(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n".encode())
        async with asyncio.timeout(TIMEOUT):
            report: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return report

    async def reset(self) -> dict[str, Any]:
        return await self._command("reset")

    async def report(self) -> dict[str, Any]:
        return await self._command("report")

    @asynccontextmanager
    async def under_attack(self, *, grows_mib: float) -> AsyncIterator[None]:
        """Run the block as the attack. No event-loop turn may use more CPU than TURN_MS; memory stays bounded.

        What connections hold is counted by the server, at the end of the block, when the attack goes on.
        """
        before = await self.reset()
        yield
        after = await self.report()
        assert after["turn_ms"] <= TURN_MS, f"{after['turn_ms']:.0f} ms of CPU in one turn: {after['turn']}"
        usage = after["usage"]
        for held, most in (
            ("largest_connection_bytes", CONNECTION_BYTES),
            ("largest_user_bytes", USER_BYTES),
            ("held_bytes", PROCESS_BYTES),
        ):
            assert usage[held] <= most, f"{held}: {usage[held]}, more than {most}"
        assert usage["body_bytes"]["largest_user"] <= usage["limits"]["body_bytes_per_user"]
        assert usage["body_bytes"]["total"] <= usage["limits"]["body_bytes"]
        assert after["rss_mib"] - before["rss_mib"] <= grows_mib, f"{before['rss_mib']} -> {after['rss_mib']} MiB"

    async def until(self, holds: Any) -> dict[str, Any]:
        """Request reports until one satisfies `holds`."""
        async with asyncio.timeout(TIMEOUT):
            while not holds(report := await self.report()):
                await asyncio.sleep(0.02)
        return report


def request(method: str, path: str, user: str = "", body: bytes | None = None, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: attack", *headers]
    lines += [f"Authorization: Bearer {token_of(user)}"] if user else []
    lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"] if body is not None else []
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class RawConnection:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, content: bytes) -> None:
        self.writer.write(content)

    async def flood(self, content: bytes, total: int) -> int:
        """Send `content` repeatedly, up to `total` bytes, until the server stops reading or disconnects."""
        sent = 0
        with suppress(ConnectionError, ssl.SSLError, TimeoutError):
            while sent < total:
                self.writer.write(content)
                sent += len(content)
                async with asyncio.timeout(1):
                    await self.writer.drain()
        return sent

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(TIMEOUT):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(first.split()[1]), headers

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        async with asyncio.timeout(TIMEOUT):
            if headers.get("transfer-encoding") == "chunked":
                body = b"".join([piece async for piece in self.chunks()])
            else:
                body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return status, headers, body

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    def stop_reading(self) -> None:
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def reset(self) -> None:
        self.writer.transport.abort()
