"""The released Go remotedialer against Herder's, in both roles."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os

import pytest

from herder.tunnel.client import TunnelClient
from herder.tunnel.errors import NoSession, StreamError
from herder.tunnel.limits import Limits
from herder.tunnel.registry import Registry
from herder.tunnel.server import serve
from tests.unit.tunnel.endpoints import (
    HEADERS,
    KEY,
    clients_of,
    connected,
    echo,
    forwarded,
    go_client,
    go_server,
    our_client,
    our_server,
    source,
    target,
)

MIB = 1 << 20
BULK = int(os.environ.get("HERDER_TUNNEL_MIB", "64")) * MIB
STORM = int(os.environ.get("HERDER_TUNNEL_STORM", "100"))
RECONNECTS = int(os.environ.get("HERDER_TUNNEL_RECONNECTS", "100"))
QUIET_SECONDS = float(os.environ.get("HERDER_TUNNEL_QUIET", "0.2"))  # the Go client lists its streams every minute
TIMEOUT = 300


async def echo_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes) -> bytes:
    try:
        writer.write(payload)
        return await reader.readexactly(len(payload))
    finally:
        writer.close()


async def open_stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream that has transferred data in both directions."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"known")
    assert await reader.readexactly(5) == b"known"
    return reader, writer


async def wait_for_answer(port: int) -> None:
    """Wait for a response: for a moment, the Go server dials through a closed session."""
    answer = b""
    while answer != b"again":
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            answer = await echo_once(*await asyncio.open_connection("127.0.0.1", port), b"again")


async def wait_for_sessions(registry: Registry, count: int) -> None:
    """Wait until this many sessions were opened, now or earlier. Listeners are notified of clients, not of sessions."""
    while registry.counters.sessions_opened < count:
        await asyncio.sleep(0.02)


def is_up(client: TunnelClient) -> bool:
    return client.link is not None and client.link.alive


class TestGoClientOnOurServer:
    async def test_fifty_concurrent_streams_do_not_mix(self) -> None:
        async with asyncio.timeout(TIMEOUT), target(echo) as address, our_server() as (registry, url), go_client(url):
            await connected(registry)
            payloads = [os.urandom(100_000) for _ in range(50)]
            streams = [registry.dial(KEY, "tcp", address).streams() for _ in payloads]
            wait_for_answer = await asyncio.gather(
                *(echo_once(*s, payload) for s, payload in zip(streams, payloads, strict=True))
            )
            assert list(wait_for_answer) == payloads

    async def test_a_bulk_transfer_arrives_completely(self) -> None:
        async with (
            asyncio.timeout(TIMEOUT),
            target(source(BULK)) as address,
            our_server() as (registry, url),
            go_client(url),
        ):
            await connected(registry)
            connection = registry.dial(KEY, "tcp", address)
            received = 0
            while chunk := await connection.receive():
                received += len(chunk)
            assert received == BULK

    async def test_a_slow_reader_pauses_the_sender_and_memory_stays_bounded(self) -> None:
        async with (
            asyncio.timeout(TIMEOUT),
            target(source(BULK)) as address,
            our_server() as (registry, url),
            go_client(url),
        ):
            await connected(registry)
            connection = registry.dial(KEY, "tcp", address)
            session = registry.sessions(KEY)[0].session
            stream = next(iter(session.streams.values()))
            while not stream.peer_paused:
                await asyncio.sleep(0)
            assert await (registry.dial(KEY, "tcp", address)).receive(), "other streams continue meanwhile"
            received, most = 0, 0
            while chunk := await connection.receive():
                received += len(chunk)
                most = max(most, stream.buffered)
            assert received == BULK
            assert most <= session.limits.stream_bytes
            assert registry.counters.traffic.overflows == 0

    async def test_an_idle_stream_survives_pings_and_syncs(self) -> None:
        async with asyncio.timeout(TIMEOUT), target(echo) as address, our_server() as (registry, url), go_client(url):
            await connected(registry)
            reader, writer = registry.dial(KEY, "tcp", address).streams()
            writer.write(b"now")
            assert await reader.readexactly(3) == b"now"
            await asyncio.sleep(QUIET_SECONDS)
            assert await echo_once(reader, writer, b"later") == b"later"

    async def test_clients_of_a_peered_go_server_are_reachable(self) -> None:
        registry = Registry()
        listener = await serve(registry, lambda headers: headers.get("x-api-tunnel-id"), peering=True)
        peer = f"ours=ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/connect"
        async with (
            asyncio.timeout(TIMEOUT),
            target(echo) as address,
            go_server(extra=("-peer-id", "theirs", "-peer", peer)) as (url, _),
            go_client(url),
        ):
            while not registry.has(KEY):
                await asyncio.sleep(0.01)
            assert await echo_once(*registry.dial(KEY, "tcp", address).streams(), b"far away") == b"far away"
            registry.close()
            listener.close()

    async def test_a_refused_dial_returns_the_clients_error(self) -> None:
        async with asyncio.timeout(TIMEOUT), our_server() as (registry, url), go_client(url):
            await connected(registry)
            connection = registry.dial(KEY, "tcp", "127.0.0.1:1")
            with pytest.raises(StreamError, match=r"^dial tcp 127\.0\.0\.1:1: connect: connection refused$"):
                await connection.receive()

    async def test_a_reconnecting_client_is_reached_through_its_newest_session(self) -> None:
        async with asyncio.timeout(TIMEOUT), target(echo) as address, our_server() as (registry, url), go_client(url):
            for _ in range(RECONNECTS):
                await connected(registry)
                question = os.urandom(64)
                assert await echo_once(*registry.dial(KEY, "tcp", address).streams(), question) == question
                registry.sessions(KEY)[-1].close()
            assert registry.counters.sessions <= 2

    async def test_all_sessions_reconnect_after_a_simultaneous_end(self) -> None:
        numbered = HEADERS | {"X-Tunnel-Key": "storm-{}"}
        async with (
            asyncio.timeout(TIMEOUT),
            target(echo) as address,
            our_server() as (registry, url),
            go_client(url, numbered, sessions=STORM),
        ):
            for storms in range(2):
                await wait_for_sessions(registry, STORM * (storms + 1))
                keys = registry.clients()
                streams = [registry.dial(key, "tcp", address).streams() for key in keys]
                wait_for_answer = await asyncio.gather(
                    *(echo_once(*s, key.encode()) for s, key in zip(streams, keys, strict=True))
                )
                assert [answer.decode() for answer in wait_for_answer] == keys
                for key in keys:
                    registry.disconnect(key, "the storm")
            await wait_for_sessions(registry, STORM * 3)
            assert len(registry.clients()) == STORM

    async def test_a_wrong_token_is_rejected(self) -> None:
        wrong = HEADERS | {"X-API-Tunnel-Token": "guessed"}
        async with (
            asyncio.timeout(TIMEOUT),
            our_server() as (registry, url),
            go_client(url, wrong),
            go_client(url, HEADERS | {"X-Tunnel-Key": "another"}),
        ):
            await connected(registry, "another")
            with pytest.raises(NoSession, match=f"^failed to find Session for client {KEY}$"):
                registry.dial(KEY, "tcp", "127.0.0.1:1")


class TestOurClientOnAGoServer:
    async def test_fifty_concurrent_streams_do_not_mix(self) -> None:
        async with (
            asyncio.timeout(TIMEOUT),
            target(echo) as address,
            go_server(address) as (url, [port]),
            our_client(url),
        ):
            await forwarded(url)
            payloads = [os.urandom(100_000) for _ in range(50)]
            streams = [await asyncio.open_connection("127.0.0.1", port) for _ in payloads]
            replies = (echo_once(*stream, payload) for stream, payload in zip(streams, payloads, strict=True))
            assert list(await asyncio.gather(*replies)) == payloads

    async def test_a_bulk_transfer_arrives_completely(self) -> None:
        async with (
            asyncio.timeout(TIMEOUT),
            target(source(BULK)) as address,
            go_server(address) as (url, [port]),
            our_client(url),
        ):
            await forwarded(url)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            digest, received = hashlib.sha256(), 0
            while chunk := await reader.read(1 << 18):
                digest.update(chunk)
                received += len(chunk)
            writer.close()
            assert received == BULK
            assert digest.digest() == hashlib.sha256(bytes(range(256)) * (BULK // 256)).digest()

    async def test_a_slow_remote_reader_pauses_the_client(self) -> None:
        async with (
            asyncio.timeout(TIMEOUT),
            target(source(BULK)) as address,
            go_server(address) as (url, [port]),
            our_client(url) as client,
        ):
            await forwarded(url)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
            assert client.link is not None
            session = client.link.session
            while not any(stream.paused for stream in session.streams.values()):
                await asyncio.sleep(0)
            assert all(stream.queued <= 2 * session.limits.send_high for stream in session.streams.values())
            received = 0
            while chunk := await reader.read(1 << 18):
                received += len(chunk)
            writer.close()
            assert received == BULK

    async def test_the_server_drops_streams_missing_in_a_sync(self) -> None:
        often = Limits(sync_every=0.05)
        async with (
            asyncio.timeout(TIMEOUT),
            target(echo) as address,
            go_server(address) as (url, [port]),
            our_client(url, limits=often) as client,
        ):
            await forwarded(url)
            kept = await open_stream(port)
            reader, writer = await open_stream(port)
            assert client.link is not None
            streams = client.link.session.streams
            number, forgotten = streams.popitem()  # the newest stream
            assert (await reader.read()).endswith(b"sync from client")
            writer.close()
            streams[number] = forgotten  # to close its socket, too
            forgotten.close()
            assert await echo_once(*kept, b"still there") == b"still there"

    async def test_a_refused_dial_returns_upstreams_error(self) -> None:
        async with asyncio.timeout(TIMEOUT), go_server("127.0.0.1:1") as (url, [port]), our_client(url):
            await forwarded(url)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert (await reader.read()).endswith(b"dial tcp 127.0.0.1:1: connect: connection refused")
            writer.close()

    async def test_a_client_reconnects_to_a_restarted_server(self) -> None:
        async with (
            asyncio.timeout(TIMEOUT),
            target(echo) as address,
            go_server(address) as (url, [port]),
            our_client(url) as client,
        ):
            for _ in range(RECONNECTS):
                await wait_for_answer(port)
                assert client.link is not None
                old_link = client.link
                old_link.close()
                await old_link.done
            assert client.attempts >= RECONNECTS

    async def test_all_sessions_reconnect_after_a_simultaneous_end(self) -> None:
        keys = [KEY, *(f"storm-{number}" for number in range(1, STORM))]
        async with (
            asyncio.timeout(TIMEOUT),
            target(echo) as address,
            go_server(address) as (url, [port]),
            contextlib.AsyncExitStack() as stack,
        ):
            ours = [our_client(url, HEADERS | {"X-Tunnel-Key": key}) for key in keys]
            clients = [await stack.enter_async_context(each) for each in ours]
            for storms in range(3):
                while any(client.attempts <= storms or not is_up(client) for client in clients):
                    await asyncio.sleep(0.02)
                await wait_for_answer(port)
                assert set(await clients_of(url)) == set(keys)
                for client in clients:
                    assert client.link is not None
                    client.link.close()
