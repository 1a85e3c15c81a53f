"""What tunnel tests need around them: targets to dial, servers and clients of ours and of remotedialer."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from herder.engine import certificates
from herder.tunnel.client import Backoff, Target, TunnelClient
from herder.tunnel.limits import DEFAULT, Limits
from herder.tunnel.registry import Registry
from herder.tunnel.server import serve
from tests.support.peers import peer
from tests.support.processes import terminate

TOKEN = "let-me-in"
KEY = "c-m-12345678"
HEADERS = {"X-API-Tunnel-Token": TOKEN, "X-Tunnel-Key": KEY}

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


def authenticate(headers: Mapping[str, str]) -> str | None:
    return headers.get("x-tunnel-key") if headers.get("x-api-tunnel-token") == TOKEN else None


def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For a server named tunnel.example, and for a client that trusts it."""
    now, life = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    signer = certificates.authority("test", now=now, life=life)
    served = certificates.serving(signer, "tunnel", ["tunnel.example", "127.0.0.1"], now=now, life=life)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.load_chain(serving, served.certificate_pem, served.key_pem)
    return serving, ssl.create_default_context(cadata=signer.certificate_pem.decode())


@contextlib.asynccontextmanager
async def target(handle: Serve) -> AsyncIterator[str]:
    """A TCP server to be dialled through a tunnel; its address."""

    async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await handle(reader, writer)
        writer.close()

    server = await asyncio.start_server(handled, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


def source(size: int, block: bytes = bytes(range(256)) * 256) -> Serve:
    """Sends so much, then closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = 0
        while sent < size:
            piece = block[: size - sent]
            writer.write(piece)
            sent += len(piece)
            await writer.drain()

    return handle


@contextlib.asynccontextmanager
async def our_server(limits: Limits = DEFAULT) -> AsyncIterator[tuple[Registry, str]]:
    """The registry and the URL for clients."""
    registry = Registry(limits)
    server = await serve(registry, authenticate)
    try:
        yield registry, f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/connect"
    finally:
        registry.close()
        server.close()


@contextlib.asynccontextmanager
async def our_client(
    url: str, headers: Mapping[str, str] = HEADERS, limits: Limits = DEFAULT
) -> AsyncIterator[TunnelClient]:
    quick = Backoff(first=0.01, max_delay=0.05)
    client = TunnelClient(lambda: Target(url, headers), lambda _, __: True, limits=limits, backoff=quick)
    task = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def running(*command: object) -> AsyncIterator[None]:
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        await asyncio.to_thread(terminate, process)  # it may wait for an answer from this process


@contextlib.asynccontextmanager
async def go_client(url: str, headers: Mapping[str, str] = HEADERS, sessions: int = 1) -> AsyncIterator[None]:
    """One program, with so many sessions: '{}' in a header is the number of each."""
    words = [word for name, value in headers.items() for word in ("-header", f"{name}: {value}")]
    async with running(peer("remotedialer-client"), "-url", url, "-retry", "10ms", "-sessions", sessions, *words):
        yield


@contextlib.asynccontextmanager
async def go_server(*forwards: str, extra: Sequence[str] = ()) -> AsyncIterator[tuple[str, list[int]]]:
    """Forwards to these targets through the client KEY. The URL for clients, and one port for each target."""
    port, *ports = free_ports(1 + len(forwards))
    words = [
        word
        for number, to in zip(ports, forwards, strict=True)
        for word in ("-forward", f"{KEY}=127.0.0.1:{number}={to}")
    ]
    async with running(peer("remotedialer-server"), "-listen", f"127.0.0.1:{port}", "-token", TOKEN, *words, *extra):
        await connectable(port)
        yield f"ws://127.0.0.1:{port}/connect", ports


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


async def connectable(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return


async def connected(registry: Registry, key: str = KEY) -> None:
    """Until a client of this key is there."""
    came = asyncio.Event()
    registry.listen(lambda whose, present: came.set() if whose == key and present else None)
    if not registry.has(key):
        await came.wait()


async def forwarded(url: str) -> None:
    """Until the Go server at this URL has a client."""
    while KEY not in await clients_of(url):
        await asyncio.sleep(0.02)


async def clients_of(url: str) -> list[str]:
    """The keys of those that the Go server at this URL has."""
    host, port = url.removeprefix("ws://").partition("/")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /clients HTTP/1.0\r\n\r\n")
    answer = (await reader.read()).decode()
    writer.close()
    return answer.partition("\r\n\r\n")[2].split()
