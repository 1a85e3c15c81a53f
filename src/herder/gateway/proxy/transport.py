"""The proxy's own way to a cluster's API, for the objects it needs there, over the same connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import quote

from herder.engine.client.http import USER_AGENT
from herder.engine.client.wire import AnswerTooLong, Request, Response
from herder.gateway.proxy.connections import Connections, broken_off
from herder.gateway.proxy.rebuilding import Outgoing
from herder.gateway.proxy.relay import Body, relayed
from herder.gateway.proxy.targets import Target

ANSWER_BYTES = 16 << 20
"""Of an answer that is decoded as a whole: the smallest JSON objects take twenty times their bytes in memory."""


class DownstreamTransport:
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
        response = await relayed(self._connections, self._target, exchange, dict(exchange.headers))
        if response.stream is None:
            return response
        most = None if request.flows else ANSWER_BYTES
        return replace(response, stream=_LimitedStream(response.stream, self._target, most))

    async def close(self) -> None:
        """The connections are everybody's."""


class _LimitedStream:
    """A stream that breaks off fails as requests do: a tunnel that goes down is nothing that callers must be ready for
    in another way."""

    def __init__(self, stream: AsyncIterator[bytes], target: Target, most: int | None) -> None:
        self._stream = stream
        self._target = target
        self._left = most

    def __aiter__(self) -> _LimitedStream:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await anext(self._stream)
        except OSError as error:
            raise broken_off(self._target, error) from error
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                await self.aclose()
                raise AnswerTooLong(f"cluster {self._target.cluster}: the answer is longer than {ANSWER_BYTES} bytes")
        return piece

    async def aclose(self) -> None:
        if isinstance(self._stream, Body):
            await self._stream.aclose()
