"""Herder's client and server over sockets: streams, TLS outside and inside of the tunnel, and errors."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from herder.tunnel.client import Backoff, Target, TunnelClient
from herder.tunnel.errors import NoSession, Rejected, StreamError, TunnelError
from herder.tunnel.limits import MIB, Limits
from herder.tunnel.peering import Peering
from herder.tunnel.registry import Registry
from herder.tunnel.server import serve
from tests.unit.tunnel.endpoints import (
    HEADERS,
    KEY,
    TOKEN,
    authenticate,
    connected,
    echo,
    our_client,
    our_server,
    target,
    tls,
)

TIMEOUT_SECONDS = 60


async def test_data_passes_in_both_directions() -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        target(echo) as address,
        our_server() as (registry, url),
        our_client(url),
    ):
        await connected(registry)
        connection = registry.dial(KEY, "tcp", address)
        await connection.send(b"there")
        assert bytes(await connection.receive()) == b"there"
        connection.close()
        assert await connection.receive() == b""


async def test_a_stream_has_an_asyncio_reader_and_writer() -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        target(echo) as address,
        our_server() as (registry, url),
        our_client(url),
    ):
        await connected(registry)
        request = os.urandom(3 * MIB)
        reader, writer = registry.dial(KEY, "tcp", address).streams()

        async def write() -> None:
            for at in range(0, len(request), 100_000):
                writer.write(request[at : at + 100_000])
                await writer.drain()

        _, response = await asyncio.gather(write(), reader.readexactly(len(request)))
        assert response == request
        writer.close()
        await writer.wait_closed()


async def test_simultaneous_bulk_transfers_with_a_slow_reader_complete() -> None:
    """Both ends keep pausing each other, and neither deadlocks."""
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        target(echo) as address,
        our_server() as (registry, url),
        our_client(url),
    ):
        await connected(registry)
        connection = registry.dial(KEY, "tcp", address)
        size = 24 * MIB

        async def write() -> None:
            for _ in range(size // MIB):
                await connection.send(bytes(MIB))

        async def read() -> int:
            received = 0
            while received < size:
                received += len(await connection.receive())
            return received

        writing = asyncio.create_task(write())
        link = registry.sessions(KEY)[0]
        while not writing.done() and not any(stream.peer_paused for stream in link.session.streams.values()):
            await asyncio.sleep(0.001)
        assert await read() == size
        await writing
        assert registry.counters.traffic.pauses > 0
        assert registry.counters.traffic.overflows == 0


async def test_a_failed_dial_is_reported() -> None:
    short_timeouts = Limits(dial=0.05)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        our_server() as (registry, url),
        our_client(url, limits=short_timeouts),
    ):
        await connected(registry)
        for address, text in [
            ("127.0.0.1:1", "dial tcp 127.0.0.1:1: connect: connection refused"),
            ("nowhere", "dial tcp nowhere: address is not host:port"),
            ("127.0.0.1:99999", "address is not host:port"),
        ]:
            with pytest.raises(StreamError, match=text):
                await registry.dial(KEY, "tcp", address).receive()
        with pytest.raises(StreamError, match="unknown network udp"):
            await registry.dial(KEY, "udp", "127.0.0.1:53").receive()


async def test_tls_outside_and_inside_the_tunnel() -> None:
    serving, trusting = tls()
    registry = Registry()
    outer = await serve(registry, authenticate, context=serving)
    inner = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=serving)
    port = outer.sockets[0].getsockname()[1]
    client = TunnelClient(lambda: Target(f"wss://127.0.0.1:{port}/", HEADERS, trusting), lambda _, __: True)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await client.connect()
            address = f"127.0.0.1:{inner.sockets[0].getsockname()[1]}"
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport = await registry.dial(KEY, "tcp", address).tls(protocol, trusting, "tunnel.example")
            request = os.urandom(MIB)
            transport.write(request)
            assert await reader.readexactly(len(request)) == request
            transport.close()
            with pytest.raises(ssl.SSLCertVerificationError):
                await registry.dial(KEY, "tcp", address).tls(asyncio.Protocol(), trusting, "other.example")
    finally:
        client.stop()
        registry.close()
        outer.close()
        inner.close()


async def test_an_untrusted_server_never_receives_the_token() -> None:
    serving, _ = tls()
    seen: list[object] = []
    outer = await serve(Registry(), lambda headers: seen.append(headers), context=serving)
    url = f"wss://127.0.0.1:{outer.sockets[0].getsockname()[1]}/"
    client = TunnelClient(lambda: Target(url, HEADERS, ssl.create_default_context()), lambda _, __: True)
    with pytest.raises(ssl.SSLCertVerificationError):
        await client.connect()
    assert seen == []
    outer.close()


async def test_a_rejection_reports_the_status_without_the_token() -> None:
    wrong = HEADERS | {"X-API-Tunnel-Token": "guessed"}
    async with our_server() as (_, url):
        client = TunnelClient(lambda: Target(url, wrong), lambda _, __: True)
        with pytest.raises(Rejected, match="401 failed authentication") as refused:
            await client.connect()
        assert refused.value.status == 401
        assert "guessed" not in str(refused.value)


async def test_a_dial_denied_by_policy_ends_the_session_and_the_client_reconnects() -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), our_server() as (registry, url):
        client = TunnelClient(lambda: Target(url, HEADERS), lambda _, __: False, backoff=Backoff(first=0.01))
        running = asyncio.create_task(client.run())
        await connected(registry)
        first = registry.sessions(KEY)[0]
        with pytest.raises(StreamError, match="tunnel disconnect"):
            await registry.dial(KEY, "tcp", "127.0.0.1:1").receive()
        await first.done
        await connected(registry)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert client.attempts > 1


async def test_the_newest_session_is_used_and_the_oldest_is_closed_above_the_limit() -> None:
    registry = Registry(sessions_per_key=2)
    listener = await serve(registry, authenticate)
    url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    clients = [TunnelClient(lambda: Target(url, HEADERS), lambda _, __: True) for _ in range(3)]
    links = [await client.connect() for client in clients]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await links[0].done
    assert len(registry.sessions(KEY)) == 2
    connection = registry.dial(KEY, "tcp", "127.0.0.1:1")
    assert len(registry.sessions(KEY)[-1].session.streams) == 1
    connection.close()
    assert registry.counters.sessions_replaced == 1
    for client in clients:
        client.stop()
    registry.close()
    listener.close()


async def test_listeners_are_notified_when_clients_connect_and_disconnect() -> None:
    changes: list[tuple[str, bool]] = []
    async with asyncio.timeout(TIMEOUT_SECONDS), our_server() as (registry, url):
        registry.listen(lambda key, present: changes.append((key, present)))
        async with our_client(url):
            await connected(registry)
            link = registry.sessions(KEY)[0]
        await link.done
        assert changes == [(KEY, True), (KEY, False)]
        assert registry.counters.sessions == 0
        with pytest.raises(NoSession, match=rf"^failed to find Session for client {KEY}$"):
            registry.dial(KEY, "tcp", "a:1")


async def test_a_dial_can_wait_for_a_reconnecting_client() -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), target(echo) as address, our_server() as (registry, url):
        waiting = asyncio.create_task(registry.dial_when_connected(KEY, "tcp", address, TIMEOUT_SECONDS))
        await asyncio.sleep(0)
        async with our_client(url):
            connection = await waiting
            await connection.send(b"at last")
            assert bytes(await connection.receive()) == b"at last"
            connection.close()
        with pytest.raises(NoSession):
            await registry.dial_when_connected("nobody", "tcp", address, 0.01)


async def test_disconnect_removes_a_client_immediately() -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        target(echo) as address,
        our_server() as (registry, url),
        our_client(url),
    ):
        await connected(registry)
        connection = registry.dial(KEY, "tcp", address)
        registry.disconnect(KEY, "its token was revoked")
        assert not registry.has(KEY)
        with pytest.raises(StreamError, match="tunnel disconnect"):
            await connection.receive()


async def test_clients_of_a_peer_server_are_reached_through_it() -> None:
    """The far server announces its clients, and dials through them for requests with protocol `<key>::tcp`."""
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        target(echo) as address,
        our_server() as (far, far_url),
        our_client(far_url),
    ):
        await connected(far)
        near = Registry()
        listener = await serve(near, authenticate, peering=True)
        url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        peering = Peering(far, lambda: Target(url, {"X-API-Tunnel-Token": TOKEN, "X-Tunnel-Key": "far"}))
        running = asyncio.create_task(peering.run())
        while not near.has(KEY):
            await asyncio.sleep(0.005)
        connection = near.dial(KEY, "tcp", address)
        await connection.send(b"over two tunnels")
        assert bytes(await connection.receive()) == b"over two tunnels"
        connection.close()
        far.disconnect(KEY, "gone")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        near.close()
        listener.close()


@pytest.mark.parametrize(
    ("url", "context", "problem"),
    [
        ("https://a/", None, "must be wss://"),
        ("wss:///path", None, "must be wss://"),
        ("wss://a/", None, "needs a TLS context"),
    ],
)
async def test_an_invalid_target_is_rejected(url: str, context: ssl.SSLContext | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Target(url, {}, context)


async def test_backoff_grows_with_jitter() -> None:
    backoff = Backoff(first=1, max_delay=30)
    assert [backoff.delay(failures, 1.0) for failures in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.delay(7, 0.0) == 15
    assert backoff.delay(10_000, 0.5) == 22.5


async def test_the_handshake_times_out() -> None:
    async with target(lambda reader, writer: reader.read()) as address:
        client = TunnelClient(
            lambda: Target(f"ws://{address}/"), lambda _, __: True, limits=Limits(client_handshake=0.05)
        )
        with pytest.raises(TunnelError, match=r"tunnel ws://.*: handshake timed out after 0 s"):
            await client.connect()


@pytest.mark.parametrize(
    "scenario",
    [
        test_data_passes_in_both_directions,
        test_a_stream_has_an_asyncio_reader_and_writer,
        test_simultaneous_bulk_transfers_with_a_slow_reader_complete,
        test_a_failed_dial_is_reported,
        test_tls_outside_and_inside_the_tunnel,
        test_a_dial_denied_by_policy_ends_the_session_and_the_client_reconnects,
        test_clients_of_a_peer_server_are_reached_through_it,
    ],
)
def test_scenarios_on_uvloop(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    uvloop.run(scenario())
