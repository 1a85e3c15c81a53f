"""Relay responses of clusters as they arrive."""

from __future__ import annotations

from herder.engine.meta.errors import InternalError
from herder.engine.wire import Response
from herder.gateway.proxy.targets import Target
from herder.gateway.proxy.upstream.connections import Connections, connection_lost_error
from herder.gateway.proxy.upstream.exchange import Exchange, InvalidResponse
from herder.tunnel.errors import TunnelError

_BUFFERED_BYTES = 64 << 10  # up to this size a response is buffered and sent with its length
_REFUSAL_BYTES = 64 << 10  # a user may have a thousand
_SWITCHING_PROTOCOLS = 101


async def relay(connections: Connections, target: Target, exchange: Exchange, headers: dict[str, str]) -> Response:
    """Response for an exchange whose head has arrived; short bodies are buffered, others are streamed."""
    if exchange.status == _SWITCHING_PROTOCOLS:
        # The upgrade was not requested: proxies in between would misinterpret what follows.
        exchange.channel.close()
        raise connection_lost_error(target, InvalidResponse("unrequested protocol upgrade"))
    body = Body(connections, target, exchange)
    if exchange.length is None or exchange.length > _BUFFERED_BYTES:
        return Response(exchange.status, headers, stream=body)
    try:
        return Response(exchange.status, headers, b"".join([chunk async for chunk in body]))
    except OSError as error:
        raise connection_lost_error(target, error) from error


async def buffered(response: Response) -> Response:
    """Buffer the body of the last response on a connection."""
    if response.stream is None:
        return response
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.stream:
        chunks.append(chunk)
        size += len(chunk)
        if size > _REFUSAL_BYTES:
            await discard(response)
            raise InternalError("the cluster refused the upgrade with a response that is too large")
    return Response(response.status, response.headers, b"".join(chunks))


async def discard(response: Response) -> None:
    """Close the body of a response that is not needed."""
    if isinstance(response.stream, Body):
        await response.stream.aclose()


class Body:
    """Response body, read on demand. Not a generator: one that was never started would not be closed."""

    def __init__(self, connections: Connections, target: Target, exchange: Exchange) -> None:
        self._connections = connections
        self._target = target
        self._exchange: Exchange | None = exchange

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        exchange = self._exchange
        if exchange is None:
            raise StopAsyncIteration
        try:
            chunk = await exchange.more()
        except TunnelError as error:
            await self.aclose()
            raise ConnectionResetError(f"cluster {self._target.cluster}: {error}") from error
        except BaseException:
            await self.aclose()
            raise
        if chunk is None:
            self._exchange = None
            self._connections.finish(self._target, exchange)
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Close before the end; the connection cannot be reused."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.channel.close()
