"""A session: streams and how they end, pausing, fairness, limits, time."""

from __future__ import annotations

import struct

import pytest

from herder.tunnel import frames
from herder.tunnel.errors import SessionError, StreamError
from herder.tunnel.frames import Kind
from herder.tunnel.limits import KIB, MIB, Limits
from herder.tunnel.session import Opcode, Session
from herder.tunnel.stream import Stream
from tests.unit.tunnel.cores import News, Recorder, client, everything, exchange, message, said, sent, server


def pair() -> tuple[Session, Session, Recorder]:
    recorder = Recorder()
    return server(), client(recorder), recorder


class TestLife:
    def test_a_stream_is_used_before_anyone_has_answered(self) -> None:
        session = server()
        stream = session.connect("tcp", "10.43.0.1:443")
        stream.send(b"hello")
        assert said(session) == ["CONNECT 2 tcp/10.43.0.1:443", "DATA 2 hello"]
        assert session.connect("tcp", "b:1").id == 3

    def test_both_ends_say_what_they_have_to_say(self) -> None:
        there, here, recorder = pair()
        asked = there.connect("tcp", "a:1")
        asked.send(b"question")
        exchange(there, here)
        [answering] = recorder.streams
        assert (answering.proto, answering.address) == ("tcp", "a:1")
        assert everything(answering) == b"question"
        answering.send(b"answer")
        answering.close()
        exchange(there, here)
        assert everything(asked) == b"answer"
        assert asked.at_end
        asked.raise_error()  # there is none
        assert not there.streams
        assert not here.streams

    def test_a_close_follows_what_was_sent_before_it(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        stream.send(b"last words")
        stream.close()
        assert said(session) == ["CONNECT 2 tcp/a:1", "DATA 2 last words", "ERROR 2 EOF"]

    def test_an_abort_drops_what_was_not_sent(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        stream.send(b"never mind")
        stream.abort("no longer wanted")
        assert said(session) == ["CONNECT 2 tcp/a:1", "ERROR 2 no longer wanted"]

    def test_a_failed_dial_ends_the_stream_after_what_came_before(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        news = News(stream)
        session.receive(message(Kind.DATA, 2, b"some"))
        session.receive(message(Kind.ERROR, 2, b"dial tcp a:1: connect: connection refused"))
        assert news.told == ["ended"]
        assert everything(stream) == b"some"
        with pytest.raises(StreamError, match=r"^dial tcp a:1: connect: connection refused$"):
            stream.raise_error()
        with pytest.raises(StreamError, match="connection refused"):
            stream.send(b"more")

    def test_errors_for_streams_that_are_gone_are_ignored(self) -> None:
        session = server()
        session.connect("tcp", "a:1")
        sent(session)
        for _ in range(2):  # the Go client sends two for each stream that it closes
            session.receive(message(Kind.ERROR, 2, b"EOF"))
        session.receive(message(Kind.PAUSE, 2))
        session.receive(message(Kind.RESUME, 99))
        assert said(session) == []

    def test_data_for_a_stream_that_is_not_there_is_answered(self) -> None:
        session = server()
        session.receive(message(Kind.DATA, 9, b"x"))
        assert said(session) == ["ERROR 9 connection not found c-m/77/9"]

    def test_unknown_kinds_are_ignored(self) -> None:
        session = server()
        session.receive(bytearray(frames.varint(1) + frames.varint(2) + frames.varint(42) + b"future"))
        assert said(session) == []

    def test_a_lost_session_ends_its_streams(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        session.end()
        with pytest.raises(StreamError, match=r"^tunnel disconnect$"):
            stream.raise_error()
        with pytest.raises(SessionError, match="tunnel disconnect"):
            session.connect("tcp", "a:1")

    def test_data_after_our_close_is_thrown_away(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        session.receive(message(Kind.PAUSE, 2))
        stream.send(b"held")
        stream.close()
        session.receive(message(Kind.DATA, 2, bytes(MIB)))
        assert session.buffered == 0
        session.receive(message(Kind.RESUME, 2))
        assert said(session) == ["CONNECT 2 tcp/a:1", "DATA 2 held", "ERROR 2 EOF"]


class TestRights:
    def test_a_server_dials_nothing_for_its_client(self) -> None:
        with pytest.raises(SessionError, match=r"^connect not allowed$"):
            server().receive(message(Kind.CONNECT, 2, b"tcp/127.0.0.1:22"))

    def test_a_dial_that_the_policy_refuses_ends_the_session(self) -> None:
        asked: list[tuple[str, str]] = []

        def nothing(proto: str, address: str) -> bool:
            asked.append((proto, address))
            return False

        with pytest.raises(SessionError, match=r"^connect not allowed$"):
            client(Recorder(), authorize=nothing).receive(message(Kind.CONNECT, 2, b"unix//run/docker.sock"))
        assert asked == [("unix", "/run/docker.sock")]

    @pytest.mark.parametrize("number", [2, -1])
    def test_a_number_is_not_opened_twice_nor_negative(self, number: int) -> None:
        session = client(Recorder())
        session.receive(message(Kind.CONNECT, 2, b"tcp/a:1"))
        with pytest.raises(SessionError, match="negative or already open"):
            session.receive(message(Kind.CONNECT, number, b"tcp/a:1"))

    def test_only_a_peer_speaks_for_other_clients(self) -> None:
        for peering, known in ((True, {"c-m-b": frozenset({5})}), (False, {})):
            session = server(peering=peering)
            session.receive(message(Kind.ADD_CLIENT, 0, b"c-m-b/5"))
            session.receive(message(Kind.ADD_CLIENT, 0, b"c-m-c/6"))
            session.receive(message(Kind.REMOVE_CLIENT, 0, b"c-m-c/6"))
            session.receive(message(Kind.REMOVE_CLIENT, 0, b"c-m-d/6"))
            assert session.remote_clients == known

    def test_a_peer_cannot_fill_our_memory_with_clients(self) -> None:
        session = server(peering=True, limits=Limits(announced_clients=3))
        for number in range(3):
            session.receive(message(Kind.ADD_CLIENT, 0, b"key-%d/1" % number))
        with pytest.raises(SessionError, match="more than 3 clients"):
            session.receive(message(Kind.ADD_CLIENT, 0, b"key-3/1"))

    def test_our_own_clients_are_announced(self) -> None:
        session = client(Recorder())
        session.announce("c-m", 5, present=True)
        session.announce("c-m", 5, present=False)
        assert said(session) == ["ADD_CLIENT 0 c-m/5", "REMOVE_CLIENT 0 c-m/5"]


def fill(session: Session, stream: Stream, size: int, piece: int = 32 * KIB) -> None:
    """As a peer that has not heard of any PAUSE yet."""
    while size > 0 and stream.open:
        session.receive(message(Kind.DATA, stream.id, bytes(min(piece, size))))
        size -= piece


class TestPausing:
    def test_a_sender_is_paused_above_two_mebibytes_and_resumed_below_a_quarter(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        sent(session)
        fill(session, stream, 2 * MIB)
        assert said(session) == []
        fill(session, stream, 1)
        assert said(session) == ["PAUSE 2"]
        fill(session, stream, MIB)
        assert said(session) == [], "once is enough"
        while stream.buffered - 32 * KIB >= 256 * KIB:
            stream.take()
        assert said(session) == []
        stream.take()
        assert said(session) == ["RESUME 2"]

    def test_a_paused_writer_waits_and_others_do_not(self) -> None:
        session = server()
        held, free = session.connect("tcp", "a:1"), session.connect("tcp", "b:1")
        sent(session)
        session.receive(message(Kind.PAUSE, held.id))
        held.send(b"held")
        free.send(b"free")
        assert said(session) == ["DATA 3 free"]
        session.receive(message(Kind.RESUME, held.id))
        assert said(session) == ["DATA 2 held"]

    def test_pausing_the_peer_does_not_keep_us_from_writing(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        sent(session)
        fill(session, stream, 3 * MIB)
        stream.send(b"still speaking")
        assert said(session) == ["PAUSE 2", "DATA 2 still speaking"]

    def test_who_does_not_heed_a_pause_loses_the_stream_and_not_the_session(self) -> None:
        session = server()
        deaf, other = session.connect("tcp", "a:1"), session.connect("tcp", "b:1")
        sent(session)
        fill(session, deaf, 100 * MIB)
        assert not deaf.open
        assert session.buffered <= session.limits.stream_bytes
        assert said(session)[-1].startswith("ERROR 2 reader is too slow")
        assert session.traffic.overflows == 1
        assert other.open

    def test_a_byte_a_message_costs_no_object_a_byte(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        fill(session, stream, 100_000, piece=1)
        taken = [stream.take() for _ in range(5)]
        assert [len(chunk) for chunk in taken] == [28672, 28672, 28672, 13984, 0]

    def test_a_crowded_session_pauses_early_and_is_bounded_as_a_whole(self) -> None:
        session = server(limits=Limits(session_bytes=4 * MIB))
        streams = [session.connect("tcp", f"a:{number}") for number in range(40)]
        sent(session)
        for stream in streams[:2]:
            fill(session, stream, 1 * MIB)
        assert said(session) == [], "half full is not crowded"
        fill(session, streams[2], 128 * KIB)
        assert said(session) == ["PAUSE 4"]
        for stream in streams:
            fill(session, stream, 1 * MIB)
        assert session.buffered <= 4 * MIB
        assert session.traffic.overflows > 0

    def test_what_a_stalled_reader_leaves_is_given_back_when_it_closes(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        fill(session, stream, MIB)
        stream.close()
        assert session.buffered == 0


class TestAPeerWithOneFlagForBothDirections:
    """Upstream: its own RESUME clears our PAUSE, and our RESUME its own."""

    def test_its_resume_makes_us_repeat_our_pause(self) -> None:
        session = server(one_flag=True)
        stream = session.connect("tcp", "a:1")
        fill(session, stream, 3 * MIB)
        sent(session)
        session.receive(message(Kind.RESUME, 2))
        assert said(session) == ["PAUSE 2"]

    def test_our_resume_frees_us_too_since_it_will_not_send_its_own(self) -> None:
        session = server(one_flag=True)
        stream = session.connect("tcp", "a:1")
        fill(session, stream, 3 * MIB)
        session.receive(message(Kind.PAUSE, 2))
        stream.send(b"waiting")
        sent(session)
        everything(stream)
        assert said(session) == ["RESUME 2", "DATA 2 waiting"]

    def test_one_that_forgot_is_reminded_before_the_stream_has_to_end(self) -> None:
        session = server(one_flag=True)
        stream = session.connect("tcp", "a:1")
        sent(session)
        fill(session, stream, 10 * MIB)
        assert said(session).count("PAUSE 2") > 2
        assert stream.open


def turns_of(session: Session, count: int) -> list[tuple[int, int]]:
    """The next messages, each as its stream and its size."""
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
        assert [connection for connection, _ in turns_of(session, 2)] == [small.id, bulk[25].id]

    def test_who_speaks_often_does_not_pass_the_others_again_and_again(self) -> None:
        session = server()
        bulk, talker = session.connect("tcp", "bulk:1"), session.connect("tcp", "talker:1")
        sent(session)
        bulk.send(bytes(MIB))
        session.next_message()
        turns = []
        for _ in range(6):
            talker.send(b"me again")
            turns += turns_of(session, 1)
        assert [connection for connection, _ in turns] == [talker.id, bulk.id] * 3

    def test_streams_take_turns_by_chunks(self) -> None:
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

    def test_small_pieces_travel_together(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        sent(session)
        for _ in range(1000):
            stream.send(b"0123456789")
        assert [len(frame.payload) for frame in sent(session)] == [10_000]

    def test_a_writer_is_told_when_to_wait_and_when_to_go_on(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        news = News(stream)
        assert stream.send(bytes(255 * KIB))
        assert not stream.send(bytes(KIB))
        while stream.queued > 160 * KIB:
            session.next_message()
        assert news.told == []
        session.next_message()
        assert news.told == ["writable"]
        assert stream.send(b"more")


class TestSync:
    def test_a_client_tells_every_minute_which_streams_it_has(self) -> None:
        session = client(Recorder())
        session.receive(message(Kind.CONNECT, 7, b"tcp/a:1"))
        session.receive(message(Kind.CONNECT, 2, b"tcp/a:1"))
        session.received_pong(59)
        session.tick(59.9)
        assert sent(session) == []
        session.tick(60)
        assert [bytes(frame.payload) for frame in sent(session)] == [struct.pack("<QQ", 2, 7)]

    def test_what_the_client_forgot_is_dropped_without_a_word(self) -> None:
        session = server()
        kept, forgotten = session.connect("tcp", "a:1"), session.connect("tcp", "b:1")
        sent(session)
        session.receive(message(Kind.DATA, forgotten.id, b"x"))
        session.receive(message(Kind.SYNC, 0, frames.connections([kept.id])))
        assert list(session.streams.values()) == [kept]
        with pytest.raises(StreamError, match=r"^sync from client$"):
            forgotten.raise_error()
        assert said(session) == []

    def test_a_list_written_before_the_client_could_know_of_a_stream_spares_it_once(self) -> None:
        session = server()
        stream = session.connect("tcp", "a:1")
        session.receive(message(Kind.SYNC, 0, b""))
        assert stream.open
        session.receive(message(Kind.SYNC, 0, b""))
        assert not stream.open


class TestTime:
    def test_a_client_pings_every_five_seconds(self) -> None:
        session = client(Recorder())
        assert session.tick(0) == 5
        assert session.next_message() is None
        assert session.tick(5) == 10
        ping = session.next_message()
        assert ping
        assert ping.opcode == Opcode.PING

    def test_a_server_never_pings_and_answers(self) -> None:
        session = server()
        assert session.tick(30) == 60
        assert session.next_message() is None
        session.received_ping(b"a", 30)
        session.received_ping(b"b", 31)
        pong = session.next_message()
        assert pong
        assert (pong.opcode, pong.head) == (Opcode.PONG, b"b")
        assert session.next_message() is None
        assert session.tick(60) == 91

    def test_silence_ends_the_session_however_much_data_comes(self) -> None:
        session = server()
        session.connect("tcp", "a:1")
        session.receive(message(Kind.DATA, 2, b"busy"))
        with pytest.raises(SessionError, match="no ping or pong for 60 s"):
            session.tick(60)

    def test_a_pong_is_a_sign_of_life(self) -> None:
        session = client(Recorder())
        session.received_pong(59)
        session.tick(118)
        with pytest.raises(SessionError, match="i/o timeout"):
            session.tick(119)


class TestLimits:
    def test_a_peer_that_asks_and_does_not_read_is_cut_off(self) -> None:
        session = server()
        for _ in range(50_000):
            session.receive(message(Kind.DATA, 9, b"x"))
        with pytest.raises(SessionError, match="does not read"):
            sent(session)

    def test_streams_of_a_session_are_counted(self) -> None:
        session = server(limits=Limits(streams=2))
        session.connect("tcp", "a:1")
        session.connect("tcp", "a:1")
        with pytest.raises(StreamError, match="limit of 2 streams"):
            session.connect("tcp", "a:1")
        asked = client(Recorder(), limits=Limits(streams=1))
        asked.receive(message(Kind.CONNECT, 2, b"tcp/a:1"))
        asked.receive(message(Kind.CONNECT, 3, b"tcp/a:1"))
        assert said(asked) == ["ERROR 3 too many connections"]
