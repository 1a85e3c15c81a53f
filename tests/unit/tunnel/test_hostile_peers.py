"""Hostile peers: memory stays below a bound, whatever bytes they send."""

from __future__ import annotations

import asyncio
import base64
import gc
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from herder.tunnel import frames, websocket
from herder.tunnel.errors import SessionError
from herder.tunnel.frames import Kind
from herder.tunnel.limits import KIB, MIB, Limits
from herder.tunnel.link import Link
from herder.tunnel.registry import Registry
from herder.tunnel.server import serve
from herder.tunnel.session import Opcode, Role, Session, Traffic
from herder.tunnel.stream import Stream
from herder.tunnel.websocket import FrameReader, frame_head
from tests.unit.tunnel.endpoints import HEADERS, KEY, authenticate, tls
from tests.unit.tunnel.sessions import client, server

LIMITS = Limits(
    pause_above=64 * KIB,
    resume_below=16 * KIB,
    in_flight=256 * KIB,
    session_bytes=1 * MIB,
    control_bytes=16 * KIB,
    message_bytes=256 * KIB,
    streams=100,
    announced_clients=100,
)
BOUND = (
    LIMITS.session_bytes  # received and not yet read
    + 3 * LIMITS.message_bytes  # one incoming message, as frames and reassembled
    + 8 * LIMITS.control_bytes  # control messages, as objects
    + 4 * KIB * (LIMITS.streams + LIMITS.announced_clients)
)
FLOOD_BYTES = 8 * MIB
FLOOD_COUNT = 12_000  # enough that even the smallest objects exceed the bound unless they are limited

Attack = Callable[[], Iterator[bytes]]


class NullObserver:
    """Keeps nothing, so that only the session's own memory is measured."""

    def outgoing(self) -> None: ...

    def opened(self, stream: Stream) -> None: ...


def frame(payload: bytes, opcode: int = Opcode.BINARY, *, final: bool = True) -> bytes:
    head = frame_head(opcode, len(payload), b"")
    return (head if final else bytes((head[0] & 0x7F, *head[1:]))) + payload


def message(kind: Kind, connection: int, payload: bytes = b"") -> bytes:
    return frame(frames.head(1, connection, kind) + payload)


# --- attacks ---------------------------------------------------------------------------------------------------------


