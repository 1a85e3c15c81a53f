"""Our client on our server, over sockets: streams in every form, TLS around and inside, what goes wrong."""

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
from tests.unit.tunnel.world import (
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

PATIENCE = 60


async def test_raw_pieces_go_there_and_back() -> None:
    async with asyncio.timeout(PATIENCE), target(echo) as address, our_server() as (registry, url), our_client(url):
        await connected(registry)
        connection = registry.dial(KEY, "tcp", address)
        await connection.send(b"there")
        assert bytes(await connection.receive()) == b"there"
        connection.close()
        assert await connection.receive() == b""


async def test_a_reader_and_a_writer() -> None:
    async with asyncio.timeout(PATIENCE), target(echo) as address, our_server() as (registry, url), our_client(url):
        await connected(registry)
        question = os.urandom(3 * MIB)
        reader, writer = registry.dial(KEY, "tcp", address).streams()

        async def write() -> None:
            for at in range(0, len(question), 100_000):
                writer.write(question[at : at + 100_000])
                await writer.drain()

        _, answer = await asyncio.gather(write(), reader.readexactly(len(question)))
        assert answer == question
        writer.close()
        await writer.wait_closed()


async def test_a_bulk_transfer_each_way_at_once_through_slow_hands() -> None:
    """Both ends pause each other all the time, and nobody waits for ever."""
    async with asyncio.timeout(PATIENCE), target(echo) as address, our_server() as (registry, url), our_client(url):
        await connected(registry)
        connection = registry.dial(KEY, "tcp", address)
        size = 24 * MIB

        async def write() -> None:
            for _ in range(size // MIB):
                await connection.send(bytes(MIB))

        async def read() -> int:
            got = 0
            while got < size:
                got += len(await connection.receive())
            return got

        writing = asyncio.create_task(write())
        link = registry.sessions(KEY)[0]
        while not writing.done() and not any(stream.peer_paused for stream in link.session.streams.values()):
            await asyncio.sleep(0.001)
        assert await read() == size
        await writing
        assert registry.counters.traffic.pauses > 0
        assert registry.counters.traffic.overflows == 0


async def test_a_dial_refused_or_never_answered_is_told() -> None:
    impatient = Limits(dial=0.05)
    async with asyncio.timeout(PATIENCE), our_server() as (registry, url), our_client(url, limits=impatient):
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


async def test_tls_around_the_tunnel_and_inside_it() -> None:
    serving, trusting = tls()
    registry = Registry()
    outer = await serve(registry, authenticate, context=serving)
    inner = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=serving)
    port = outer.sockets[0].getsockname()[1]
    client = TunnelClient(lambda: Target(f"wss://127.0.0.1:{port}/", HEADERS, trusting), lambda _, __: True)
    try:
        async with asyncio.timeout(PATIENCE):
            await client.connect()
            address = f"127.0.0.1:{inner.sockets[0].getsockname()[1]}"
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport = await registry.dial(KEY, "tcp", address).tls(protocol, trusting, "tunnel.example")
            question = os.urandom(MIB)
            transport.write(question)
            assert await reader.readexactly(len(question)) == question
            transport.close()
            with pytest.raises(ssl.SSLCertVerificationError):
                await registry.dial(KEY, "tcp", address).tls(asyncio.Protocol(), trusting, "other.example")
    finally:
        client.stop()
        registry.close()
        outer.close()
        inner.close()


async def test_a_server_that_is_not_trusted_never_sees_the_token() -> None:
    serving, _ = tls()
    seen: list[object] = []
    outer = await serve(Registry(), lambda headers: seen.append(headers), context=serving)
    url = f"wss://127.0.0.1:{outer.sockets[0].getsockname()[1]}/"
    client = TunnelClient(lambda: Target(url, HEADERS, ssl.create_default_context()), lambda _, __: True)
    with pytest.raises(ssl.SSLCertVerificationError):
        await client.connect()
    assert seen == []
    outer.close()


async def test_a_refusal_is_told_with_its_status_and_without_the_token() -> None:
    wrong = HEADERS | {"X-API-Tunnel-Token": "guessed"}
    async with our_server() as (_, url):
        client = TunnelClient(lambda: Target(url, wrong), lambda _, __: True)
        with pytest.raises(Rejected, match="401 failed authentication") as refused:
            await client.connect()
        assert refused.value.status == 401
        assert "guessed" not in str(refused.value)


async def test_a_policy_that_says_no_ends_the_session_and_the_client_comes_again() -> None:
    async with asyncio.timeout(PATIENCE), our_server() as (registry, url):
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


async def test_the_newest_session_is_used_and_the_oldest_goes_when_there_are_too_many() -> None:
    registry = Registry(sessions_per_key=2)
    listener = await serve(registry, authenticate)
    url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    clients = [TunnelClient(lambda: Target(url, HEADERS), lambda _, __: True) for _ in range(3)]
    links = [await client.connect() for client in clients]
    async with asyncio.timeout(PATIENCE):
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


async def test_listeners_hear_of_a_client_that_comes_and_goes() -> None:
    heard: list[tuple[str, bool]] = []
    async with asyncio.timeout(PATIENCE), our_server() as (registry, url):
        registry.listen(lambda key, present: heard.append((key, present)))
        async with our_client(url):
            await connected(registry)
            link = registry.sessions(KEY)[0]
        await link.done
        assert heard == [(KEY, True), (KEY, False)]
        assert registry.counters.sessions == 0
        with pytest.raises(NoSession, match=rf"^failed to find Session for client {KEY}$"):
            registry.dial(KEY, "tcp", "a:1")


async def test_a_dial_can_wait_for_a_client_that_is_just_coming_back() -> None:
    async with asyncio.timeout(PATIENCE), target(echo) as address, our_server() as (registry, url):
        waiting = asyncio.create_task(registry.dial_when_connected(KEY, "tcp", address, PATIENCE))
        await asyncio.sleep(0)
        async with our_client(url):
            connection = await waiting
            await connection.send(b"at last")
            assert bytes(await connection.receive()) == b"at last"
            connection.close()
        with pytest.raises(NoSession):
            await registry.dial_when_connected("nobody", "tcp", address, 0.01)


async def test_a_disconnected_client_is_gone_at_once() -> None:
    async with asyncio.timeout(PATIENCE), target(echo) as address, our_server() as (registry, url), our_client(url):
        await connected(registry)
        connection = registry.dial(KEY, "tcp", address)
        registry.disconnect(KEY, "its token was revoked")
        assert not registry.has(KEY)
        with pytest.raises(StreamError, match="tunnel disconnect"):
            await connection.receive()


async def test_a_peer_servers_clients_are_reached_through_it() -> None:
    """The far server announces its clients, and dials through them when asked for `<key>::tcp`."""
    async with asyncio.timeout(PATIENCE), target(echo) as address, our_server() as (far, far_url), our_client(far_url):
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
async def test_a_bad_target_is_named(url: str, context: ssl.SSLContext | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Target(url, {}, context)


async def test_waiting_grows_and_never_falls_together() -> None:
    backoff = Backoff(first=1, max_delay=30)
    assert [backoff.delay(failures, 1.0) for failures in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.delay(7, 0.0) == 15
    assert backoff.delay(10_000, 0.5) == 22.5


async def test_a_server_that_never_answers_is_given_up() -> None:
    async with target(lambda reader, writer: reader.read()) as address:
        client = TunnelClient(
            lambda: Target(f"ws://{address}/"), lambda _, __: True, limits=Limits(client_handshake=0.05)
        )
        with pytest.raises(TunnelError, match=r"tunnel ws://.*: handshake timed out after 0 s"):
            await client.connect()


@pytest.mark.parametrize(
    "scenario",
    [
        test_raw_pieces_go_there_and_back,
        test_a_reader_and_a_writer,
        test_a_bulk_transfer_each_way_at_once_through_slow_hands,
        test_a_dial_refused_or_never_answered_is_told,
        test_tls_around_the_tunnel_and_inside_it,
        test_a_policy_that_says_no_ends_the_session_and_the_client_comes_again,
        test_a_peer_servers_clients_are_reached_through_it,
    ],
)
def test_all_this_on_the_event_loop_that_servers_use(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    uvloop.run(scenario())
