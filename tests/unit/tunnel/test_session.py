"""Sessions: stream lifecycle, authorization, flow control, fairness, keepalive and limits."""

from __future__ import annotations

import struct

import pytest

from herder.tunnel import frames
from herder.tunnel.errors import SessionError, StreamError
from herder.tunnel.frames import Kind
from herder.tunnel.limits import KIB, MIB, Limits
from herder.tunnel.session import Opcode, Session
from herder.tunnel.stream import Stream
from tests.unit.tunnel.sessions import (
    Recorder,
    StreamRecorder,
    client,
    exchange,
    message,
    read_all,
    sent,
    sent_summary,
    server,
)


def connected_pair() -> tuple[Session, Session, Recorder]:
    recorder = Recorder()
    return server(), client(recorder), recorder


class TestStreams:
    def test_a_stream_is_usable_before_the_peer_responds(self) -> None:
        session = server()
        stream = session.connect("tcp", "10.43.0.1:443")
        stream.send(b"hello")
        assert sent_summary(session) == ["CONNECT 2 tcp/10.43.0.1:443", "DATA 2 hello"]
        assert session.connect("tcp", "b:1").id == 3

    def test_both_ends_exchange_data_and_close(self) -> None:
        server_session, client_session, recorder = connected_pair()
        dialed = server_session.connect("tcp", "a:1")
        dialed.send(b"question")
        exchange(server_session, client_session)
        [accepted] = recorder.streams
        assert (accepted.proto, accepted.address) == ("tcp", "a:1")
        assert read_all(accepted) == b"question"
        accepted.send(b"answer")
        accepted.close()
        exchange(server_session, client_session)
        assert read_all(dialed) == b"answer"
        assert dialed.at_end
        dialed.raise_error()  # raises nothing
        assert not server_session.streams
        assert not client_session.streams

    def test_a_close_follows_pending_data(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        stream.send(b"last words")
        stream.close()
        assert sent_summary(session) == ["CONNECT 2 tcp/a:1", "DATA 2 last words", "ERROR 2 EOF"]

    def test_an_abort_drops_pending_data(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        stream.send(b"never mind")
        stream.abort("no longer wanted")
        assert sent_summary(session) == ["CONNECT 2 tcp/a:1", "ERROR 2 no longer wanted"]

    def test_a_failed_dial_ends_the_stream_after_received_data(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        recorder = StreamRecorder(stream)
        session.receive(message(Kind.DATA, 2, b"some"))
        session.receive(message(Kind.ERROR, 2, b"dial tcp a:1: connect: connection refused"))
        assert recorder.events == ["ended"]
        assert read_all(stream) == b"some"
        with pytest.raises(StreamError, match=r"^dial tcp a:1: connect: connection refused$"):
            stream.raise_error()
        with pytest.raises(StreamError, match="connection refused"):
            stream.send(b"more")

    def test_messages_for_closed_streams_are_ignored(self) -> None:
        session = server()
        session.connect("tcp", "a:1")
        sent(session)
        for _ in range(2):  # the Go client sends two for each stream it closes
            session.receive(message(Kind.ERROR, 2, b"EOF"))
        session.receive(message(Kind.PAUSE, 2))
        session.receive(message(Kind.RESUME, 99))
        assert sent_summary(session) == []

    def test_data_for_an_unknown_stream_is_answered_with_an_error(self) -> None:
        session = server()
        session.receive(message(Kind.DATA, 9, b"x"))
        assert sent_summary(session) == ["ERROR 9 connection not found c-m/77/9"]

    def test_unknown_kinds_are_ignored(self) -> None:
        session = server()
        session.receive(bytearray(frames.varint(1) + frames.varint(2) + frames.varint(42) + b"future"))
        assert sent_summary(session) == []

    def test_a_lost_session_ends_its_streams(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        session.end()
        with pytest.raises(StreamError, match=r"^tunnel disconnect$"):
            stream.raise_error()
        with pytest.raises(SessionError, match="tunnel disconnect"):
            session.connect("tcp", "a:1")

    def test_data_after_close_is_discarded(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        session.receive(message(Kind.PAUSE, 2))
        stream.send(b"held")
        stream.close()
        session.receive(message(Kind.DATA, 2, bytes(MIB)))
        assert session.buffered == 0
        session.receive(message(Kind.RESUME, 2))
        assert sent_summary(session) == ["CONNECT 2 tcp/a:1", "DATA 2 held", "ERROR 2 EOF"]


class TestAuthorization:
    def test_a_server_rejects_dials_of_its_client(self) -> None:
        with pytest.raises(SessionError, match=r"^connect not allowed$"):
            server().receive(message(Kind.CONNECT, 2, b"tcp/127.0.0.1:22"))

    def test_a_dial_denied_by_policy_ends_the_session(self) -> None:
        requests: list[tuple[str, str]] = []

        def deny_all(proto: str, address: str) -> bool:
            requests.append((proto, address))
            return False

        with pytest.raises(SessionError, match=r"^connect not allowed$"):
            client(Recorder(), authorize=deny_all).receive(message(Kind.CONNECT, 2, b"unix//run/docker.sock"))
        assert requests == [("unix", "/run/docker.sock")]

    @pytest.mark.parametrize("number", [2, -1])
    def test_a_duplicate_or_negative_stream_id_is_rejected(self, number: int) -> None:
        session = client(Recorder())
        session.receive(message(Kind.CONNECT, 2, b"tcp/a:1"))
        with pytest.raises(SessionError, match="negative or already open"):
            session.receive(message(Kind.CONNECT, number, b"tcp/a:1"))

    def test_only_a_peer_can_announce_clients(self) -> None:
        for peering, known in ((True, {"c-m-b": frozenset({5})}), (False, {})):
            session = server(peering=peering)
            session.receive(message(Kind.ADD_CLIENT, 0, b"c-m-b/5"))
            session.receive(message(Kind.ADD_CLIENT, 0, b"c-m-c/6"))
            session.receive(message(Kind.REMOVE_CLIENT, 0, b"c-m-c/6"))
            session.receive(message(Kind.REMOVE_CLIENT, 0, b"c-m-d/6"))
            assert session.remote_clients == known

    def test_announced_clients_are_limited(self) -> None:
        session = server(peering=True, limits=Limits(announced_clients=3))
        for number in range(3):
            session.receive(message(Kind.ADD_CLIENT, 0, b"key-%d/1" % number))
        with pytest.raises(SessionError, match="more than 3 clients"):
            session.receive(message(Kind.ADD_CLIENT, 0, b"key-3/1"))

    def test_local_clients_are_announced(self) -> None:
        session = client(Recorder())
        session.announce("c-m", 5, present=True)
        session.announce("c-m", 5, present=False)
        assert sent_summary(session) == ["ADD_CLIENT 0 c-m/5", "REMOVE_CLIENT 0 c-m/5"]


def fill(session: Session, stream: Stream, size: int, chunk_size: int = 32 * KIB) -> None:
    """Send data as a peer that has not received a PAUSE yet."""
    while size > 0 and stream.open:
        session.receive(message(Kind.DATA, stream.id, bytes(min(chunk_size, size))))
        size -= chunk_size


class TestFlowControl:
    def test_a_sender_is_paused_above_two_mebibytes_and_resumed_below_a_quarter(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        sent(session)
        fill(session, stream, 2 * MIB)
        assert sent_summary(session) == []
        fill(session, stream, 1)
        assert sent_summary(session) == ["PAUSE 2"]
        fill(session, stream, MIB)
        assert sent_summary(session) == [], "one PAUSE is enough"
        while stream.buffered - 32 * KIB >= 256 * KIB:
            stream.take()
        assert sent_summary(session) == []
        stream.take()
        assert sent_summary(session) == ["RESUME 2"]

    def test_a_paused_writer_waits_and_others_do_not(self) -> None:
        session = server()
        paused, writable = session.connect("tcp", "a:1"), session.connect("tcp", "b:1")
        sent(session)
        session.receive(message(Kind.PAUSE, paused.id))
        paused.send(b"held")
        writable.send(b"free")
        assert sent_summary(session) == ["DATA 3 free"]
        session.receive(message(Kind.RESUME, paused.id))
        assert sent_summary(session) == ["DATA 2 held"]

    def test_pausing_the_peer_does_not_block_writes(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        sent(session)
        fill(session, stream, 3 * MIB)
        stream.send(b"still speaking")
        assert sent_summary(session) == ["PAUSE 2", "DATA 2 still speaking"]

    def test_ignoring_a_pause_ends_the_stream_and_not_the_session(self) -> None:
        session = server()
        ignoring_pause, other = session.connect("tcp", "a:1"), session.connect("tcp", "b:1")
        sent(session)
        fill(session, ignoring_pause, 100 * MIB)
        assert not ignoring_pause.open
        assert session.buffered <= session.limits.stream_bytes
        assert sent_summary(session)[-1].startswith("ERROR 2 reader is too slow")
        assert session.traffic.overflows == 1
        assert other.open

    def test_one_byte_messages_are_merged(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        fill(session, stream, 100_000, chunk_size=1)
        taken = [stream.take() for _ in range(5)]
        assert [len(chunk) for chunk in taken] == [28672, 28672, 28672, 13984, 0]

    def test_a_crowded_session_pauses_early_and_is_bounded(self) -> None:
        session = server(limits=Limits(session_bytes=4 * MIB))
        streams = [session.connect("tcp", f"a:{number}") for number in range(40)]
        sent(session)
        for stream in streams[:2]:
            fill(session, stream, 1 * MIB)
        assert sent_summary(session) == [], "half full is not crowded"
        fill(session, streams[2], 128 * KIB)
        assert sent_summary(session) == ["PAUSE 4"]
        for stream in streams:
            fill(session, stream, 1 * MIB)
        assert session.buffered <= 4 * MIB
        assert session.traffic.overflows > 0

    def test_closing_a_stream_releases_its_buffer(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        fill(session, stream, MIB)
        stream.close()
        assert session.buffered == 0


class TestPeerWithOnePauseFlag:
    """remotedialer has one pause flag: its own RESUME clears our PAUSE, and our RESUME clears its own."""

    def test_a_resume_of_the_peer_repeats_our_pause(self) -> None:
        session = server(one_flag=True)
        stream = session.connect("tcp", "a:1")
        fill(session, stream, 3 * MIB)
        sent(session)
        session.receive(message(Kind.RESUME, 2))
        assert sent_summary(session) == ["PAUSE 2"]

    def test_our_resume_also_resumes_our_writes(self) -> None:
        session = server(one_flag=True)
        stream = session.connect("tcp", "a:1")
        fill(session, stream, 3 * MIB)
        session.receive(message(Kind.PAUSE, 2))
        stream.send(b"waiting")
        sent(session)
        read_all(stream)
        assert sent_summary(session) == ["RESUME 2", "DATA 2 waiting"]

    def test_a_pause_is_repeated_before_the_stream_is_ended(self) -> None:
        session = server(one_flag=True)
        stream = session.connect("tcp", "a:1")
        sent(session)
        fill(session, stream, 10 * MIB)
        assert sent_summary(session).count("PAUSE 2") > 2
        assert stream.open


def next_frames(session: Session, count: int) -> list[tuple[int, int]]:
    """Return the stream and the size of each of the next messages."""
    messages = [session.next_message() for _ in range(count)]
    return [(frames.decode(message.head).connection, len(message.body)) for message in messages if message]


class TestFairness:
    def test_a_small_request_passes_a_bulk_transfer(self) -> None:
        session = server()
        bulk, small = session.connect("tcp", "bulk:1"), session.connect("tcp", "small:1")
        sent(session)
        bulk.send(bytes(10 * MIB))
        small.send(b"quick")
        turns = [session.next_message() for _ in range(3)]
        assert [len(turn.body) for turn in turns if turn] == [32 * KIB, 5, 32 * KIB]

    def test_a_small_request_passes_many_bulk_transfers(self) -> None:
        session = server()
        bulk = [session.connect("tcp", "bulk:1") for _ in range(50)]
        small = session.connect("tcp", "small:1")
        sent(session)
        for stream in bulk:
            stream.send(bytes(MIB))
        for _ in range(75):
            session.next_message()
        small.send(b"quick")
        assert [connection for connection, _ in next_frames(session, 2)] == [small.id, bulk[25].id]

    def test_a_chatty_stream_does_not_starve_the_others(self) -> None:
        session = server()
        bulk, chatty = session.connect("tcp", "bulk:1"), session.connect("tcp", "talker:1")
        sent(session)
        bulk.send(bytes(MIB))
        session.next_message()
        turns = []
        for _ in range(6):
            chatty.send(b"me again")
            turns += next_frames(session, 1)
        assert [connection for connection, _ in turns] == [chatty.id, bulk.id] * 3

    def test_streams_alternate_by_chunk(self) -> None:
        session = server()
        streams = [session.connect("tcp", f"a:{number}") for number in range(3)]
        sent(session)
        for stream in streams:
            stream.send(bytes(64 * KIB))
        assert [frame.connection for frame in sent(session)] == [2, 3, 4, 2, 3, 4]

    def test_control_messages_pass_data(self) -> None:
        session = server()
        session.connect("tcp", "a:1").send(bytes(MIB))
        sent_first = session.next_message()
        assert sent_first
        session.next_message()
        session.connect("tcp", "b:1")
        turn = session.next_message()
        assert turn
        assert frames.decode(turn.head).kind == Kind.CONNECT

    def test_small_writes_are_merged(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        sent(session)
        for _ in range(1000):
            stream.send(b"0123456789")
        assert [len(frame.payload) for frame in sent(session)] == [10_000]

    def test_a_writer_is_notified_when_it_can_continue(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        recorder = StreamRecorder(stream)
        assert stream.send(bytes(255 * KIB))
        assert not stream.send(bytes(KIB))
        while stream.queued > 160 * KIB:
            session.next_message()
        assert recorder.events == []
        session.next_message()
        assert recorder.events == ["writable"]
        assert stream.send(b"more")


class TestSync:
    def test_a_client_sends_its_stream_list_every_minute(self) -> None:
        session = client(Recorder())
        session.receive(message(Kind.CONNECT, 7, b"tcp/a:1"))
        session.receive(message(Kind.CONNECT, 2, b"tcp/a:1"))
        session.received_pong(44)
        session.tick(59.9)
        assert sent(session) == []
        session.tick(60)
        assert [bytes(frame.payload) for frame in sent(session)] == [struct.pack("<QQ", 2, 7)]

    def test_streams_missing_from_the_list_are_dropped_silently(self) -> None:
        session = server()
        known, unknown = session.connect("tcp", "a:1"), session.connect("tcp", "b:1")
        sent(session)
        session.receive(message(Kind.DATA, unknown.id, b"x"))
        session.receive(message(Kind.SYNC, 0, frames.connections([known.id])))
        assert list(session.streams.values()) == [known]
        with pytest.raises(StreamError, match=r"^sync from client$"):
            unknown.raise_error()
        assert sent_summary(session) == []

    def test_a_new_stream_may_be_missing_from_one_list(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        session.receive(message(Kind.SYNC, 0, b""))
        assert stream.open
        session.receive(message(Kind.SYNC, 0, b""))
        assert not stream.open


class TestKeepalive:
    def test_a_client_pings_every_five_seconds(self) -> None:
        session = client(Recorder())
        assert session.tick(0) == 5
        assert session.next_message() is None
        assert session.tick(5) == 10
        ping = session.next_message()
        assert ping
        assert ping.opcode == Opcode.PING

    def test_a_server_responds_to_pings_and_sends_none(self) -> None:
        session = server()
        assert session.tick(30) == 45
        assert session.next_message() is None
        session.received_ping(b"a", 30)
        session.received_ping(b"b", 31)
        pong = session.next_message()
        assert pong
        assert (pong.opcode, pong.head) == (Opcode.PONG, b"b")
        assert session.next_message() is None
        assert session.tick(60) == 76

    def test_a_session_without_pings_ends_despite_data(self) -> None:
        session = server()
        session.connect("tcp", "a:1")
        session.receive(message(Kind.DATA, 2, b"busy"))
        with pytest.raises(SessionError, match="no ping or pong for 45 s"):
            session.tick(45)

    def test_a_pong_extends_the_timeout(self) -> None:
        session = client(Recorder())
        session.received_pong(44)
        session.tick(88)
        with pytest.raises(SessionError, match="i/o timeout"):
            session.tick(89)


class TestLimits:
    def test_a_peer_that_does_not_read_responses_is_disconnected(self) -> None:
        session = server()
        for _ in range(50_000):
            session.receive(message(Kind.DATA, 9, b"x"))
        with pytest.raises(SessionError, match="does not read"):
            sent(session)

    def test_the_number_of_streams_is_limited(self) -> None:
        session = server(limits=Limits(streams=2))
        session.connect("tcp", "a:1")
        session.connect("tcp", "a:1")
        with pytest.raises(StreamError, match="limit of 2 streams"):
            session.connect("tcp", "a:1")
        dialed = client(Recorder(), limits=Limits(streams=1))
        dialed.receive(message(Kind.CONNECT, 2, b"tcp/a:1"))
        dialed.receive(message(Kind.CONNECT, 3, b"tcp/a:1"))
        assert sent_summary(dialed) == ["ERROR 3 too many connections"]
