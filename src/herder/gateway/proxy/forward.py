"""Forward one request to one cluster under an identity, including protocol upgrades."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from herder.engine.front.hijack import Hijack
from herder.engine.meta.errors import StatusError
from herder.engine.wire import Check, Request, Response, User
from herder.gateway.proxy.impersonation.impersonators import Tokens
from herder.gateway.proxy.relay import buffered, relay
from herder.gateway.proxy.rewrite import (
    Outgoing,
    forbid_caching,
    forwarded_request,
    impersonated_request,
    response_headers,
    switching_head,
)
from herder.gateway.proxy.targets import ClusterPath, Target
from herder.gateway.proxy.upstream.connections import Connections, unchecked
from herder.gateway.proxy.upstream.exchange import Exchange
from herder.gateway.proxy.upstream.pump import Pump

_SWITCHING_PROTOCOLS = 101
_REFUSAL_SECONDS = 10.0  # to read the response to a refused upgrade; refusals are short
_UNKNOWN_TOKEN = (b"Status", b"Unauthorized")
_CANNOT_IMPERSONATE = b"cannot impersonate"  # the error of a cluster whose impersonator lost its role

Release = Callable[[], None]
Bind = Callable[[Callable[[], object]], Release]
"""Binds a stream to a right: takes the function that ends it, returns the function that unbinds it."""


def unbound(_end: Callable[[], object]) -> Release:
    return lambda: None


def combine_binds(one: Bind, other: Bind) -> Bind:
    """Bind to both rights: the stream ends with whichever ends first."""

    def both(end: Callable[[], object]) -> Release:
        releases = [bind(end) for bind in (one, other)]

        def over() -> None:
            for release in releases:
                release()

        return over

    return both


def hold_slot(request: Request, bind: Bind = unbound) -> Bind:
    """Keep the long-running request slot until the stream has ended."""

    def both(end: Callable[[], object]) -> Release:
        release = bind(end)
        give_back = request.incoming.detach() if request.incoming is not None else None

        def over() -> None:
            release()
            if give_back is not None:
                give_back()

        return over

    return both


class RequestIdentity(Protocol):
    """The identity under which requests are forwarded."""

    async def outgoing(self, request: Request, wanted: ClusterPath, target: Target, upgrade: str) -> Outgoing: ...

    def refused(self, target: Target) -> bool:
        """The cluster rejected the identity; returns whether a retry makes sense."""


class ImpersonatedUser:
    """Impersonates a user."""

    def __init__(self, user: User, tokens: Tokens) -> None:
        self._user = user
        self._tokens = tokens

    async def outgoing(self, request: Request, wanted: ClusterPath, target: Target, upgrade: str) -> Outgoing:
        authorization = await self._tokens.authorization(target, self._user)
        return impersonated_request(request, wanted, target, self._user, authorization, upgrade=upgrade)

    def refused(self, target: Target) -> bool:
        self._tokens.refused(target, self._user)
        return True


class OwnCredential:
    """The caller's own credential of that cluster."""

    def __init__(self, authorization: str) -> None:
        self._authorization = authorization

    async def outgoing(self, request: Request, wanted: ClusterPath, target: Target, upgrade: str) -> Outgoing:
        return forwarded_request(request, wanted, target, self._authorization, upgrade=upgrade)

    def refused(self, target: Target) -> bool:
        return False


