"""A session on an asyncio connection that has become a WebSocket, in either role."""

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
# What has left the session can no longer be overtaken: little of it waits, here, in the kernel and with the peer.
_AT_ONCE = 64 * KIB  # written before others get their turn
_UNSENT = 64 * KIB  # that the kernel may hold
_UNREAD = 128 * KIB  # … and that of a near peer, who can say in no time that there is room again
_NEAR = 500  # microseconds there and back; to farther peers as much may be on the way as the kernel finds good
_READ = 256 * KIB
_FRAMES_AT_ONCE = 1_000  # handled before others get their turn: a read can hold 40,000 of the smallest
_FAREWELL_SECONDS = 5.0  # for a peer to read what is left, and our goodbye
_TCP_INFO_BYTES = 152  # of Linux's struct tcp_info, up to and with tcpi_min_rtt
_scratch = threading.local()

Opened = Callable[[Stream], None]


class Link(asyncio.BufferedProtocol):
    def __init__(
        self,
        role: Role,
        key: str,
        *,
        opened: Opened | None = None,
        over: Callable[[Link], None] | None = None,
        authorize: Authorize | None = None,
        limits: Limits = DEFAULT,
        peering: bool = False,
        peer_has_one_flag: bool = True,
        traffic: Traffic | None = None,
    ) -> None:
        """`opened` gets the streams that the peer asks for; `over` is called once, when the connection is gone."""
        self._loop = asyncio.get_running_loop()
        self._opened = opened
        self._over = over
        self._reader = FrameReader(self._message, masked=role is Role.SERVER, limit=limits.message_bytes)
        self._writer = FrameWriter(masks=role is Role.CLIENT)
        self._buffer = _receive_buffer()
        self._unread = bytearray()  # received, for later turns of the event loop
        self._held = 0  # of it and of an unfinished message, as it is counted
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._blocked = False  # the socket takes no more for now
        self._timer: asyncio.TimerHandle | None = None
        self.reason = ""  # why it ended
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.session = Session(
            role,
            Identity(key, secrets.randbits(63), secrets.randbits(31)),
            self,
            self._loop.time(),
            authorize=authorize,
            limits=limits,
            peering=peering,
            peer_has_one_flag=peer_has_one_flag,
            traffic=traffic,
        )

    @property
    def alive(self) -> bool:
        return not self.session.over

    def close(self, reason: str = "closed by us", code: int = _GOING_AWAY) -> None:
        if self.session.over:
            return
        self.reason = reason
        self.session.end()
        self._count(0)
        transport = self._transport
        if transport is not None and not self._blocked:
            transport.writelines(self._writer.frame(close_message(code)))
            transport.close()
            self._set_timer(self._loop.call_later(_FAREWELL_SECONDS, transport.abort))
        elif transport is not None:
            transport.abort()  # it would wait for a peer that does not read

    def abort(self) -> None:
        """Without a goodbye."""
        if self._transport is not None:
            self._transport.abort()

    # --- the socket -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(
            high=1
        )  # what the kernel does not take is enough: nothing is added to it
        _tune(transport.get_extra_info("socket"))
        self._tick()
        self.outgoing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.session.over:
            return
        if self._unread:  # TLS hands on what it had decrypted before it was paused
            self._unread += self._buffer[:nbytes]
        else:
            self._read(self._buffer[:nbytes])

    def _read(self, data: memoryview) -> None:
        try:
            taken = self._reader.feed(data, _FRAMES_AT_ONCE)
            self._unread = bytearray(data[taken:])
            self._count(self._reader.held + len(self._unread))
        except SessionError as error:
            self._unread = bytearray()
            self.close(str(error), _PROTOCOL_ERROR)
        if self._unread and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        data, self._unread = self._unread, bytearray()
        if self.session.over:
            return
        self._read(memoryview(data))
        if not self._unread and self._transport is not None:
            self._transport.resume_reading()

    def _count(self, held: int) -> None:
        """Whoever begins large messages and never ends them must not fill the memory by many sessions."""
        traffic, limits = self.session.traffic, self.session.limits
        if self.session.over:
            held = 0
        traffic.buffered += held - self._held
        self._held = held
        if held > limits.share_bytes and traffic.buffered > limits.total_bytes:
            raise SessionError("websocket: a large message, while all sessions together hold too much")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.reason = self.reason or (str(error) if error else "the connection was closed by the other side")
        self.session.end()
        self._count(0)
        self._set_timer(None)
        if not self.done.done():
            self.done.set_result(None)
        if self._over is not None:
            self._over(self)

    # --- the session ----------------------------------------------------------------------------------------------

    def _message(self, opcode: int, payload: bytearray) -> None:
        if self.session.over:
            return
        if opcode == Opcode.BINARY:
            self.session.receive(payload)
        elif opcode == Opcode.PING:
            self.session.received_ping(bytes(payload), self._loop.time())
        elif opcode == Opcode.PONG:
            self.session.received_pong(self._loop.time())
        else:
            self.close("the other side said goodbye")

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
        if self.session.over or self._blocked or transport is None:
            return
        buffers: list[Buffer] = []
        size = 0
        try:
            while size < _AT_ONCE and (message := self.session.next_message()) is not None:
                buffers += self._writer.frame(message)
                size += len(message.head) + len(message.body)
        except SessionError as error:
            self.close(str(error))
            return
        if buffers:
            transport.writelines(buffers)
        if size >= _AT_ONCE:
            self.outgoing()

    def _tick(self) -> None:
        try:
            again = self.session.tick(self._loop.time())
        except SessionError as error:
            self.close(str(error))
        else:
            self._set_timer(self._loop.call_at(again, self._tick))

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer


def _receive_buffer() -> memoryview:
    """One for all links of an event loop: each read is worked off before the next."""
    if not hasattr(_scratch, "buffer"):
        _scratch.buffer = memoryview(bytearray(_READ))
    return cast(memoryview, _scratch.buffer)


def _tune(sock: socket.socket | None) -> None:
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        if _is_near(sock):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD)


def _is_near(sock: socket.socket) -> bool:
    """By the shortest round trip that Linux has seen on this connection: its handshake at least."""
    if not hasattr(socket, "TCP_INFO"):
        return False
    reported = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return len(reported) == _TCP_INFO_BYTES and int.from_bytes(reported[-4:], sys.byteorder) < _NEAR
