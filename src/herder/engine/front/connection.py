"""One client's connection: requests are answered one after the other, in the order in which they came.

The handler of a request is cancelled when its client goes away. What a client does not read is bounded: a response
waits, a watch falls behind and is ended by its own backlog, and who reads nothing at all is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from herder.engine.client.wire import Pushed, Request, Response, told_path
from herder.engine.front import limits, writing
from herder.engine.front.parsing import Parsed, RequestParser
from herder.engine.front.sink import ConnectionSink
from herder.engine.meta.errors import StatusError

if TYPE_CHECKING:
    from herder.engine.front.takeover import Takeover

log = logging.getLogger(__name__)

_BODILESS = frozenset({204, 304})

Upgrade = Callable[["Takeover", Request], Awaitable[bool]]
"""A handler that may take over the connection (an upgraded one): True where it did."""


class Front(Protocol):
    """What connections share."""

    body_bytes: int
    upgrade: Upgrade | None
    dates: writing.Dates
    buffer: memoryview
    connections: set[Connection]
    stopping: bool

    async def handle(self, request: Request) -> Response: ...

    def forget(self, connection: Connection) -> None: ...


class Connection(asyncio.BufferedProtocol):
    def __init__(self, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        self._front = front
        self._loop = loop
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._parser = RequestParser(
            self._received,
            self._asked_to_continue,
            body_bytes=front.body_bytes,
            holds_upgrades=front.upgrade is not None,
        )
        self._waiting: deque[Parsed] = deque()
        self._task: asyncio.Task[None] | None = None
        self._remote = ""
        self._certificate: bytes | None = None
        self._encrypted = False
        self._open = False
        self._closing = False  # after the response under way
        self._reading = True
        self._drained: asyncio.Future[None] | None = None  # set while the client reads too slowly
        self._deadline = loop.time() + limits.HEAD_SECONDS
        self._streaming = False

    # --- the socket -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=limits.WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self._remote = str(peer[0]) if isinstance(peer, tuple) else ""
        session = transport.get_extra_info("ssl_object")
        if session is not None:
            self._encrypted = True
            self._certificate = session.getpeercert(binary_form=True)
        self._open = True
        self._front.connections.add(self)
        if self._front.stopping:
            self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all connections: whatever is read into it is used up before anybody else reads."""
        return self._front.buffer

    def buffer_updated(self, count: int) -> None:
        parser = self._parser
        was_idle, was_in_body = parser.idle, parser.in_body
        parser.feed(self._front.buffer[:count])
        if self._task is None and self._open and (was_idle or was_in_body is not parser.in_body):
            self._deadline = self._loop.time() + (limits.BODY_SECONDS if parser.in_body else limits.HEAD_SECONDS)

    def eof_received(self) -> bool:
        """A client that only stopped sending still gets its answer; but nobody follows a watch that way."""
        if self._encrypted or self._streaming or self._task is None:
            return False
        self._parser.end()
        self._closing = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        self._parser.end()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
        self._let_go()
        self._front.forget(self)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._deadline = self._loop.time() + limits.STALL_SECONDS

    def resume_writing(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # --- time -------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Called now and then: cut off who takes too long to ask, or to read what was asked for."""
        if now < self._deadline:
            return
        if self._drained is not None or self._transport.is_closing():
            self._transport.abort()
        elif self._task is None:
            self._deadline = now + limits.LINGER_SECONDS
            self._transport.close()

    def wind_down(self) -> None:
        """The server stops: nothing new is read, what runs may finish."""
        self._closing = True
        self._parser.end()
        if self._task is None and not self._waiting:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # --- requests ---------------------------------------------------------------------------------------------

    def _asked_to_continue(self) -> None:
        if self._task is None and not self._waiting:  # else it is not this request's turn; clients send anyway then
            self._transport.write(writing.CONTINUE)

    def _received(self, parsed: Parsed) -> None:
        if self._task is not None or self._waiting:
            self._waiting.append(parsed)
            if len(self._waiting) >= limits.PIPELINED and self._reading:
                self._reading = False
                self._transport.pause_reading()
            return
        self._start(parsed)

    def _start(self, parsed: Parsed) -> None:
        if parsed.refusal is not None:
            self._refuse(parsed.refusal)
            return
        self._task = self._loop.create_task(self._serve(parsed))

    def _next(self) -> None:
        """After a response."""
        if not self._open:
            return
        if self._waiting and not (self._closing and self._front.stopping):
            self._start(self._waiting.popleft())
        elif self._closing:
            self._transport.close()
        else:
            self._deadline = self._loop.time() + limits.IDLE_SECONDS
        if not self._reading and len(self._waiting) < limits.PIPELINED:
            self._reading = True
            self._transport.resume_reading()

    async def _serve(self, parsed: Parsed) -> None:
        if not parsed.keep_alive:
            self._closing = True
        request = Request(
            parsed.method,
            parsed.path,
            parsed.query,
            parsed.headers,
            parsed.body,
            self._remote,
            self._certificate,
            target=parsed.target,
        )
        try:
            if parsed.upgrade and self._front.upgrade is not None and await self._taken_over(request):
                return
            response = await self._front.handle(request)
            await self._answer(parsed, response)
        except asyncio.CancelledError:
            if self._open:  # not by its client: whoever did it wants the connection gone
                self._transport.abort()
            raise
        except ConnectionError:
            self._transport.abort()
        except Exception:
            log.exception("%s %s: the answer could not be sent", parsed.method, told_path(parsed.path))
            self._transport.abort()
        self._task = None
        self._next()

    async def _taken_over(self, request: Request) -> bool:
        from herder.engine.front.takeover import Takeover

        assert self._front.upgrade is not None
        takeover = Takeover(self._transport, self._parser.end, self._leave)
        if await self._front.upgrade(takeover, request) or takeover.taken:
            return True
        self._parser.not_upgraded()
        return False

    def _leave(self) -> None:
        """The connection is somebody else's from now on."""
        self._open = False
        self._task = None
        self._front.forget(self)

    def _refuse(self, error: StatusError) -> None:
        """What cannot be understood ends the connection, but not before the client had time to read why."""
        body = msgspec.json.encode(error.to_status()) + b"\n"
        response = Response(error.code, {"content-type": "application/json"})
        self._transport.write(self._head(response, keep_alive=False, length=len(body)) + body)
        self._closing = True
        self._deadline = self._loop.time() + limits.LINGER_SECONDS
        self._loop.call_later(limits.LINGER_SECONDS, self._transport.close)

    # --- answers ----------------------------------------------------------------------------------------------

    def _head(self, response: Response, *, keep_alive: bool, length: int | None = None, chunked: bool = False) -> bytes:
        date = self._front.dates.line()
        return writing.head(response, date, length=length, chunked=chunked, keep_alive=keep_alive)

    async def _answer(self, parsed: Parsed, response: Response) -> None:
        if self._front.stopping:
            self._closing = True
        if response.stream is not None:
            await self._stream(parsed, response, response.stream)
            return
        body = response.body
        keep_alive = not self._closing
        if isinstance(body, bytes):
            start = self._head(response, keep_alive=keep_alive, length=len(body))
            self._transport.write(start + body if _carries_body(parsed, response) else start)
            return
        start = self._head(response, keep_alive=keep_alive, length=sum(map(len, body)))
        self._transport.write(start)
        if _carries_body(parsed, response):
            for piece in body:
                self._transport.write(piece)
                if self._drained is not None:
                    await self.drained()

    async def _stream(self, parsed: Parsed, response: Response, stream: AsyncIterator[bytes]) -> None:
        chunked = parsed.version != "1.0"
        if not chunked:
            self._closing = True
        self._transport.write(self._head(response, keep_alive=not self._closing, chunked=chunked))
        self._streaming = True
        try:
            if not _carries_body(parsed, response):
                return
            if isinstance(stream, Pushed):
                await stream.push(ConnectionSink(self, self._transport.write, chunked=chunked))
            else:
                async for content in stream:
                    if content:
                        self._transport.write(writing.chunk(content) if chunked else content)
                    if self._drained is not None:
                        await self.drained()
            if chunked:
                self._transport.write(writing.LAST_CHUNK)
        finally:
            self._streaming = False
            close: Any = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def drained(self) -> None:
        """Until the client has read enough of what waits for it."""
        if self._drained is not None:
            await self._drained
        if not self._open:
            raise ConnectionResetError("the client went away")

    @property
    def congested(self) -> bool:
        return self._drained is not None


def _carries_body(parsed: Parsed, response: Response) -> bool:
    return parsed.method != "HEAD" and response.status not in _BODILESS
