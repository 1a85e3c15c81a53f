"""The HTTPS transport supports custom dialers, verifies certificates and bounds every wait."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from herder.engine.client import http
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import BadRequest, ServiceUnavailable, Unauthorized
from herder.engine.meta.kinds import GroupVersionResource
from tests.support.engines import Engine

NAMESPACES = GroupVersionResource("", "v1", "namespaces")


@asynccontextmanager
async def client_of(connection: RestConfig, **options: object) -> AsyncIterator[Client]:
    client = Client(HttpTransport(connection, **options))  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.close()


class Tunnel:
    """A dialer that returns one end of a socket pair and pumps the other end to the server."""

    def __init__(self, connection: RestConfig) -> None:
        host, _, port = connection.server.removeprefix("https://").rpartition(":")
        self._target = (host, int(port))
        self.dialled: list[tuple[str, int]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __call__(self, host: str, port: int) -> socket.socket:
        self.dialled.append((host, port))
        near, far = socket.socketpair()
        near.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=far)
        there, back = await asyncio.open_connection(*self._target)
        self._tasks += [asyncio.ensure_future(_pump(reader, back)), asyncio.ensure_future(_pump(there, writer))]
        return near

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def test_a_dialer_reaches_a_server_by_a_name_that_only_the_remote_side_resolves(engine: Engine) -> None:
    tunnel = Tunnel(engine.connection)
    far = replace(engine.connection, server="https://far.invalid:6443", tls_server_name="localhost")
    async with client_of(far, dialer=tunnel) as client:
        watches = [client.watch(NAMESPACES, initial_events=True) for _ in range(70)]
        for watch in watches:
            await anext(watch)
        page = await asyncio.wait_for(client.list(NAMESPACES), 30)
        assert page.items, "a request never waits for a watch to end"
        for watch in watches:
            await watch.aclose()
    assert set(tunnel.dialled) == {("far.invalid", 6443)}
    await tunnel.close()


async def test_a_failing_dialer_raises_service_unavailable() -> None:
    async def fail_to_dial(host: str, port: int) -> socket.socket:
        raise OSError(f"no tunnel to {host}")

    async with client_of(RestConfig("https://far.invalid:6443"), dialer=fail_to_dial) as client:
        with pytest.raises(ServiceUnavailable, match=r"no tunnel to far\.invalid"):
            await client.list(NAMESPACES)


async def test_a_certificate_for_another_name_is_rejected(engine: Engine) -> None:
    for strange in (
        replace(engine.connection, ca=None),
        replace(engine.connection, tls_server_name="somebody.else"),
    ):
        async with client_of(strange) as client:
            with pytest.raises(ServiceUnavailable, match=r"(?i)certificate"):
                await client.list(NAMESPACES)
    blind = replace(engine.connection, ca=None, skip_tls_verify=True)
    async with client_of(blind) as client:
        assert (await client.list(NAMESPACES)).items


async def test_a_wrong_token_raises_unauthorized(engine: Engine) -> None:
    bare = replace(engine.connection, client_certificate=None, client_key=None, token="wrong")
    async with client_of(bare) as client:
        with pytest.raises(Unauthorized):
            await client.list(NAMESPACES)


async def test_a_missing_server_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        async with client_of(RestConfig(f"http://127.0.0.1:{port}")) as client:
            with pytest.raises(ServiceUnavailable, match=f"127.0.0.1:{port}"):
                await client.list(NAMESPACES)


async def test_a_server_that_never_responds_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)

    async def accept_silently(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client gives up
        writer.close()
        await writer.wait_closed()

    silent = await asyncio.start_server(accept_silently, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with client_of(RestConfig(f"http://127.0.0.1:{port}")) as client:
        with pytest.raises(ServiceUnavailable, match="response timed out"):
            await client.list(NAMESPACES)
        with pytest.raises(ServiceUnavailable, match="response timed out"):
            await anext(client.watch(NAMESPACES))
    silent.close()
    await silent.wait_closed()


async def test_a_closed_transport_raises_service_unavailable(engine: Engine) -> None:
    client = Client(HttpTransport(engine.connection))
    await client.close()
    with pytest.raises(ServiceUnavailable):
        await client.list(NAMESPACES)


async def test_a_name_with_special_characters_is_escaped(engine: Engine) -> None:
    async with client_of(engine.connection) as client:
        with pytest.raises(BadRequest, match='Name parameter invalid: "a b%2Fc": may not contain'):
            await client.get(NAMESPACES, "a b%2Fc")


async def test_a_redirect_does_not_forward_the_token() -> None:
    """Otherwise, whoever controls a server's responses could collect the tokens of its clients."""
    requests: list[bytes] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(elsewhere, "127.0.0.1", 0) as other:
        place = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/"

        async def redirecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 307 Go\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode())
            writer.close()

        async with await asyncio.start_server(redirecting, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with client_of(RestConfig(f"http://127.0.0.1:{port}", token="mine")) as client:
                assert (await client.raw("GET", "/api")).status == 307
    assert requests == []
