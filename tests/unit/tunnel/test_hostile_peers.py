"""Peers that do their worst, from the bytes on the wire on: memory stays below one bound, whatever they send."""

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
from tests.unit.tunnel.cores import client, server
from tests.unit.tunnel.world import HEADERS, KEY, authenticate, tls

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
    LIMITS.session_bytes  # what is received and not read
    + 3 * LIMITS.message_bytes  # one that arrives, as frames and as a whole
    + 8 * LIMITS.control_bytes  # short answers, as objects
    + 4 * KIB * (LIMITS.streams + LIMITS.announced_clients)
)
MUCH = 8 * MIB
MANY = 12_000  # of the smallest things: without a limit they would take more than the bound

Attack = Callable[[], Iterator[bytes]]


class Forgetful:
    """Observes a session and keeps nothing: what is measured is the session's own."""

    def outgoing(self) -> None: ...

    def opened(self, stream: Stream) -> None: ...


def frame(payload: bytes, opcode: int = Opcode.BINARY, *, final: bool = True) -> bytes:
    head = frame_head(opcode, len(payload), b"")
    return (head if final else bytes((head[0] & 0x7F, *head[1:]))) + payload


def message(kind: Kind, connection: int, payload: bytes = b"") -> bytes:
    return frame(frames.head(1, connection, kind) + payload)


# --- what they send ---------------------------------------------------------------------------------------------------


