"""Transport to one downstream cluster with timeouts, a concurrency limit, and detection of responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.wire import Request, Response, Transport

REQUEST_SECONDS = 10.0
"""Time limit until the response headers arrive, including the wait for a slot."""
BODY_SECONDS = 60.0
"""Time limit from the headers to the end of the response, unless it is a watch."""
MAX_CONCURRENT_REQUESTS = 8
PROBE_SECONDS = 5.0
SERVER_FAILURE = 500


class ClusterTransport:
    """Transport of a client to a cluster. Requests wait for a slot; a watch does not occupy one."""

    def __init__(
        self,
        inner: Transport,
        cluster: str,
        *,
        on_contact: Callable[[], None],
        on_unauthorized: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._cluster = cluster
        self._on_contact = on_contact
        self._on_unauthorized = on_unauthorized  # called on HTTP 401
        self._closed = False
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def send(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                response = await self._send(request)
        except TimeoutError:
            raise ServiceUnavailable(f"cluster {self._cluster}: response timed out") from None
        self._record(response)
        if response.stream is None:
            return response
        deadline = None if request.is_streaming else asyncio.get_running_loop().time() + BODY_SECONDS
        return replace(response, stream=self._record_stream(response.stream, deadline))

    async def probe(self) -> str:
        """Check whether the cluster responds, without waiting for a slot. Returns the error, or an empty string."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                response = await self._inner.send(Request("GET", "/", headers={"accept": "application/json"}))
        except Exception as error:
            return error_message(error)
        self._record(response)
        await _close_stream(response.stream)
        if response.status == 401:
            return "credentials rejected by the cluster"
        return f"server responded with HTTP {response.status}" if response.status >= SERVER_FAILURE else ""

    async def close(self) -> None:
        self._closed = True
        await self._inner.close()

    async def _send(self, request: Request) -> Response:
        if request.is_streaming:
            return await self._inner.send(request)
        async with self._slots:
            return await self._inner.send(request)

    def _record(self, response: Response) -> None:
        """Count a response as contact. A server error may come from a proxy in between, so it does not count."""
        if self._closed:
            return  # a late response says nothing about the next connection
        if response.status == 401:
            self._on_unauthorized()
        elif response.status < SERVER_FAILURE:
            self._on_contact()

    async def _record_stream(self, stream: AsyncIterator[bytes], deadline: float | None) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self._next(stream, deadline)) is not None:
                self._on_contact()
                yield chunk
        finally:
            await _close_stream(stream)

    async def _next(self, stream: AsyncIterator[bytes], deadline: float | None) -> bytes | None:
        """Return the next chunk of a response, None at its end."""
        try:
            async with asyncio.timeout_at(deadline):
                return await anext(stream, None)
        except TimeoutError:
            raise ServiceUnavailable(f"cluster {self._cluster}: response timed out") from None


async def _close_stream(stream: AsyncIterator[bytes] | None) -> None:
    """Close a stream to release its connection and buffers; streams of a tunnel are not generators."""
    close: Any = getattr(stream, "aclose", None)
    if close is not None:
        await close()


def error_message(error: Exception) -> str:
    return str(error) or ("response timed out" if isinstance(error, TimeoutError) else type(error).__name__)
