"""Helpers for sessions without sockets, one message at a time."""

from __future__ import annotations

from collections.abc import Callable

from herder.tunnel import frames
from herder.tunnel.frames import Frame, Kind
from herder.tunnel.limits import DEFAULT, Limits
from herder.tunnel.session import Authorize, Identity, Opcode, Role, Session, SessionObserver, Traffic
from herder.tunnel.stream import Stream


class Recorder:
    """Records what a session reports to its observer."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.woken = 0

    def outgoing(self) -> None:
        self.woken += 1

    def opened(self, stream: Stream) -> None:
        self.streams.append(stream)


class StreamRecorder:
    """Records what a stream reports to its observer."""

    def __init__(self, stream: Stream, received: Callable[[], object] = lambda: None) -> None:
        stream.observer = self
        self.events: list[str] = []
        self._received = received

    def received(self) -> None:
        self._received()

    def writable(self) -> None:
        self.events.append("writable")

    def ended(self) -> None:
        self.events.append("ended")


def server(
    observer: SessionObserver | None = None,
    *,
    limits: Limits = DEFAULT,
    peering: bool = False,
    one_flag: bool = False,
    now: float = 0,
    key: str = "c-m",
    traffic: Traffic | None = None,
) -> Session:
    return Session(
        Role.SERVER,
        Identity(key, 77),
        observer or Recorder(),
        now,
        limits=limits,
        peering=peering,
        peer_shares_pause_flag=one_flag,
        traffic=traffic,
    )


def client(
    observer: SessionObserver,
    *,
    limits: Limits = DEFAULT,
    authorize: Authorize = lambda proto, address: True,
    one_flag: bool = False,
) -> Session:
    return Session(
        Role.CLIENT,
        Identity("client", 0),
        observer,
        0,
        limits=limits,
        authorize=authorize,
        peer_shares_pause_flag=one_flag,
    )


def message(kind: Kind | int, connection: int, payload: bytes = b"") -> bytearray:
    return bytearray(frames.head(1, connection, Kind(kind)) + payload)


def sent(session: Session) -> list[Frame]:
    """Return all frames that the session wants to send now."""
    sent_frames = []
    while (outgoing := session.next_message()) is not None:
        if outgoing.opcode == Opcode.BINARY:
            sent_frames.append(frames.decode(outgoing.head + bytes(outgoing.body)))
    return sent_frames


def sent_summary(session: Session) -> list[str]:
    """Return those frames as text: kind, connection and payload."""
    return [f"{Kind(kind).name} {number} {bytes(payload).decode()}".strip() for kind, number, payload in sent(session)]


def exchange(first: Session, second: Session) -> None:
    """Deliver messages between two sessions until neither has any."""
    while True:
        moved = False
        for sender, receiver in ((first, second), (second, first)):
            while (outgoing := sender.next_message()) is not None:
                moved = True
                if outgoing.opcode == Opcode.BINARY:
                    receiver.receive(bytearray(outgoing.head + bytes(outgoing.body)))
        if not moved:
            return


def read_all(stream: Stream) -> bytes:
    content = b""
    while chunk := stream.take():
        content += chunk
    return content