def data_on_one_stream_that_was_paused() -> Iterator[bytes]:
    yield from [message(Kind.DATA, 2, bytes(32 * KIB))] * (MUCH // (32 * KIB))


def data_on_all_streams() -> Iterator[bytes]:
    for number in range(MUCH // (32 * KIB)):
        yield message(Kind.DATA, 2 + number % LIMITS.streams, bytes(32 * KIB))


def data_in_the_largest_messages() -> Iterator[bytes]:
    whole = message(Kind.DATA, 2, bytes(LIMITS.message_bytes - 16))
    for _ in range(MUCH // len(whole)):
        yield from (whole[at : at + 64 * KIB] for at in range(0, len(whole), 64 * KIB))


def a_message_in_pieces_that_never_ends() -> Iterator[bytes]:
    yield frame(frames.head(1, 2, Kind.DATA), final=False)
    yield from [frame(bytes(32 * KIB), opcode=0, final=False)] * (MUCH // (32 * KIB))


def a_byte_in_each_message() -> Iterator[bytes]:
    yield from [message(Kind.DATA, 2, b"x")] * MANY


def data_for_streams_that_are_not_there() -> Iterator[bytes]:
    for number in range(MANY):
        yield message(Kind.DATA, 1_000_000 + number, b"x")


def pauses_and_resumes() -> Iterator[bytes]:
    yield from [message(Kind.DATA, 2, bytes(128 * KIB))]
    yield from [message(Kind.PAUSE, 2) + message(Kind.RESUME, 2)] * MANY


def long_lists_of_streams() -> Iterator[bytes]:
    count = LIMITS.message_bytes // 8 - 2
    yield from [message(Kind.SYNC, 0, struct.pack(f"<{count}Q", *range(1 << 40, (1 << 40) + count)))] * 3


def pings() -> Iterator[bytes]:
    yield from [frame(b"p" * 125, Opcode.PING)] * MANY


def clients_without_number() -> Iterator[bytes]:
    for number in range(MANY):
        yield message(Kind.ADD_CLIENT, 0, frames.client(f"client-{number}", number))


def connects_without_number() -> Iterator[bytes]:
    for number in range(MANY):
        yield message(Kind.CONNECT, number, b"tcp/10.0.0.1:443")


def connects_taken_back_at_once() -> Iterator[bytes]:
    for number in range(MANY):
        yield message(Kind.CONNECT, number, b"tcp/10.0.0.1:443") + message(Kind.ERROR, number, b"EOF")


TO_ANYONE: tuple[Attack, ...] = (
    data_on_one_stream_that_was_paused,
    data_on_all_streams,
    data_in_the_largest_messages,
    a_message_in_pieces_that_never_ends,
    a_byte_in_each_message,
    data_for_streams_that_are_not_there,
    pauses_and_resumes,
    long_lists_of_streams,
    pings,
)
TO_A_SERVER: tuple[Attack, ...] = (clients_without_number,)
TO_A_CLIENT: tuple[Attack, ...] = (connects_without_number, connects_taken_back_at_once)


# --- what becomes of it -----------------------------------------------------------------------------------------------


def opened_by_us() -> Session:
    """A server that has dialled through its client, and reads nothing of what comes."""
    session = server(Forgetful(), limits=LIMITS, peering=True, one_flag=True)
    for _ in range(LIMITS.streams):
        session.connect("tcp", "10.0.0.1:443")
    while session.next_message():
        pass
    return session


def nothing_opened() -> Session:
    return client(Forgetful(), limits=LIMITS, one_flag=True)


def peak(session: Session, attack: Attack, *, read: bool) -> int:
    """Of the memory that the session takes while it is attacked; `read`: the peer takes what it is answered."""

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
        for piece in attack():
            reader.feed(memoryview(piece))
    except SessionError:
        session.end()
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most


def test_many_sessions_together_hold_no_more_than_they_may() -> None:
    """An agent opens sessions one after the other, and its cluster's owner reads nothing of what is requested."""
    limits = replace(LIMITS, total_bytes=2 * MIB, share_bytes=64 * KIB, streams=100)
    traffic = Traffic()
    sessions = [server(Forgetful(), limits=limits, traffic=traffic) for _ in range(50)]
    for session in sessions:
        for stream in [session.connect("tcp", "a:1") for _ in range(8)]:
            for _ in range(4):
                session.receive(frames.head(1, stream.id, Kind.DATA) + bytes(64 * KIB - 1))
    held = sum(session.buffered for session in sessions)
    assert held == traffic.buffered <= limits.total_bytes + len(sessions) * limits.share_bytes

    modest = server(Forgetful(), limits=limits, traffic=traffic)
    stream = modest.connect("tcp", "a:1")
    for _ in range(100):
        modest.receive(frames.head(1, stream.id, Kind.DATA) + bytes(32 * KIB))
        assert stream.take(), "who reads is not cut off because others do not"
    for session in sessions:
        session.end()
    assert traffic.buffered == 0


async def test_messages_that_never_end_hold_no_more_than_all_sessions_may() -> None:
    limits = replace(LIMITS, total_bytes=1 * MIB, share_bytes=16 * KIB)
    traffic = Traffic()
    begun = frame_head(Opcode.BINARY, LIMITS.message_bytes, bytes(4)) + bytes(LIMITS.message_bytes - 1)
    links = [Link(Role.SERVER, "c-m", limits=limits, traffic=traffic) for _ in range(20)]
    for link in links:
        for start in range(0, len(begun), 64 * KIB):
            piece = begun[start : start + 64 * KIB]
            link.get_buffer(len(piece))[: len(piece)] = piece
            link.buffer_updated(len(piece))
    assert traffic.buffered <= limits.total_bytes + len(links) * limits.share_bytes
    assert [link.alive for link in links[:3]] == [True] * 3, "as long as there is room"
    assert not links[-1].alive
    for link in links:
        link.connection_lost(None)
    assert traffic.buffered == 0


@pytest.mark.parametrize("read", [True, False], ids=["reading", "deaf"])
@pytest.mark.parametrize("attack", TO_ANYONE + TO_A_SERVER)
def test_the_memory_of_a_server_is_bounded(attack: Attack, read: bool) -> None:
    assert peak(opened_by_us(), attack, read=read) < BOUND


@pytest.mark.parametrize("read", [True, False], ids=["reading", "deaf"])
@pytest.mark.parametrize("attack", TO_ANYONE + TO_A_CLIENT)
def test_the_memory_of_a_client_is_bounded(attack: Attack, read: bool) -> None:
    assert peak(nothing_opened(), attack, read=read) < BOUND


async def test_many_small_messages_of_one_read_take_several_turns() -> None:
    """43,000 pings fit into one read. Handled at once they keep every other client waiting."""
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
    more = frame_head(Opcode.PONG, 0, bytes(4)) * 10  # TLS hands on what it had decrypted before it was paused
    link.get_buffer(len(more))[: len(more)] = more
    link.buffer_updated(len(more))
    most = first
    for _ in range(100):
        before = handled
        await asyncio.sleep(0)
        most = max(most, handled - before)
    link.close()
    link.connection_lost(None)
    assert (handled, link.session.traffic.buffered) == (20_010, 0)
    assert most <= 1_000


def test_a_list_of_more_connections_than_a_session_has_ends_it() -> None:
    session = server(Forgetful(), limits=LIMITS)
    listed = [session.connect("tcp", "a:1").id for _ in range(LIMITS.streams)]
    session.receive(frames.head(1, 0, Kind.SYNC) + frames.connections(listed))
    assert len(session.streams) == LIMITS.streams
    with pytest.raises(SessionError, match="connection list"):
        session.receive(frames.head(1, 0, Kind.SYNC) + frames.connections(range(10 * LIMITS.streams)))


async def test_sessions_above_the_limit_end_also_if_their_client_does_not_say_goodbye() -> None:
    """Each takes a file descriptor and memory, and TLS waits for the other side before it closes a connection."""
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
    assert (alive, sessions) == (2, 4), "those that are closing included"


class Transport(asyncio.Transport):
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def writelines(self, list_of_data: object) -> None: ...

    def close(self) -> None: ...
