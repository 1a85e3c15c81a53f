"""Servers, clients and dial targets for tunnel tests: Herder's own and those of the Go library remotedialer."""

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

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


def authenticate(headers: Mapping[str, str]) -> str | None:
    return headers.get("x-tunnel-key") if headers.get("x-api-tunnel-token") == TOKEN else None


def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS context of a server named tunnel.example and of a client that trusts it."""
    now, lifetime = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    signer = certificates.authority("test", now=now, life=lifetime)
    served = certificates.serving(signer, "tunnel", ["tunnel.example", "127.0.0.1"], now=now, life=lifetime)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.load_chain(serving, served.certificate_pem, served.key_pem)
    return serving, ssl.create_default_context(cadata=signer.certificate_pem.decode())


@contextlib.asynccontextmanager
async def target(handle: ConnectionHandler) -> AsyncIterator[str]:
    """Run a TCP server to dial through a tunnel; yield its address."""

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await handle(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle_connection, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


def source(size: int, block: bytes = bytes(range(256)) * 256) -> ConnectionHandler:
    """Return a handler that sends this many bytes and closes the connection."""

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
    """Run a tunnel server; yield its registry and the URL for clients."""
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
    process = subprocess.Popen(
        [str(argument) for argument in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        await asyncio.to_thread(terminate, process)  # the process may wait for a response from this event loop


@contextlib.asynccontextmanager
async def go_client(url: str, headers: Mapping[str, str] = HEADERS, sessions: int = 1) -> AsyncIterator[None]:
    """Run the Go client with this many sessions; '{}' in a header is replaced by the session's number."""
    arguments = [argument for name, value in headers.items() for argument in ("-header", f"{name}: {value}")]
    async with running(peer("remotedialer-client"), "-url", url, "-retry", "10ms", "-sessions", sessions, *arguments):
        yield


@contextlib.asynccontextmanager
async def go_server(*forwards: str, extra: Sequence[str] = ()) -> AsyncIterator[tuple[str, list[int]]]:
    """Run the Go server, which forwards to these targets through the client KEY.

    Yields the URL for clients and one local port for each target.
    """
    port, *ports = free_ports(1 + len(forwards))
    arguments = [
        argument
        for number, forward_target in zip(ports, forwards, strict=True)
        for argument in ("-forward", f"{KEY}=127.0.0.1:{number}={forward_target}")
    ]
    async with running(
        peer("remotedialer-server"), "-listen", f"127.0.0.1:{port}", "-token", TOKEN, *arguments, *extra
    ):
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
    """Wait until a client with this key is connected."""
    appeared = asyncio.Event()
    registry.listen(lambda client_key, present: appeared.set() if client_key == key and present else None)
    if not registry.has(key):
        await appeared.wait()


async def forwarded(url: str) -> None:
    """Wait until the client KEY is connected to the Go server at this URL."""
    while KEY not in await clients_of(url):
        await asyncio.sleep(0.02)


async def clients_of(url: str) -> list[str]:
    """Return the keys of the clients of the Go server at this URL."""
    host, port = url.removeprefix("ws://").partition("/")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /clients HTTP/1.0\r\n\r\n")
    response = (await reader.read()).decode()
    writer.close()
    return response.partition("\r\n\r\n")[2].split()
