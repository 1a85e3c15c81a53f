"""Session over an upgraded WebSocket connection on asyncio, in either role."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from typing import cast

from herder.tunnel.errors import SessionError
from herder.tunnel.limits import DEFAULT, KIB, Limits
from herder.tunnel.session import Authorize, Identity, Opcode, Role, Session, Traffic
from herder.tunnel.stream import Buffer, Stream
from herder.tunnel.websocket import FrameReader, FrameWriter, close_message

log = logging.getLogger(__name__)

_GOING_AWAY, _PROTOCOL_ERROR = 1001, 1002
# Data that has left the session cannot be reprioritized, so buffers here, in the kernel and at the peer are small.
_WRITE_BATCH_BYTES = 64 * KIB  # written per event loop iteration
_UNSENT_BYTES = 64 * KIB  # unsent bytes in the kernel (TCP_NOTSENT_LOWAT)
_RECEIVE_BUFFER_BYTES = 128 * KIB  # receive buffer for a near peer, which reacts quickly
_NEAR_RTT_MICROSECONDS = 500  # round-trip time; for farther peers the kernel chooses the window
_READ_BYTES = 256 * KIB
_FRAME_BATCH = 1_000  # handled per event loop iteration: a read can contain 40,000 minimal frames
_CLOSE_SECONDS = 5.0  # time for the peer to read the rest and the close frame
_TCP_INFO_BYTES = 152  # Linux's struct tcp_info up to tcpi_min_rtt
_scratch = threading.local()

Opened = Callable[[Stream], None]


class Link(asyncio.BufferedProtocol):
    """asyncio protocol that runs a session over a WebSocket."""

    def __init__(
        self,
        role: Role,
        key: str,
        *,
        opened: Opened | None = None,
        on_closed: Callable[[Link], None] | None = None,
        authorize: Authorize | None = None,
        limits: Limits = DEFAULT,
        peering: bool = False,
        peer_shares_pause_flag: bool = True,
        traffic: Traffic | None = None,
    ) -> None:
        """Create a link. `opened` receives the streams that the peer opens; `on_closed` is called once, when the
        connection is lost."""
        self._loop = asyncio.get_running_loop()
        self._opened = opened
        self._on_closed = on_closed
        self._reader = FrameReader(self._message, masked=role is Role.SERVER, limit=limits.message_bytes)
        self._writer = FrameWriter(masks=role is Role.CLIENT)
        self._buffer = _receive_buffer()
        self._unread = bytearray()  # received, for later event loop iterations
        self._held = 0  # bytes accounted for `_unread` and an unfinished message
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._blocked = False  # the socket buffer is full
        self._timer: asyncio.TimerHandle | None = None
        self.reason = ""  # why the session ended
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.session = Session(
            role,
            Identity(key, secrets.randbits(63), secrets.randbits(31)),
            self,
            self._loop.time(),
            authorize=authorize,
            limits=limits,
            peering=peering,
            peer_shares_pause_flag=peer_shares_pause_flag,
            traffic=traffic,
        )

    @property
    def alive(self) -> bool:
        return not self.session.closed

    def close(self, reason: str = "closed by us", code: int = _GOING_AWAY) -> None:
        if self.session.closed:
            return
        self.reason = reason
        self.session.end()
        self._account(0)
        transport = self._transport
        if transport is not None and not self._blocked:
            transport.writelines(self._writer.frame(close_message(code)))
            transport.close()
            self._set_timer(self._loop.call_later(_CLOSE_SECONDS, transport.abort))
        elif transport is not None:
            transport.abort()  # closing would wait for a peer that does not read

    def abort(self) -> None:
        """Close without a close frame."""
        if self._transport is not None:
            self._transport.abort()

    # --- socket callbacks -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1)  # buffer nothing beyond what the kernel accepts
        _tune(transport.get_extra_info("socket"))
        self._tick()
        self.outgoing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.session.closed:
            return
        if self._unread:  # TLS delivers data that it decrypted before the pause
            self._unread += self._buffer[:nbytes]
        else:
            self._read(self._buffer[:nbytes])

    def _read(self, data: memoryview) -> None:
        try:
            consumed = self._reader.feed(data, _FRAME_BATCH)
            self._unread = bytearray(data[consumed:])
            self._account(self._reader.held + len(self._unread))
        except SessionError as error:
            self._unread = bytearray()
            self.close(str(error), _PROTOCOL_ERROR)
        if self._unread and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        data, self._unread = self._unread, bytearray()
        if self.session.closed:
            return
        self._read(memoryview(data))
        if not self._unread and self._transport is not None:
            self._transport.resume_reading()

    def _account(self, held: int) -> None:
        """Account for buffered bytes, so that many sessions with large unfinished messages cannot fill the memory."""
        traffic, limits = self.session.traffic, self.session.limits
        if self.session.closed:
            held = 0
        traffic.buffered += held - self._held
        self._held = held
        if held > limits.share_bytes and traffic.buffered > limits.total_bytes:
            raise SessionError(
                "websocket: message exceeds the share of this session while all sessions together exceed the limit"
            )

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.reason = self.reason or (str(error) if error else "connection closed by the peer")
        self.session.end()
        self._account(0)
        self._set_timer(None)
        if not self.done.done():
            self.done.set_result(None)
        if self._on_closed is not None:
            self._on_closed(self)

    # --- session callbacks ----------------------------------------------------------------------------------------

    def _message(self, opcode: int, payload: bytearray) -> None:
        if self.session.closed:
            return
        if opcode == Opcode.BINARY:
            self.session.receive(payload)
        elif opcode == Opcode.PING:
            self.session.received_ping(bytes(payload), self._loop.time())
        elif opcode == Opcode.PONG:
            self.session.received_pong(self._loop.time())
        else:
            self.close("session closed by the peer")

    def opened(self, stream: Stream) -> None:
        if self._opened is None:
            stream.abort("connect not allowed")
        else:
            self._opened(stream)

    def outgoing(self) -> None:
        if not self._flush_due and not self._blocked and self._transport is not None:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        transport = self._transport
        if self.session.closed or self._blocked or transport is None:
            return
        buffers: list[Buffer] = []
        size = 0
        try:
            while size < _WRITE_BATCH_BYTES and (message := self.session.next_message()) is not None:
                buffers += self._writer.frame(message)
                size += len(message.head) + len(message.body)
        except SessionError as error:
            self.close(str(error))
            return
        if buffers:
            transport.writelines(buffers)
        if size >= _WRITE_BATCH_BYTES:
            self.outgoing()

    def _tick(self) -> None:
        try:
            next_tick = self.session.tick(self._loop.time())
        except SessionError as error:
            self.close(str(error))
        else:
            self._set_timer(self._loop.call_at(next_tick, self._tick))

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer


def _receive_buffer() -> memoryview:
    """Return the read buffer that all links of an event loop share: each read is processed before the next."""
    if not hasattr(_scratch, "buffer"):
        _scratch.buffer = memoryview(bytearray(_READ_BYTES))
    return cast(memoryview, _scratch.buffer)


def _tune(sock: socket.socket | None) -> None:
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        if _is_near(sock):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)


def _is_near(sock: socket.socket) -> bool:
    """Return whether the peer is near, by the minimum round-trip time that Linux measured, at least for the TCP
    handshake."""
    if not hasattr(socket, "TCP_INFO"):
        return False
    reported = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return len(reported) == _TCP_INFO_BYTES and int.from_bytes(reported[-4:], sys.byteorder) < _NEAR_RTT_MICROSECONDS
