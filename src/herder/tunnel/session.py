"""Sans-I/O session: messages in, messages out; the caller provides the time.

Sending is fair: control messages first, then streams that were idle, then the others, one chunk each in turn. A small
request therefore overtakes any number of bulk transfers. Receiving never blocks: a stream with a slow reader is paused,
and a stream whose peer ignores that is ended, so memory is bounded per stream and per session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from herder.tunnel import frames
from herder.tunnel.errors import SessionError, StreamError
from herder.tunnel.frames import Kind
from herder.tunnel.limits import DEFAULT, Limits
from herder.tunnel.stream import Buffer, Stream

DISCONNECTED = "tunnel disconnect"
FORGOTTEN = "sync from client"

Authorize = Callable[[str, str], bool]


class Role(Enum):
    """The side that opened the socket is the client: it dials on request of the server."""

    CLIENT = "client"
    SERVER = "server"


class Opcode:
    """WebSocket opcodes."""

    BINARY = 0x2
    PING = 0x9
    PONG = 0xA


class Outgoing(NamedTuple):
    """One WebSocket message with its payload in two parts, so that data is not copied to prepend its head."""

    opcode: int
    head: bytes
    body: Buffer = b""


class SessionObserver(Protocol):
    """Callbacks of a session."""

    def outgoing(self) -> None:
        """There is something to send, after there was nothing."""

    def opened(self, stream: Stream) -> None:
        """The peer opened this stream."""


@dataclass
class Traffic:
    """Counters of one session, or of all sessions that share them."""

    buffered: int = 0  # received and not taken; the only gauge
    streams: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    pauses: int = 0  # PAUSE messages sent
    overflows: int = 0  # streams ended because their peer ignored PAUSE


@dataclass(frozen=True)
class Identity:
    """Identifies a session."""

    key: str  # client key
    session: int  # random per connection
    first_message: int = 0


class Session:
    """State of one session."""

    def __init__(
        self,
        role: Role,
        identity: Identity,
        observer: SessionObserver,
        now: float,
        *,
        authorize: Authorize | None = None,
        limits: Limits = DEFAULT,
        peering: bool = False,
        peer_shares_pause_flag: bool = True,
        traffic: Traffic | None = None,
    ) -> None:
        """Create a session.

        `peering` means that the client is another server, whose announcements of clients are trusted.
        `peer_shares_pause_flag` means that the peer, like remotedialer, has one pause flag for both directions of a
        stream.
        """
        self.role = role
        self.identity = identity
        self.limits = limits
        self.traffic = traffic if traffic is not None else Traffic()
        self.streams: dict[int, Stream] = {}
        self.remote_clients: dict[str, frozenset[int]] = {}
        self.buffered = 0  # received by all streams and not taken
        self.closed = False
        self._observer = observer
        self._authorize = authorize
        self._peering = peering
        self._peer_shares_pause_flag = peer_shares_pause_flag
        self._messages = identity.first_message
        self._last_stream = 1
        self._control: deque[Outgoing] = deque()
        self._control_bytes = 0
        self._pong: bytes | None = None
        self._idle_streams: deque[Stream] = deque()  # were idle: served first
        self._active_streams: deque[Stream] = deque()
        self._last_contact = now
        self._next_ping = now + limits.ping_every
        self._next_sync = now + limits.sync_every

    # --- streams --------------------------------------------------------------------------------------------------

    def connect(self, proto: str, address: str) -> Stream:
        """Open a stream that is usable immediately; a failed dial ends it later."""
        if self.closed:
            raise SessionError(DISCONNECTED)
        if len(self.streams) >= self.limits.streams:
            raise StreamError(f"session has reached its limit of {self.limits.streams} streams")
        payload = frames.connect(proto, address)
        self._last_stream += 1
        stream = self._add(self._last_stream, proto, address)
        self._send(Kind.CONNECT, stream.id, payload)
        return stream

    def announce(self, key: str, session: int, *, present: bool) -> None:
        """Announce to a peer that a client can be reached through us, or no longer."""
        kind = Kind.ADD_CLIENT if present else Kind.REMOVE_CLIENT
        self._send(kind, 0, frames.client(key, session))

    def end(self) -> None:
        """End all streams after the connection was lost; nothing is sent any more."""
        if not self.closed:
            self.traffic.buffered -= self.buffered  # the rest belongs to the readers
        self.closed = True
        for stream in list(self.streams.values()):
            self.end_stream(stream, DISCONNECTED, notify_peer=False)
        self._control.clear()
        self._idle_streams.clear()
        self._active_streams.clear()

    def end_stream(self, stream: Stream, reason: str, *, notify_peer: bool) -> None:
        if not stream.open:
            return
        stream.open = False
        stream.error = reason
        stream.discard_queued()
        del self.streams[stream.id]
        if notify_peer and not self.closed:
            self._send(Kind.ERROR, stream.id, frames.error(reason))
        stream.observer.ended()
        stream.observer.received()

    def _add(self, number: int, proto: str, address: str) -> Stream:
        stream = self.streams[number] = Stream(self, number, proto, address)
        self.traffic.streams += 1
        return stream

    # --- receive --------------------------------------------------------------------------------------------------

    def receive(self, message: bytes | bytearray) -> None:
        """Handle one binary message, which the session owns from now on. After a SessionError the session must be
        closed."""
        frame = frames.decode(message)
        if frame.kind == Kind.DATA:
            self._received_data(frame)
        elif frame.kind == Kind.CONNECT:
            self._received_connect(frame)
        elif frame.kind == Kind.SYNC:
            self._received_sync(frames.read_connections(frame.payload, 2 * self.limits.streams))
        elif frame.kind in (Kind.ADD_CLIENT, Kind.REMOVE_CLIENT):
            self._received_client(frame)
        elif (stream := self.streams.get(frame.connection)) is not None:
            stream.known_to_peer = True
            if frame.kind == Kind.ERROR:
                self.end_stream(stream, frames.read_error(frame.payload) or frames.END, notify_peer=False)
            elif frame.kind == Kind.PAUSE:
                stream.paused = True
            elif frame.kind == Kind.RESUME:
                self._received_resume(stream)

    def received_ping(self, payload: bytes, now: float) -> None:
        self._last_contact = now
        self._pong = payload  # only the last of several pings is answered
        self._observer.outgoing()

    def received_pong(self, now: float) -> None:
        self._last_contact = now

    def _received_data(self, frame: frames.Frame) -> None:
        stream = self.streams.get(frame.connection)
        size = len(frame.payload)
        self.traffic.received_bytes += size
        if stream is None:
            connection_name = f"{self.identity.key}/{self.identity.session}/{frame.connection}"
            self._send(Kind.ERROR, frame.connection, frames.error(f"connection not found {connection_name}"))
            return
        stream.known_to_peer = True
        if stream.closing or not size:
            return
        if stream.buffered + size > self.limits.stream_bytes or self.buffered + size > self._allowed_bytes:
            self.traffic.overflows += 1
            self.end_stream(stream, "reader is too slow and the sender ignored PAUSE", notify_peer=True)
            return
        stream.put(frame.payload)
        self.buffered += size
        self.traffic.buffered += size
        self._apply_backpressure(stream, size)
        stream.observer.received()

    def _apply_backpressure(self, stream: Stream, size: int) -> None:
        threshold = self.limits.crowded_pause_above if self._crowded else self.limits.pause_above
        if not stream.peer_paused:
            if stream.buffered > threshold:
                self._pause(stream)
            return
        stream.received_since_pause += size
        if self._peer_shares_pause_flag and stream.received_since_pause > self.limits.pause_above:
            self._pause(stream)  # its own RESUME clears the shared flag that our PAUSE set

    def _pause(self, stream: Stream) -> None:
        stream.peer_paused = True
        stream.received_since_pause = 0
        self.traffic.pauses += 1
        self._send(Kind.PAUSE, stream.id)

    @property
    def _allowed_bytes(self) -> int:
        is_scarce = self.traffic.buffered > self.limits.total_bytes
        return self.limits.share_bytes if is_scarce else self.limits.session_bytes

    @property
    def _crowded(self) -> bool:
        is_scarce = self.traffic.buffered * 2 > self.limits.total_bytes
        return is_scarce or self.buffered * 2 > self.limits.session_bytes

    def taken(self, stream: Stream, size: int) -> None:
        """Account for bytes that the reader consumed."""
        self.buffered -= size
        if not self.closed:
            self.traffic.buffered -= size
        threshold = 1 if self._crowded else self.limits.resume_below
        if stream.peer_paused and stream.open and stream.buffered < threshold:
            stream.peer_paused = False
            self._send(Kind.RESUME, stream.id)
            if self._peer_shares_pause_flag and stream.paused:
                self._unpause(stream)  # our RESUME cleared its shared flag; it pauses us again if necessary

    def _received_resume(self, stream: Stream) -> None:
        self._unpause(stream)
        if self._peer_shares_pause_flag and stream.peer_paused:
            self._pause(stream)  # its RESUME cleared the shared flag

    def _unpause(self, stream: Stream) -> None:
        stream.paused = False
        if stream.queued or stream.closing:
            self.schedule(stream)

    def _received_connect(self, frame: frames.Frame) -> None:
        proto, address = frames.read_connect(frame.payload)
        if self._authorize is None or not self._authorize(proto, address):
            raise SessionError("connect not allowed")
        if frame.connection < 0 or frame.connection in self.streams:
            raise SessionError(f"connection {frame.connection}: negative or already open")
        if len(self.streams) >= self.limits.streams:
            self._send(Kind.ERROR, frame.connection, b"too many connections")
            return
        stream = self._add(frame.connection, proto, address)
        stream.known_to_peer = True
        self._observer.opened(stream)

    def _received_sync(self, listed: Iterable[int]) -> None:
        """End the streams that the client does not list.

        A stream that never received anything is spared once: the client may not have seen it when it wrote the list.
        """
        alive = {number for number in listed if number in self.streams}
        for stream in list(self.streams.values()):
            if stream.id in alive:
                stream.known_to_peer = True
            elif stream.known_to_peer:
                self.end_stream(stream, FORGOTTEN, notify_peer=False)
            else:
                stream.known_to_peer = True

    def _received_client(self, frame: frames.Frame) -> None:
        if not self._peering:
            return  # only peers may announce clients
        key, session = frames.read_client(frame.payload)
        sessions = self.remote_clients.get(key, frozenset())
        sessions = sessions | {session} if frame.kind == Kind.ADD_CLIENT else sessions - {session}
        if sessions:
            self.remote_clients[key] = sessions
        else:
            self.remote_clients.pop(key, None)
        if max(len(self.remote_clients), len(sessions)) > self.limits.announced_clients:
            raise SessionError(f"peer announced more than {self.limits.announced_clients} clients")

    # --- send -----------------------------------------------------------------------------------------------------

    def schedule(self, stream: Stream) -> None:
        if stream.open and not stream.scheduled and not stream.paused:
            stream.scheduled = True
            self._idle_streams.append(stream)
            self._observer.outgoing()

    def next_message(self) -> Outgoing | None:
        if self._pong is not None:
            pong, self._pong = self._pong, None
            return Outgoing(Opcode.PONG, pong)
        if self._control_bytes > self.limits.control_bytes:
            raise SessionError("peer does not read its control messages")
        if self._control:
            return self._next_control()
        while waiting := self._idle_streams or self._active_streams:
            stream = waiting.popleft()
            stream.scheduled = False
            if stream.open and not stream.paused:
                message = self._next_of_stream(stream)
                if message is not None:
                    return message
        return None

    def _next_of_stream(self, stream: Stream) -> Outgoing | None:
        if not stream.queued:
            if stream.closing:
                self.end_stream(stream, frames.END, notify_peer=True)
                return self._next_control()
            return None
        chunk = stream.next_chunk()
        self.traffic.sent_bytes += len(chunk)
        message = Outgoing(Opcode.BINARY, self._head(Kind.DATA, stream.id), chunk)
        stream.scheduled = True
        self._active_streams.append(stream)  # even if it is empty now: no stream is treated as idle twice in one round
        if stream.became_writable():
            stream.observer.writable()
        return message

    def _send(self, kind: Kind, connection: int, payload: bytes = b"") -> None:
        message = Outgoing(Opcode.BINARY, self._head(kind, connection) + payload)
        if self._control_bytes <= self.limits.control_bytes:  # beyond it, the next send ends the session
            self._control_bytes += len(message.head)
            self._control.append(message)
        self._observer.outgoing()

    def _next_control(self) -> Outgoing:
        message = self._control.popleft()
        self._control_bytes -= len(message.head)
        return message

    def _head(self, kind: Kind, connection: int) -> bytes:
        self._messages += 1
        return frames.head(self._messages, connection, kind)

    # --- timers ---------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do what is due and return the time of the next call. As in remotedialer, only pings and pongs count as
        signs of life."""
        if now >= self._last_contact + self.limits.silence:
            raise SessionError(f"i/o timeout: no ping or pong for {self.limits.silence:.0f} s")
        if self.role is Role.SERVER:
            return self._last_contact + self.limits.silence
        if now >= self._next_ping:
            self._next_ping = now + self.limits.ping_every
            self._control.appendleft(Outgoing(Opcode.PING, b""))
            self._observer.outgoing()
        if now >= self._next_sync:
            self._next_sync = now + self.limits.sync_every
            self._send(Kind.SYNC, 0, frames.connections(self.streams))
        return min(self._next_ping, self._next_sync, self._last_contact + self.limits.silence)
