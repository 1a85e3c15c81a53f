"""Any sequence of messages and actions: a session continues or ends with a SessionError, and its memory is bounded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from herder.tunnel import frames
from herder.tunnel.errors import SessionError, TunnelError
from herder.tunnel.frames import Kind
from herder.tunnel.limits import Limits
from herder.tunnel.session import Session
from tests.unit.tunnel.sessions import Recorder, client, server

SMALL = Limits(
    pause_above=2000,
    resume_below=250,
    in_flight=4000,
    session_bytes=12_000,
    crowded_pause_above=100,
    send_high=1000,
    send_low=500,
    chunk=300,
    control_bytes=2000,
    streams=5,
    announced_clients=4,
)
NUMBERS = st.integers(-2, 8)
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 3000).map(bytes),
    st.sampled_from([b"tcp/a:1", b"EOF", b"key/1", frames.connections([2, 3])]),
)
MESSAGES = st.one_of(
    st.tuples(st.sampled_from(Kind), NUMBERS, PAYLOADS).map(lambda m: frames.head(1, m[1], m[0]) + m[2]),
    st.binary(max_size=50),
)
ACTIONS = st.one_of(
    st.tuples(st.just("receive"), MESSAGES),
    st.tuples(st.just("receive"), MESSAGES),
    st.tuples(st.sampled_from(["connect", "send", "take", "close", "abort", "flush", "ping"]), st.integers(0, 5)),
)


def perform(session: Session, action: str, argument: object) -> None:
    known = [*session.streams.values()]
    if action == "receive":
        assert isinstance(argument, bytes)
        session.receive(bytearray(argument))
        return
    assert isinstance(argument, int)
    if action == "connect":
        session.connect("tcp", "a:1")
    elif action == "ping":
        session.received_ping(bytes(argument), 1)
    elif action == "flush":
        for _ in range(argument * 3):
            session.next_message()
    elif known:
        stream = known[argument % len(known)]
        if action == "send":
            if stream.queued < SMALL.send_high:
                stream.send(bytes(argument * 200))
        elif action == "take":
            stream.take()
        elif action == "close":
            stream.close()
        else:
            stream.abort("reason")


@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.booleans(), st.lists(ACTIONS, max_size=60))
def test_no_sequence_of_actions_breaks_a_session(
    serving: bool, one_flag: bool, actions: list[tuple[str, object]]
) -> None:
    if serving:
        session = server(limits=SMALL, one_flag=one_flag, peering=True)
    else:
        session = client(Recorder(), limits=SMALL, one_flag=one_flag)
    try:
        for action, argument in actions:
            try:
                perform(session, action, argument)
            except SessionError:
                raise
            except TunnelError:
                continue  # an error of one stream only
            check_limits(session)
    except SessionError:
        session.end()
    assert all(stream.open for stream in session.streams.values())


def check_limits(session: Session) -> None:
    streams = session.streams.values()
    assert session.buffered <= SMALL.session_bytes
    assert session.buffered >= sum(stream.buffered for stream in streams)
    assert all(stream.buffered <= SMALL.stream_bytes for stream in streams)
    assert all(stream.queued <= 2 * SMALL.send_high for stream in streams)
    assert len(streams) <= SMALL.streams
    assert session._control_bytes <= SMALL.control_bytes + 400
    assert sum(len(message.head) for message in session._control) == session._control_bytes
