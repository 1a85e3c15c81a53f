"""The wire to one downstream cluster: bounded in time and in number, and listened to for signs of life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from herder.engine.client.wire import Request, Response, Transport
from herder.engine.meta.errors import ServiceUnavailable

REQUEST_SECONDS = 10.0
"""Until an answer must be there (a watch: its head), the wait for a turn included."""
ANSWER_SECONDS = 60.0
"""From then on until the end of the answer, unless it is a watch."""
AT_ONCE = 8
PROBE_SECONDS = 5.0
SERVER_FAILURE = 500


class ClusterTransport:
    """A client's transport to a cluster. Requests take turns; watches do not count once they are answered."""

    def __init__(
        self,
        inner: Transport,
        cluster: str,
        *,
        heard: Callable[[], None],
        refused: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._cluster = cluster
        self._heard = heard
        self._refused = refused  # the cluster does not know us (any more)
        self._closed = False
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def send(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                response = await self._answer(request)
        except TimeoutError:
            raise ServiceUnavailable(f"cluster {self._cluster}: no answer in time") from None
        self._listen(response)
        if response.stream is None:
            return response
        ends = None if request.flows else asyncio.get_running_loop().time() + ANSWER_SECONDS
        return replace(response, stream=self._listening(response.stream, ends))

    async def probe(self) -> str:
        """Whether the cluster answers at all, not waiting for a turn; what is wrong, in words, or nothing."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                response = await self._inner.send(Request("GET", "/", headers={"accept": "application/json"}))
        except Exception as error:
            return in_words(error)
        self._listen(response)
        await _closed(response.stream)
        if response.status == 401:
            return "the cluster does not accept the credentials"
        return f"the server answered HTTP {response.status}" if response.status >= SERVER_FAILURE else ""

    async def close(self) -> None:
        self._closed = True
        await self._inner.close()

    async def _answer(self, request: Request) -> Response:
        if request.flows:
            return await self._inner.send(request)
        async with self._turns:
            return await self._inner.send(request)

    def _listen(self, response: Response) -> None:
        """A failure may be that of something between us and the cluster, so it is no sign of life."""
        if self._closed:
            return  # a late answer says nothing about the line that came after
        if response.status == 401:
            self._refused()
        elif response.status < SERVER_FAILURE:
            self._heard()

    async def _listening(self, stream: AsyncIterator[bytes], ends: float | None) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self._next(stream, ends)) is not None:
                self._heard()
                yield chunk
        finally:
            await _closed(stream)

    async def _next(self, stream: AsyncIterator[bytes], ends: float | None) -> bytes | None:
        """The next piece of an answer, None at its end."""
        try:
            async with asyncio.timeout_at(ends):
                return await anext(stream, None)
        except TimeoutError:
            raise ServiceUnavailable(f"cluster {self._cluster}: no answer in time") from None


async def _closed(stream: AsyncIterator[bytes] | None) -> None:
    """A tunnel's streams are no generators. Each holds a connection, and what has come of an answer, until it ends."""
    close: Any = getattr(stream, "aclose", None)
    if close is not None:
        await close()


def in_words(error: Exception) -> str:
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
