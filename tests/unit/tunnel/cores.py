"""Sessions without sockets, one message at a time."""

from __future__ import annotations

from collections.abc import Callable

from herder.tunnel import frames
from herder.tunnel.frames import Frame, Kind
from herder.tunnel.limits import DEFAULT, Limits
from herder.tunnel.session import Authorize, Identity, Opcode, Role, Session, SessionObserver, Traffic
from herder.tunnel.stream import Stream


class Recorder:
    """Observes a session."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.woken = 0

    def outgoing(self) -> None:
        self.woken += 1

    def opened(self, stream: Stream) -> None:
        self.streams.append(stream)


class News:
    """Observes a stream."""

    def __init__(self, stream: Stream, received: Callable[[], object] = lambda: None) -> None:
        stream.observer = self
        self.told: list[str] = []
        self._received = received

    def received(self) -> None:
        self._received()

    def writable(self) -> None:
        self.told.append("writable")

    def ended(self) -> None:
        self.told.append("ended")


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
    """Everything it wants to send now."""
    found = []
    while (outgoing := session.next_message()) is not None:
        if outgoing.opcode == Opcode.BINARY:
            found.append(frames.decode(outgoing.head + bytes(outgoing.body)))
    return found


def said(session: Session) -> list[str]:
    """The same in short: kind, connection and payload."""
    return [f"{Kind(kind).name} {number} {bytes(payload).decode()}".strip() for kind, number, payload in sent(session)]


def exchange(one: Session, other: Session) -> None:
    """Carry messages between the two until neither has any."""
    while True:
        moved = False
        for sender, receiver in ((one, other), (other, one)):
            while (outgoing := sender.next_message()) is not None:
                moved = True
                if outgoing.opcode == Opcode.BINARY:
                    receiver.receive(bytearray(outgoing.head + bytes(outgoing.body)))
        if not moved:
            return


def everything(stream: Stream) -> bytes:
    taken = b""
    while chunk := stream.take():
        taken += chunk
    return taken
