"""HTTP/1.1 server connection: parse pipelined requests, run the handler for one at a time, write responses in order.

Input is bounded: a connection with enough unconsumed bytes is not read further. Output is bounded: a response waits for
the client, a watch is closed when its backlog overflows, and a client that reads too slowly is disconnected. The
handler is cancelled when its client disconnects.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from herder.engine.front import framing, limits
from herder.engine.front.flow import FlowControl, Holder, too_many_requests
from herder.engine.front.intake import NEVER, Intake
from herder.engine.front.pace import Pace
from herder.engine.front.request_parser import Parsed, RequestParser
from herder.engine.front.sink import ConnectionSink
from herder.engine.front.transports import CLOSED
from herder.engine.meta.errors import StatusError
from herder.engine.wire import PushStream, Request, Response, Retained, loggable_path

if TYPE_CHECKING:
    from herder.engine.front.hijack import Hijack

log = logging.getLogger(__name__)

_BODILESS = frozenset({204, 304})

Upgrade = Callable[["Hijack", Request], Awaitable[bool | Response]]
"""May hijack the connection for a protocol upgrade; returns True if it did, False to decline, or an error response."""


class Front(Protocol):
    """State that connections share with their listener."""

    body_bytes: int
    upgrade: Upgrade | None
    dates: framing.Dates
    buffer: memoryview
    connections: set[Connection]
    stopping: bool
    flow: FlowControl
    handler_receives_body: bool

    async def handle(self, request: Request) -> Response: ...

    def identified(self, connection: Connection, holder: Holder) -> bool:
        """Attribute the connection to an authenticated user; return False if that user has too many connections."""
        ...

    def forget(self, connection: Connection) -> None: ...

    def limit_retained(self, now: float) -> None:
        """Abort responses that keep too much in memory."""
        ...


class Connection(asyncio.BufferedProtocol):
    """One HTTP connection."""

    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._loop = loop
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._parser = RequestParser(
            self._received, body_bytes=front.body_bytes, accepts_upgrades=front.upgrade is not None
        )
        self.remote = ""
        self.holder: Holder | None = None  # authenticated user; None before the first authenticated request
        self._certificate: bytes | None = None
        self._encrypted = False
        self.was_connected = False
        self._open = False
        self._closing = False  # close after the current response
        # Input
        self._unparsed = b""  # received while input was full
        self._waiting: deque[Parsed] = deque()
        self._waiting_bytes = 0
        self._reading = True
        self._pause_deadline = NEVER
        self._linger_bytes = 0
        # Current request
        self._task: asyncio.Task[None] | None = None
        self._intake = Intake(self, front, loop)
        # Output
        self._drained: asyncio.Future[None] | None = None  # set while the write buffer is above its limit
        self._deadline = loop.time() + limits.HEAD_SECONDS
        self._pace = Pace()
        self._response_deadline = NEVER
        self._streaming = False
        self.retained: Retained | None = None  # by the current response
        self.responding_since = 0.0

    # --- transport callbacks ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=limits.WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.remote = str(peer[0]) if isinstance(peer, tuple) else ""
        session = transport.get_extra_info("ssl_object")
        if session is not None:
            self._encrypted = True
            self._certificate = session.getpeercert(binary_form=True)
        self._open = self.was_connected = True
        self._front.connections.add(self)
        if self._front.stopping:
            self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer that all connections share: its content is consumed before another connection
        reads."""
        return self._front.buffer

    def buffer_updated(self, count: int) -> None:
        if self._parser.over:
            self._linger(count)
            return
        if not self._reading:  # TLS delivers data that it decrypted before the pause
            self._unparsed += self._front.buffer[:count]
            return
        self._parse(self._front.buffer[:count])

    def _parse(self, data: memoryview) -> None:
        """Parse in slices, because a single read can contain thousands of requests."""
        parser = self._parser
        was_idle = parser.idle
        size = limits.SLICE_BYTES
        while data:
            parser.feed(data if len(data) <= size else data[:size])
            data = data[size:]
            if (self._waiting or not parser.idle) and self._is_input_full():
                self._unparsed = bytes(data)
                self._pause_reading()
                break
        if was_idle and self._task is None and self._open and not parser.idle:
            self._deadline = self._loop.time() + limits.HEAD_SECONDS

    def _is_input_full(self) -> bool:
        return (
            self._waiting_bytes > limits.AHEAD_BYTES
            or len(self._waiting) >= limits.PIPELINED
            or self._parser.unread > limits.AHEAD_BYTES
        )

    def _pause_reading(self) -> None:
        if self._intake.long_running:
            # No client sends this much during a watch, and a paused connection does not notice its end.
            self._transport.abort()
        elif self._reading:
            self._reading = False
            self._pause_deadline = self._loop.time() + limits.PAUSE_SECONDS
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        """Parse the bytes that were received already, then resume reading, unless input is still full."""
        if self._reading or self._parser.over or not self._open:
            return
        if self._is_input_full():
            return
        self._reading = True
        self._pause_deadline = NEVER
        if self._unparsed:
            data, self._unparsed = self._unparsed, b""
            self._parse(memoryview(data))
        if self._reading:
            self._transport.resume_reading()

    def _linger(self, count: int) -> None:
        """Keep reading after a refusal so that the client sees the response, up to a limit."""
        self._linger_bytes += count
        if self._linger_bytes > limits.LINGER_BYTES and self._task is None:
            self._transport.abort()

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that this connection occupies."""
        pending = self._intake.pending
        return (
            len(self._unparsed)
            + self._waiting_bytes
            + self._parser.held
            + (len(pending.content) if pending is not None and pending is not self._parser.pending else 0)
            + (self._transport.get_write_buffer_size() if self._open else 0)
        )

    def eof_received(self) -> bool:
        """Keep a half-closed connection open until its response is sent, except for watches."""
        if self._encrypted or self._streaming or self._task is None:
            return False
        self._parser.end()
        self._closing = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        self._parser.end()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._unparsed = b""
        if self._task is not None:
            self._task.cancel()
        self._release_writers()
        self._front.forget(self)
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Break reference cycles, so that buffers are freed now instead of at the next garbage collection."""
        self._parser.close()
        self._intake.close()
        self._transport = CLOSED

    @property
    def reader(self) -> Holder:
        """User, or address of an unauthenticated client."""
        return self.holder or ("", self.remote)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._deadline = self._pace.paused(self._loop.time(), self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._pace.resumed(self._loop.time(), self._transport.get_write_buffer_size())
        self._release_writers()

    def _release_writers(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # --- timeouts ---------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Enforce the deadlines; called periodically."""
        if now >= self._response_deadline or now >= self._pause_deadline:
            self._transport.abort()
        elif now >= self._intake.body_deadline:
            self._intake.expire()
            self._parser.end()
        if now >= self._intake.slot_deadline and not self._intake.become_long_running():
            self._transport.abort()
        if now < self._deadline:
            return
        if self._drained is not None or self._transport.is_closing():
            self._transport.abort()
        elif self._task is None:
            self._deadline = now + limits.LINGER_SECONDS
            self._transport.close()

    def begin_shutdown(self) -> None:
        """Stop reading new requests and let the current one finish."""
        self._closing = True
        if not self._intake.has_unread_body:
            self._parser.end()
        if self._task is None and not self._waiting:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # --- requests ---------------------------------------------------------------------------------------------

    def _received(self, parsed: Parsed) -> None:
        if self._task is not None or self._waiting:
            self._waiting.append(parsed)
            self._waiting_bytes += parsed.size
            return
        self._start(parsed)

    def _start(self, parsed: Parsed) -> None:
        if parsed.refusal is not None:
            self._refuse(parsed.refusal)
            return
        self._intake.parsed = parsed
        self._task = self._loop.create_task(self._serve(parsed))

    def _next(self) -> None:
        """Continue with the next request after a response."""
        if not self._open:
            return
        unread, self._intake.parsed = self._intake.has_unread_body or self._parser.upgrade_pending, None
        if unread:
            self._end_after_lingering()
        elif self._waiting and not (self._closing and self._front.stopping):
            next_request = self._waiting.popleft()
            self._waiting_bytes -= next_request.size
            self._start(next_request)
        elif self._closing:
            self._transport.close()
        else:
            self._deadline = self._loop.time() + limits.IDLE_SECONDS
        self._resume_reading()

    async def _serve(self, parsed: Parsed) -> None:
        if not parsed.keep_alive:
            self._closing = True
        request = Request(
            parsed.method,
            parsed.path,
            parsed.query,
            parsed.headers,
            parsed.body,
            self.remote,
            self._certificate,
            target=parsed.target,
            incoming=self._intake,
            has_body=parsed.pending is None,
        )
        try:
            upgraded = parsed.upgrade and self._front.upgrade is not None and await self._hijack(request)
            if upgraded is True:
                return
            handle = self._front.handle if self._front.handler_receives_body else self._handle_with_body
            await self._respond(parsed, upgraded or await handle(request))
        except asyncio.CancelledError:
            if self._open:  # cancelled by the server, not by a disconnect
                self._transport.abort()
            raise
        except ConnectionError:
            self._transport.abort()
        except Exception:
            log.exception("%s %s: sending the response failed", parsed.method, loggable_path(parsed.path))
            self._transport.abort()
        finally:
            self._intake.end()
            self._response_deadline = NEVER
            self._task = self.retained = None
        self._next()

    async def _handle_with_body(self, request: Request) -> Response:
        try:
            await request.receive_body()
        except StatusError as error:
            return _status_response(error)
        return await self._front.handle(request)

    def identify(self, holder: Holder) -> None:
        """Attribute the connection to the user of this request. Raises TooManyRequests."""
        if not self._front.identified(self, holder):
            self._closing = True
            raise too_many_requests()

    def expect_body(self) -> None:
        """Send 100 Continue if expected, and read the body."""
        if self._parser.expects_continue:
            self._transport.write(framing.CONTINUE)
        self._resume_reading()

    # --- upgrades and rejected requests -------------------------------------------------------------------------

    async def _hijack(self, request: Request) -> bool | Response:
        from herder.engine.front.hijack import Hijack

        assert self._front.upgrade is not None
        hijack = Hijack(self._transport, self._take_rest, self._detach)
        outcome = await self._front.upgrade(hijack, request)
        if outcome is True or hijack.taken:
            return True
        if isinstance(outcome, Response):
            self._closing = True  # What follows may be the other protocol.
            return outcome
        self._parser.decline_upgrade()
        self._resume_reading()
        return False

    def _take_rest(self) -> bytes:
        rest = self._parser.end() + self._unparsed
        self._unparsed = b""
        return rest

    def _detach(self) -> None:
        """Give up the connection: an upgraded protocol owns it now."""
        self._open = False
        self._task = None
        self._front.forget(self)
        self._break_cycles()

    def _refuse(self, error: StatusError) -> None:
        """Reject a request that cannot be parsed, and close the connection once the client had time to read the
        response."""
        response = _status_response(error)
        body = response.content()
        self._transport.write(self._head(response, keep_alive=False, length=len(body)) + body)
        self._closing = True
        self._end_after_lingering()

    def _end_after_lingering(self) -> None:
        """Close after a delay: a reset at once could reach the client before it reads the response."""
        self._parser.end()
        self._unparsed = b""
        if not self._reading:
            self._reading = True
            self._pause_deadline = NEVER
            self._transport.resume_reading()
        self._deadline = self._loop.time() + limits.LINGER_SECONDS
        self._loop.call_later(limits.LINGER_SECONDS, self._transport.close)

    # --- responses --------------------------------------------------------------------------------------------

    def _head(self, response: Response, *, keep_alive: bool, length: int | None = None, chunked: bool = False) -> bytes:
        date = self._front.dates.line()
        return framing.head(response, date, length=length, chunked=chunked, keep_alive=keep_alive)

    async def _respond(self, parsed: Parsed, response: Response) -> None:
        if self._front.stopping or self._intake.has_unread_body:
            self._closing = True
        self.retained, self.responding_since = response.memory(), self._loop.time()
        if self.retained is not None and self.retained.own:
            self._front.limit_retained(self.responding_since)
        if response.stream is not None:
            await self._stream(parsed, response, response.stream)
            return
        body = response.body
        keep_alive = not self._closing
        length = response.content_length()
        start = self._head(response, keep_alive=keep_alive, length=length)
        if not _carries_body(parsed, response):
            self._transport.write(start)
            return
        if isinstance(body, bytes) and length <= limits.WRITE_BYTES:
            self._transport.write(start + body)
            if self._drained is not None:  # otherwise responses to pipelined requests would pile up
                await self.drained()
            return
        self._response_deadline = self._loop.time() + limits.STALL_SECONDS + length / limits.RESPONSE_BYTES_PER_SECOND
        self._transport.write(start)
        for piece in (body,) if isinstance(body, bytes) else body:
            await self._write_long(piece)

    async def _write_long(self, content: bytes) -> None:
        """Write in pieces at the client's speed, yielding to other tasks after each piece."""
        view = memoryview(content)
        for start in range(0, len(view), limits.WRITE_BYTES):
            self._transport.write(view[start : start + limits.WRITE_BYTES])
            await self.drained()
            await asyncio.sleep(0)

    async def _stream(self, parsed: Parsed, response: Response, stream: AsyncIterator[bytes]) -> None:
        chunked = parsed.version != "1.0"
        if not chunked:
            self._closing = True
        self._transport.write(self._head(response, keep_alive=not self._closing, chunked=chunked))
        self._streaming = True
        try:
            if not _carries_body(parsed, response):
                return
            if isinstance(stream, PushStream):
                await stream.push(ConnectionSink(self, chunked=chunked))
            else:
                async for content in stream:
                    if 0 < len(content) <= limits.WRITE_BYTES:
                        self._transport.write(framing.chunk(content) if chunked else content)
                        if self._drained is not None:
                            await self.drained()
                    elif content:
                        await self.write_long_chunk(content, chunked=chunked)
            if chunked:
                self._transport.write(framing.LAST_CHUNK)
        finally:
            self._streaming = False
            close: Any = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def write_long_chunk(self, content: bytes, *, chunked: bool) -> None:
        if chunked:
            self._transport.write(b"%x\r\n" % len(content))
        await self._write_long(content)
        if chunked:
            self._transport.write(b"\r\n")

    def write(self, content: bytes) -> None:
        self._transport.write(content)

    async def drained(self) -> None:
        """Wait until the write buffer is below its limit."""
        if self._drained is not None:
            await self._drained
        if not self._open:
            raise ConnectionResetError("client disconnected")

    @property
    def congested(self) -> bool:
        return self._drained is not None


def _status_response(error: StatusError) -> Response:
    headers = {"content-type": "application/json", "cache-control": "no-store", **error.headers}
    return Response(error.code, headers, msgspec.json.encode(error.to_status()) + b"\n")


def _carries_body(parsed: Parsed, response: Response) -> bool:
    return parsed.method != "HEAD" and response.status not in _BODILESS
