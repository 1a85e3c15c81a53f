"""Answers of clusters, handed on as they come."""

from __future__ import annotations

from herder.engine.client.wire import Response
from herder.engine.meta.errors import InternalError
from herder.gateway.proxy.connections import Connections, broken_off
from herder.gateway.proxy.exchange import BrokenAnswer, Exchange
from herder.gateway.proxy.targets import Target
from herder.tunnel.errors import TunnelError

_WHOLE_BYTES = 64 << 10  # up to here an answer is sent in one piece, with its length
_REFUSAL_BYTES = 1 << 20
_SWITCHING_PROTOCOLS = 101


async def relayed(connections: Connections, target: Target, exchange: Exchange, headers: dict[str, str]) -> Response:
    """The answer whose head is there. Short ones are read to their end; others follow as a stream."""
    if exchange.status == _SWITCHING_PROTOCOLS:
        # Nobody asked for it: proxies between the caller and us would take what follows for another protocol.
        exchange.channel.close()
        raise broken_off(target, BrokenAnswer("it changes to a protocol that was not asked for"))
    body = Body(connections, target, exchange)
    if exchange.length is None or exchange.length > _WHOLE_BYTES:
        return Response(exchange.status, headers, stream=body)
    try:
        return Response(exchange.status, headers, b"".join([piece async for piece in body]))
    except OSError as error:
        raise broken_off(target, error) from error


async def whole(response: Response) -> Response:
    """For an answer that is the last on its connection and is sent in one piece."""
    if response.stream is None:
        return response
    pieces: list[bytes] = []
    size = 0
    async for piece in response.stream:
        pieces.append(piece)
        size += len(piece)
        if size > _REFUSAL_BYTES:
            await dropped(response)
            raise InternalError("the cluster refused the upgrade and had too much to say about it")
    return Response(response.status, response.headers, b"".join(pieces))


async def dropped(response: Response) -> None:
    """Of no use to anybody."""
    if isinstance(response.stream, Body):
        await response.stream.aclose()


class Body:
    """Of an answer, read when it is asked for. Not a generator: one that never began would not be told of its end."""

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
            piece = await exchange.more()
        except TunnelError as error:
            await self.aclose()
            raise ConnectionResetError(f"cluster {self._target.cluster}: {error}") from error
        except BaseException:
            await self.aclose()
            raise
        if piece is None:
            self._exchange = None
            self._connections.finish(self._target, exchange)
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Before the end: the rest is of no use, and the connection that carries it neither."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.channel.close()
