"""One stream of a session: received bytes that are not consumed yet, and queued bytes that are not sent yet.

The two directions are paused independently. An observer is notified of changes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from herder.tunnel import frames
from herder.tunnel.errors import StreamError

if TYPE_CHECKING:
    from herder.tunnel.session import Session

Buffer = bytes | bytearray | memoryview
_SMALL_BYTES = 4096  # smaller pieces are joined, so that one-byte messages do not cost an object each


class StreamObserver(Protocol):
    """Callbacks of a stream."""

    def received(self) -> None:
        """Data is available, or the stream has ended."""

    def writable(self) -> None:
        """There is room again after `send` filled the queue."""

    def ended(self) -> None:
        """Nothing can be sent any more. Received data can still be taken."""


class NullObserver:
    """Observer of a stream that nothing uses yet."""

    def received(self) -> None: ...

    def writable(self) -> None: ...

    def ended(self) -> None: ...


class Stream:
    """One multiplexed connection."""

    __slots__ = (
        "_chunks", "_full", "_queue", "address", "buffered", "closing", "error", "id", "known_to_peer",
        "observer", "open", "paused", "peer_paused", "proto", "queued", "received_since_pause", "scheduled", "session",
    )  # fmt: skip

    def __init__(self, session: Session, number: int, proto: str, address: str) -> None:
        self.session = session
        self.id = number
        self.proto = proto
        self.address = address
        self.observer: StreamObserver = NullObserver()
        self.open = True  # both sides may send
        self.closing = False  # closed locally: EOF follows the queued data
        self.error = ""  # why the stream ended; END for an orderly close
        self.known_to_peer = False  # the peer has certainly seen this stream
        self._chunks: deque[Buffer] = deque()
        self.buffered = 0
        self.peer_paused = False  # we sent PAUSE
        self.received_since_pause = 0
        self._queue: deque[Buffer] = deque()
        self.queued = 0
        self.paused = False  # the peer sent PAUSE
        self.scheduled = False  # queued for sending in the session
        self._full = False

    # --- API for the user of the stream ---------------------------------------------------------------------------

    def take(self) -> Buffer:
        """Return the next chunk; empty if none is available or the stream is at its end."""
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
        """Queue data; return False if the writer should wait for `writable`. The data must not be modified
        afterwards."""
        if not self.open or self.closing:
            raise StreamError(self.error if self.error not in ("", frames.END) else "stream is closed")
        if data:
            self._append(self._queue, data)
            self.queued += len(data)
            self.session.schedule(self)
            self._full = self._full or self.queued >= self.session.limits.send_high
        return not self._full

    def close(self) -> None:
        """Close in order after all queued data. Received data that was not taken is discarded."""
        self._discard_received()
        if self.open and not self.closing:
            self.closing = True
            self.session.schedule(self)

    def abort(self, reason: str) -> None:
        """Close immediately and send the reason to the peer."""
        self._discard_received()
        self.session.end_stream(self, reason, notify_peer=True)

    # --- API for the session --------------------------------------------------------------------------------------

    def put(self, payload: memoryview) -> None:
        self.buffered += len(payload)
        self._append(self._chunks, payload)

    def _append(self, chunks: deque[Buffer], data: Buffer) -> None:
        if len(data) >= _SMALL_BYTES:
            chunks.append(data)
            return
        last = chunks[-1] if chunks else None
        if isinstance(last, bytearray) and len(last) < self.session.limits.chunk - _SMALL_BYTES:
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
        """Return the next chunk to send, at most the chunk size, joining small pieces."""
        limit = self.session.limits.chunk
        first = self._queue[0]
        if len(first) > limit:
            view = memoryview(first)
            self._queue[0] = view[limit:]
            chunk: Buffer = view[:limit]
        elif len(first) == limit or len(self._queue) == 1:
            chunk = self._queue.popleft()
        else:
            chunk = self._join_small(limit)
        self.queued -= len(chunk)
        return chunk

    def _join_small(self, limit: int) -> bytes:
        pieces, size = [], 0
        while self._queue and size + len(self._queue[0]) <= limit:
            piece = self._queue.popleft()
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def became_writable(self) -> bool:
        """Return True once after a full queue has drained enough for its writer to continue."""
        if self._full and self.queued <= self.session.limits.send_low:
            self._full = False
            return True
        return False
