"""Transport for the proxy's own requests to a cluster's API, over the pooled connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import quote

from herder.engine.client.http import USER_AGENT
from herder.engine.wire import Request, Response, ResponseTooLarge
from herder.gateway.proxy.relay import Body, relay
from herder.gateway.proxy.rewrite import Outgoing
from herder.gateway.proxy.targets import Target
from herder.gateway.proxy.upstream.connections import Connections, connection_lost_error

MAX_RESPONSE_BYTES = 16 << 20
"""Limit for responses that are decoded at once: small JSON objects take twenty times their size in memory."""


class DownstreamTransport:
    """Client transport to one cluster with one token."""

    def __init__(self, connections: Connections, target: Target, token: str) -> None:
        self._connections = connections
        self._target = target
        self._token = token

    async def send(self, request: Request) -> Response:
        query = str(request.query)
        path = self._target.prefix + quote(request.path) + (f"?{query}" if query else "")
        headers = [("host", self._target.address), ("user-agent", USER_AGENT), *request.headers.items()]
        headers.append(("authorization", f"Bearer {self._token}"))
        if request.body:
            headers.append(("content-length", str(len(request.body))))
        exchange = await self._connections.ask(self._target, Outgoing(request.method, path, headers, request.body))
        response = await relay(self._connections, self._target, exchange, dict(exchange.headers))
        if response.stream is None:
            return response
        limit = None if request.is_streaming else MAX_RESPONSE_BYTES
        return replace(response, stream=_LimitedStream(response.stream, self._target, limit))

    async def close(self) -> None:
        """The pool is shared and stays open."""


class _LimitedStream:
    """Stream with a size limit; connection errors become StatusErrors, as for requests."""

    def __init__(self, stream: AsyncIterator[bytes], target: Target, limit: int | None) -> None:
        self._stream = stream
        self._target = target
        self._left = limit

    def __aiter__(self) -> _LimitedStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await anext(self._stream)
        except OSError as error:
            raise connection_lost_error(self._target, error) from error
        if self._left is not None:
            self._left -= len(chunk)
            if self._left < 0:
                await self.aclose()
                raise ResponseTooLarge(
                    f"cluster {self._target.cluster}: response larger than {MAX_RESPONSE_BYTES} bytes"
                )
        return chunk

    async def aclose(self) -> None:
        if isinstance(self._stream, Body):
            await self._stream.aclose()