class ForwardedRequest:
    """A request to one cluster under one identity."""

    def __init__(
        self,
        connections: Connections,
        target: Target,
        wanted: ClusterPath,
        who: RequestIdentity,
        bind: Bind = unbound,
        check: Check = unchecked,
        *,
        begun: float,
    ) -> None:
        """`bind` binds long-running streams to the right that they started with. `check` raises StatusError if the
        request must not be sent any more. `begun` is the time of the event loop when the rights were checked: later
        checks may have waited."""
        self.bind = bind
        self._check = check
        self._authorized_at = begun
        self._connections = connections
        self._target = target
        self._wanted = wanted
        self._who = who

    async def response(self, request: Request) -> Response:
        """Raises StatusError."""
        response = await self._response_of(await self._asked(request))
        if _impersonator_refused(response) and self._who.refused(self._target):
            response = await self._response_of(await self._asked(request))
            if _token_unknown(response):  # The caller's own credentials are still valid, so this is not a 401.
                message = (
                    f"cluster {self._wanted.cluster} does not accept the token of the impersonation service account"
                )
                raise StatusError(message, code=502, reason="BadGateway")
        return response

    async def switched(self, request: Request, protocol: str, bind: Bind = unbound) -> Exchange | Response:
        """The upgraded exchange, or the response that refuses the upgrade. `bind` binds the latter, which is buffered:
        a server may answer the request without the upgrade, for example with a watch."""
        outcome = await self._switched_once(request, protocol, bind)
        if isinstance(outcome, Exchange) or not _impersonator_refused(outcome) or not self._who.refused(self._target):
            return outcome
        return await self._switched_once(request, protocol, bind)

    async def _switched_once(self, request: Request, protocol: str, bind: Bind) -> Exchange | Response:
        exchange = await self._asked(request, upgrade=protocol)
        if exchange.status == _SWITCHING_PROTOCOLS:
            return exchange
        task = asyncio.current_task()
        release = bind(task.cancel) if task is not None else None
        try:
            async with asyncio.timeout(_REFUSAL_SECONDS):
                return await buffered(await self._response_of(exchange))
        except (TimeoutError, OSError) as error:
            reason = str(error) or f"its response did not end within {_REFUSAL_SECONDS:.0f} s"
            message = f"cluster {self._wanted.cluster}: its API did not switch protocols: {reason}"
            raise StatusError(message, code=502, reason="BadGateway") from error
        finally:
            if release is not None:
                release()

    async def _asked(self, request: Request, *, upgrade: str = "") -> Exchange:
        outgoing = await self._who.outgoing(request, self._wanted, self._target, upgrade)
        check = partial(self._check_again, request)
        return await self._connections.ask(self._target, outgoing, fresh=bool(upgrade), check=check)

    async def _check_again(self, request: Request) -> None:
        """Credentials of the cluster and a connection to it can take minutes, and rights can end meanwhile."""
        await self._check()
        await request.check_again(self._authorized_at)

    async def _response_of(self, exchange: Exchange) -> Response:
        return await relay(self._connections, self._target, exchange, response_headers(exchange.headers, self._wanted))


def _impersonator_refused(response: Response) -> bool:
    """Whether the cluster refused the impersonator, not the user: its token or role was deleted and can be
    recreated."""
    return _token_unknown(response) or (response.status == 403 and _CANNOT_IMPERSONATE in response.content())


def _token_unknown(response: Response) -> bool:
    """Whether the API server said so; workloads behind its proxy may have users of their own."""
    return response.status == 401 and all(word in response.content() for word in _UNKNOWN_TOKEN)


def refusal(error: StatusError) -> Response:
    headers = {"content-type": "application/json", **error.headers}
    return Response(error.code, headers, msgspec.json.encode(error.to_status()) + b"\n")


class UpgradedConnections:
    """Open upgraded connections."""

    def __init__(self) -> None:
        self._pumps: dict[Pump, Release] = {}

    def answer(self, hijack: Hijack, outcome: Exchange | Response, protocol: str, bind: Bind) -> bool | Response:
        """True if the connection is upgraded, otherwise the response, which the listener sends within its limits."""
        if isinstance(outcome, Response):
            return forbid_caching(outcome)
        pump = Pump(outcome.channel, outcome.upgraded_data, self._over)
        hijack.take(pump, switching_head(outcome.headers, protocol))
        self._pumps[pump] = bind(pump.end)
        return True

    async def close(self) -> None:
        for pump in list(self._pumps):
            await pump.stop()

    def _over(self, pump: Pump) -> None:
        self._pumps.pop(pump)()
