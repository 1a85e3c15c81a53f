"""One stream of a session: what was received and not read yet, what was written and not sent yet.

The two directions pause independently. Whoever uses the stream is told of news by its observer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from herder.tunnel import frames
from herder.tunnel.errors import StreamError

if TYPE_CHECKING:
    from herder.tunnel.session import Session

Buffer = bytes | bytearray | memoryview
_SMALL = 4096  # pieces below this are gathered, so that a byte a message does not cost an object a byte


class StreamObserver(Protocol):
    def received(self) -> None:
        """There is something to take, or nothing more will come."""

    def writable(self) -> None:
        """Room again, after `send` had filled it."""

    def ended(self) -> None:
        """No more can be sent. What was received can still be taken."""


class NullObserver:
    """Until someone looks after the stream."""

    def received(self) -> None: ...

    def writable(self) -> None: ...

    def ended(self) -> None: ...


class Stream:
    __slots__ = (
        "_chunks", "_full", "_queue", "address", "buffered", "closing", "error", "holds_peer", "id", "known_to_peer",
        "observer", "open", "paused", "proto", "queued", "received_since_pause", "scheduled", "session",
    )  # fmt: skip

    def __init__(self, session: Session, number: int, proto: str, address: str) -> None:
        self.session = session
        self.id = number
        self.proto = proto
        self.address = address
        self.observer: StreamObserver = NullObserver()
        self.open = True  # the peer may send, and so may we
        self.closing = False  # by us: an orderly end follows what is still queued
        self.error = ""  # why it ended; END for an orderly close
        self.known_to_peer = False  # the other side has surely heard of this stream
        self._chunks: deque[Buffer] = deque()
        self.buffered = 0
        self.holds_peer = False  # we sent PAUSE
        self.received_since_pause = 0
        self._queue: deque[Buffer] = deque()
        self.queued = 0
        self.paused = False  # the peer sent PAUSE
        self.scheduled = False  # it has its place in the session's round
        self._full = False

    # --- for whoever uses the stream ------------------------------------------------------------------------------

    def take(self) -> Buffer:
        """What came next; empty where nothing is there at the moment, or where the stream is at its end."""
        if not self._chunks:
            return b""
        chunk = self._chunks.popleft()
        self.buffered -= len(chunk)
        self.session.taken(self, len(chunk))
        return chunk

    @property
    def at_end(self) -> bool:
        return not self.open and not self._chunks

    def raise_error(self) -> None:
        if self.error not in ("", frames.END):
            raise StreamError(self.error)

    def send(self, data: Buffer) -> bool:
        """Queue it; False where the writer should now wait for `writable`. The data must not be changed afterwards."""
        if not self.open or self.closing:
            raise StreamError(self.error if self.error not in ("", frames.END) else "the stream is closed")
        if data:
            self._append(self._queue, data)
            self.queued += len(data)
            self.session.schedule(self)
            self._full = self._full or self.queued >= self.session.limits.send_high
        return not self._full

    def close(self) -> None:
        """In order, after all that was sent. What has come, or still comes, and was not taken is thrown away."""
        self._discard_received()
        if self.open and not self.closing:
            self.closing = True
            self.session.schedule(self)

    def abort(self, reason: str) -> None:
        """At once, and the peer is told why."""
        self._discard_received()
        self.session.end_stream(self, reason, notify_peer=True)

    # --- for the session ------------------------------------------------------------------------------------------

    def put(self, payload: memoryview) -> None:
        self.buffered += len(payload)
        self._append(self._chunks, payload)

    def _append(self, chunks: deque[Buffer], data: Buffer) -> None:
        if len(data) >= _SMALL:
            chunks.append(data)
            return
        last = chunks[-1] if chunks else None
        if isinstance(last, bytearray) and len(last) < self.session.limits.chunk - _SMALL:
            last += data
        else:
            chunks.append(bytearray(data))

    def _discard_received(self) -> None:
        while self._chunks:
            self.take()

    def discard_queued(self) -> None:
        self._queue.clear()
        self.queued = 0

    def next_chunk(self) -> Buffer:
        """At most one turn's worth; small pieces together."""
        limit = self.session.limits.chunk
        first = self._queue[0]
        if len(first) > limit:
            view = memoryview(first)
            self._queue[0] = view[limit:]
            chunk: Buffer = view[:limit]
        elif len(first) == limit or len(self._queue) == 1:
            chunk = self._queue.popleft()
        else:
            chunk = self._gathered(limit)
        self.queued -= len(chunk)
        return chunk

    def _gathered(self, limit: int) -> bytes:
        pieces, size = [], 0
        while self._queue and size + len(self._queue[0]) <= limit:
            piece = self._queue.popleft()
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def made_room(self) -> bool:
        """True once when a full queue has become short enough for its writer to go on."""
        if self._full and self.queued <= self.session.limits.send_low:
            self._full = False
            return True
        return False
