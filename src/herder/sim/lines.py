"""Network link between a machine and an API server that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace

from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.wire import Request, Response, Transport


class Line:
    """A transport. While cut, requests are refused and open streams end."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._cut: asyncio.Event = asyncio.Event()

    @property
    def is_cut(self) -> bool:
        return self._cut.is_set()

    def cut(self) -> None:
        self._cut.set()

    def heal(self) -> None:
        """Streams that were cut stay closed: they hold the old event."""
        if self._cut.is_set():
            self._cut = asyncio.Event()

    async def send(self, request: Request) -> Response:
        cut = self._cut
        if cut.is_set():
            raise ServiceUnavailable("no route to host")
        response = await self._inner.send(request)
        if cut.is_set():
            raise ServiceUnavailable("the connection was lost before the answer arrived")
        return response if response.stream is None else replace(response, stream=until_cut(response.stream, cut))

    async def close(self) -> None:
        await self._inner.close()


async def _at_once() -> None:
    """No delay."""


async def until_cut(
    stream: AsyncIterator[bytes], cut: asyncio.Event, before_each: Callable[[], Awaitable[None]] = _at_once
) -> AsyncIterator[bytes]:
    """Chunks of the stream, each after `before_each`, until it ends or the connection is cut."""
    ended = asyncio.ensure_future(cut.wait())
    reading: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            reading = asyncio.ensure_future(_next(stream))
            await asyncio.wait((reading, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise ServiceUnavailable("the connection was cut")
            chunk = reading.result()
            if chunk is None:
                return
            await before_each()
            yield chunk
    finally:
        tasks = [task for task in (ended, reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


async def _next(stream: AsyncIterator[bytes]) -> bytes | None:
    return await anext(stream, None)
