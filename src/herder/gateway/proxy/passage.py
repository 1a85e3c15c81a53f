"""One request's way into one cluster, as somebody: asked, answered, or changed into another protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from herder.engine.client.wire import Request, Response, User
from herder.engine.front.hijack import Hijack
from herder.engine.front.writing import head
from herder.engine.meta.errors import StatusError
from herder.gateway.proxy.connections import Connections
from herder.gateway.proxy.exchange import Exchange
from herder.gateway.proxy.impersonators import Tokens
from herder.gateway.proxy.pump import Farewell, Pump
from herder.gateway.proxy.rebuilding import Outgoing, answered, passed_on, rebuilt, switching
from herder.gateway.proxy.relay import relayed, whole
from herder.gateway.proxy.targets import Asked, Target

_SWITCHING_PROTOCOLS = 101
_UNKNOWN_TOKEN = (b"Status", b"Unauthorized")
_MAY_NOT_ACT = b"cannot impersonate"  # what a cluster says whose impersonator lost its role

Release = Callable[[], None]
Bind = Callable[[Callable[[], object]], Release]
"""Ties what goes on for long to the right that it goes on by: given what ends it, gives back what unties it."""


def unbound(_end: Callable[[], object]) -> Release:
    return lambda: None


def together(one: Bind, other: Bind) -> Bind:
    """Tied to both rights: it ends with whichever ends first."""

    def both(end: Callable[[], object]) -> Release:
        releases = [bind(end) for bind in (one, other)]

        def over() -> None:
            for release in releases:
                release()

        return over

    return both


def bound_to(request: Request, bind: Bind = unbound) -> Bind:
    """Keeps the turn of a long-running request until what it began has ended."""

    def both(end: Callable[[], object]) -> Release:
        release = bind(end)
        give_back = request.incoming.detach() if request.incoming is not None else None

        def over() -> None:
            release()
            if give_back is not None:
                give_back()

        return over

    return both


class As(Protocol):
    """As whom requests go."""

    async def outgoing(self, request: Request, wanted: Asked, target: Target, upgrade: str) -> Outgoing: ...

    def refused(self, target: Target) -> bool:
        """The cluster did not accept it; whether it is worth another try."""


class AsUser:
    """By the right of who may act as that user."""

    def __init__(self, user: User, tokens: Tokens) -> None:
        self._user = user
        self._tokens = tokens

    async def outgoing(self, request: Request, wanted: Asked, target: Target, upgrade: str) -> Outgoing:
        authorization = await self._tokens.authorization(target, self._user)
        return rebuilt(request, wanted, target, self._user, authorization, upgrade=upgrade)

    def refused(self, target: Target) -> bool:
        self._tokens.refused(target, self._user)
        return True


class AsItself:
    """By a credential of the cluster's own, which the caller came with."""

    def __init__(self, authorization: str) -> None:
        self._authorization = authorization

    async def outgoing(self, request: Request, wanted: Asked, target: Target, upgrade: str) -> Outgoing:
        return passed_on(request, wanted, target, self._authorization, upgrade=upgrade)

    def refused(self, target: Target) -> bool:
        return False


class Passage:
    def __init__(self, connections: Connections, target: Target, wanted: Asked, who: As, bind: Bind = unbound) -> None:
        """`bind` ties what goes on for long to the right by which it was begun."""
        self.bind = bind
        self._connections = connections
        self._target = target
        self._wanted = wanted
        self._who = who

    async def response(self, request: Request) -> Response:
        """Raises StatusError."""
        response = await self._responded(await self._asked(request))
        if _not_accepted(response) and self._who.refused(self._target):
            response = await self._responded(await self._asked(request))
            if _token_unknown(response):  # the caller's own credentials are as good as before
                message = f"cluster {self._wanted.cluster} does not accept by whom users are let in there"
                raise StatusError(message, code=502, reason="BadGateway")
        return response

    async def switched(self, request: Request, protocol: str) -> Exchange | Response:
        """The exchange that ended in another protocol, or the answer that refuses it."""
        exchange = await self._asked(request, upgrade=protocol)
        if exchange.status == _SWITCHING_PROTOCOLS:
            return exchange
        response = await whole(await self._responded(exchange))
        if not _not_accepted(response) or not self._who.refused(self._target):
            return response
        exchange = await self._asked(request, upgrade=protocol)
        return exchange if exchange.status == _SWITCHING_PROTOCOLS else await whole(await self._responded(exchange))

    async def _asked(self, request: Request, *, upgrade: str = "") -> Exchange:
        outgoing = await self._who.outgoing(request, self._wanted, self._target, upgrade)
        return await self._connections.ask(self._target, outgoing, fresh=bool(upgrade))

    async def _responded(self, exchange: Exchange) -> Response:
        return await relayed(self._connections, self._target, exchange, answered(exchange.headers, self._wanted))


def _not_accepted(response: Response) -> bool:
    """The cluster turned away the impersonator, not the user: its token or its role is gone and can be made anew."""
    return _token_unknown(response) or (response.status == 403 and _MAY_NOT_ACT in response.content())


def _token_unknown(response: Response) -> bool:
    """Said by the API server; what runs in the cluster and is reached through it may know users of its own."""
    return response.status == 401 and all(word in response.content() for word in _UNKNOWN_TOKEN)


def refusal(error: StatusError) -> Response:
    headers = {"content-type": "application/json", **error.headers}
    return Response(error.code, headers, msgspec.json.encode(error.to_status()) + b"\n")


class Upgraded:
    """Connections that have changed their protocol, until they end."""

    def __init__(self) -> None:
        self._pumps: dict[Pump, Release] = {}

    def answer(self, hijack: Hijack, outcome: Exchange | Response, protocol: str, bind: Bind) -> None:
        if isinstance(outcome, Response):
            _say(hijack, outcome)
            return
        pump = Pump(outcome.channel, outcome.rest, self._over)
        hijack.take(pump, switching(outcome.headers, protocol))
        self._pumps[pump] = bind(pump.end)

    async def close(self) -> None:
        for pump in list(self._pumps):
            await pump.stop()

    def _over(self, pump: Pump) -> None:
        self._pumps.pop(pump)()


def _say(hijack: Hijack, response: Response) -> None:
    body = response.content()
    start = head(response, "", length=len(body), chunked=False, keep_alive=False)
    transport: asyncio.Transport = hijack.take(Farewell(), start + body)
    transport.close()