def data_on_a_paused_stream() -> Iterator[bytes]:
    yield from [message(Kind.DATA, 2, bytes(32 * KIB))] * (FLOOD_BYTES // (32 * KIB))


def data_on_all_streams() -> Iterator[bytes]:
    for number in range(FLOOD_BYTES // (32 * KIB)):
        yield message(Kind.DATA, 2 + number % LIMITS.streams, bytes(32 * KIB))


def data_in_the_largest_messages() -> Iterator[bytes]:
    complete = message(Kind.DATA, 2, bytes(LIMITS.message_bytes - 16))
    for _ in range(FLOOD_BYTES // len(complete)):
        yield from (complete[at : at + 64 * KIB] for at in range(0, len(complete), 64 * KIB))


def an_endless_fragmented_message() -> Iterator[bytes]:
    yield frame(frames.head(1, 2, Kind.DATA), final=False)
    yield from [frame(bytes(32 * KIB), opcode=0, final=False)] * (FLOOD_BYTES // (32 * KIB))


def one_byte_messages() -> Iterator[bytes]:
    yield from [message(Kind.DATA, 2, b"x")] * FLOOD_COUNT


def data_for_unknown_streams() -> Iterator[bytes]:
    for number in range(FLOOD_COUNT):
        yield message(Kind.DATA, 1_000_000 + number, b"x")


def pauses_and_resumes() -> Iterator[bytes]:
    yield from [message(Kind.DATA, 2, bytes(128 * KIB))]
    yield from [message(Kind.PAUSE, 2) + message(Kind.RESUME, 2)] * FLOOD_COUNT


def long_lists_of_streams() -> Iterator[bytes]:
    count = LIMITS.message_bytes // 8 - 2
    yield from [message(Kind.SYNC, 0, struct.pack(f"<{count}Q", *range(1 << 40, (1 << 40) + count)))] * 3


def pings() -> Iterator[bytes]:
    yield from [frame(b"p" * 125, Opcode.PING)] * FLOOD_COUNT


def too_many_clients() -> Iterator[bytes]:
    for number in range(FLOOD_COUNT):
        yield message(Kind.ADD_CLIENT, 0, frames.client(f"client-{number}", number))


def too_many_connects() -> Iterator[bytes]:
    for number in range(FLOOD_COUNT):
        yield message(Kind.CONNECT, number, b"tcp/10.0.0.1:443")


def connects_closed_immediately() -> Iterator[bytes]:
    for number in range(FLOOD_COUNT):
        yield message(Kind.CONNECT, number, b"tcp/10.0.0.1:443") + message(Kind.ERROR, number, b"EOF")


ATTACKS_ON_BOTH: tuple[Attack, ...] = (
    data_on_a_paused_stream,
    data_on_all_streams,
    data_in_the_largest_messages,
    an_endless_fragmented_message,
    one_byte_messages,
    data_for_unknown_streams,
    pauses_and_resumes,
    long_lists_of_streams,
    pings,
)
ATTACKS_ON_SERVERS: tuple[Attack, ...] = (too_many_clients,)
ATTACKS_ON_CLIENTS: tuple[Attack, ...] = (too_many_connects, connects_closed_immediately)


# --- effects ----------------------------------------------------------------------------------------------------------


def server_with_streams() -> Session:
    """Return a server session that has dialed through its client and does not read."""
    session = server(NullObserver(), limits=LIMITS, peering=True, one_flag=True)
    for _ in range(LIMITS.streams):
        session.connect("tcp", "10.0.0.1:443")
    while session.next_message():
        pass
    return session


def idle_client() -> Session:
    return client(NullObserver(), limits=LIMITS, one_flag=True)


def peak_memory(session: Session, attack: Attack, *, read: bool) -> int:
    """Return the peak memory of a session under attack; with `read`, the peer reads the responses."""

    def deliver(opcode: int, payload: bytearray) -> None:
        if opcode == Opcode.PING:
            session.received_ping(bytes(payload), 0)
        else:
            session.receive(payload)
        while read and session.next_message() is not None:
            pass

    reader = FrameReader(deliver, masked=False, limit=LIMITS.message_bytes)
    gc.collect()
    tracemalloc.start()
    try:
        for chunk in attack():
            reader.feed(memoryview(chunk))
    except SessionError:
        session.end()
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def test_all_sessions_together_respect_the_memory_limit() -> None:
    """An agent opens many sessions, and the requester reads none of the responses."""
    limits = replace(LIMITS, total_bytes=2 * MIB, share_bytes=64 * KIB, streams=100)
    traffic = Traffic()
    sessions = [server(NullObserver(), limits=limits, traffic=traffic) for _ in range(50)]
    for session in sessions:
        for stream in [session.connect("tcp", "a:1") for _ in range(8)]:
            for _ in range(4):
                session.receive(frames.head(1, stream.id, Kind.DATA) + bytes(64 * KIB - 1))
    buffered = sum(session.buffered for session in sessions)
    assert buffered == traffic.buffered <= limits.total_bytes + len(sessions) * limits.share_bytes

    reading = server(NullObserver(), limits=limits, traffic=traffic)
    stream = reading.connect("tcp", "a:1")
    for _ in range(100):
        reading.receive(frames.head(1, stream.id, Kind.DATA) + bytes(32 * KIB))
        assert stream.take(), "a reading session is not closed because others do not read"
    for session in sessions:
        session.end()
    assert traffic.buffered == 0


async def test_unfinished_messages_respect_the_memory_limit_of_all_sessions() -> None:
    limits = replace(LIMITS, total_bytes=1 * MIB, share_bytes=16 * KIB)
    traffic = Traffic()
    unfinished = frame_head(Opcode.BINARY, LIMITS.message_bytes, bytes(4)) + bytes(LIMITS.message_bytes - 1)
    links = [Link(Role.SERVER, "c-m", limits=limits, traffic=traffic) for _ in range(20)]
    for link in links:
        for start in range(0, len(unfinished), 64 * KIB):
            chunk = unfinished[start : start + 64 * KIB]
            link.get_buffer(len(chunk))[: len(chunk)] = chunk
            link.buffer_updated(len(chunk))
    assert traffic.buffered <= limits.total_bytes + len(links) * limits.share_bytes
    assert [link.alive for link in links[:3]] == [True] * 3, "within the limit"
    assert not links[-1].alive
    for link in links:
        link.connection_lost(None)
    assert traffic.buffered == 0


@pytest.mark.parametrize("read", [True, False], ids=["reading", "deaf"])
@pytest.mark.parametrize("attack", ATTACKS_ON_BOTH + ATTACKS_ON_SERVERS)
def test_the_memory_of_a_server_is_bounded_under_attack(attack: Attack, read: bool) -> None:
    assert peak_memory(server_with_streams(), attack, read=read) < BOUND


@pytest.mark.parametrize("read", [True, False], ids=["reading", "deaf"])
@pytest.mark.parametrize("attack", ATTACKS_ON_BOTH + ATTACKS_ON_CLIENTS)
def test_the_memory_of_a_client_is_bounded_under_attack(attack: Attack, read: bool) -> None:
    assert peak_memory(idle_client(), attack, read=read) < BOUND


async def test_many_small_messages_are_handled_in_several_loop_iterations() -> None:
    """43,000 pings fit into one read. Handled at once, they would block every other client."""
    link = Link(Role.SERVER, "c-m")
    link.connection_made(Transport())
    handled = 0

    def pong(now: float) -> None:
        nonlocal handled
        handled += 1

    link.session.received_pong = pong  # type: ignore[method-assign]
    pongs = frame_head(Opcode.PONG, 0, bytes(4)) * 20_000
    link.get_buffer(len(pongs))[: len(pongs)] = pongs
    link.buffer_updated(len(pongs))
    first = handled
    more = frame_head(Opcode.PONG, 0, bytes(4)) * 10  # TLS delivers data that it decrypted before reading was paused
    link.get_buffer(len(more))[: len(more)] = more
    link.buffer_updated(len(more))
    peak = first
    for _ in range(100):
        before = handled
        await asyncio.sleep(0)
        peak = max(peak, handled - before)
    link.close()
    link.connection_lost(None)
    assert (handled, link.session.traffic.buffered) == (20_010, 0)
    assert peak <= 1_000


def test_an_oversized_connection_list_ends_the_session() -> None:
    session = server(NullObserver(), limits=LIMITS)
    listed = [session.connect("tcp", "a:1").id for _ in range(LIMITS.streams)]
    session.receive(frames.head(1, 0, Kind.SYNC) + frames.connections(listed))
    assert len(session.streams) == LIMITS.streams
    with pytest.raises(SessionError, match="connection list"):
        session.receive(frames.head(1, 0, Kind.SYNC) + frames.connections(range(10 * LIMITS.streams)))


async def test_sessions_above_the_limit_end_without_the_clients_cooperation() -> None:
    """Each session uses a file descriptor and memory, and TLS waits for the peer before it closes a connection."""
    serving, trusting = tls()
    registry = Registry(sessions_per_key=2)
    listener = await serve(registry, authenticate, context=serving)
    port = listener.sockets[0].getsockname()[1]
    writers = []
    try:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            writers.append(writer)
            writer.write(websocket.request("tunnel.example", "/", HEADERS, base64.b64encode(bytes(16)).decode()))
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)
        sessions, alive = registry.counters.sessions, len(registry.sessions(KEY))
    finally:
        for writer in writers:
            writer.transport.abort()
        registry.close()
        listener.close()
        while registry.counters.sessions:
            await asyncio.sleep(0.01)
    assert (alive, sessions) == (2, 4), "including closing sessions"


class Transport(asyncio.Transport):
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def writelines(self, list_of_data: object) -> None: ...

    def close(self) -> None: ...
