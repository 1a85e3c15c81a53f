"""The cluster proxy, `/k8s/clusters/<cluster>/…`: any request to a cluster's API, as the user who asks and nobody else.

Who asks was found out before. Here it is decided as whom the request goes on and whether it may; it is then written
anew, sent through the cluster's tunnel, and its answer handed on as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from herder.api.management.names import LOCAL
from herder.engine.client.client import Client
from herder.engine.client.wire import Request, Response, User
from herder.engine.front.takeover import Takeover
from herder.engine.front.writing import head
from herder.engine.meta.errors import Forbidden, StatusError
from herder.gateway.proxy.acting import check_authenticated, check_wanted, crossing, wanted_user
from herder.gateway.proxy.channels import Dial, dial_tcp
from herder.gateway.proxy.connections import Connections
from herder.gateway.proxy.exchange import Exchange
from herder.gateway.proxy.impersonators import Impersonators, Tokens
from herder.gateway.proxy.local import InProcess, Remote
from herder.gateway.proxy.origins import check_origin
from herder.gateway.proxy.pump import Farewell, Pump
from herder.gateway.proxy.rebuilding import answered, check_connection, rebuilt, requested_upgrade, switching
from herder.gateway.proxy.relay import relayed, whole
from herder.gateway.proxy.targets import Asked, Target, TargetOf, asked
from herder.gateway.proxy.transport import DownstreamTransport

MayUse = Callable[[User, str], Awaitable[bool]]
"""Whether a user may `get` a managed cluster."""

MayImpersonate = Callable[[User, User], Awaitable[bool]]
"""Whether the first may act as the second, with all of its groups and extras."""

_SWITCHING_PROTOCOLS = 101
_UNKNOWN_TOKEN = (b"Status", b"Unauthorized")
_MAY_NOT_ACT = b"cannot impersonate"  # what a cluster says whose impersonator lost its role


class ClusterProxy:
    def __init__(
        self,
        *,
        target_of: TargetOf,
        dial: Dial,
        may_use: MayUse,
        may_impersonate: MayImpersonate,
        local: InProcess | Remote,
        server_url: Callable[[], str],
        tokens: Tokens | None = None,
        dial_local: Dial = dial_tcp,
    ) -> None:
        """`server_url`: where browsers reach us. `tokens`: by what right requests become a user's; by default that of
        impersonators, which are made where they are missing. `dial_local`: the way to a `Remote` management cluster."""
        self._target_of = target_of
        self._may_use = may_use
        self._may_impersonate = may_impersonate
        self._local = local
        self._server_url = server_url
        self._connections = Connections(dial)
        self._local_connections = Connections(dial_local)
        self._pumps: set[Pump] = set()
        self._tokens = tokens or Impersonators(self._client_with)

    def forget(self, cluster: str, user_name: str = "") -> None:
        """A cluster that is gone or has changed; with a name: a user who has no business there any more."""
        self._tokens.forget(cluster, user_name)
        if not user_name:
            self._connections.forget(cluster)

    async def close(self) -> None:
        for pump in list(self._pumps):
            await pump.stop()
        self._connections.close()
        self._local_connections.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    async def handle(self, request: Request, user: User) -> Response:
        try:
            return await self._handled(request, user)
        except StatusError as error:
            return _refusal(error)

    async def _handled(self, request: Request, user: User) -> Response:
        wanted = self._checked(request, user, upgrade=False)
        if wanted.cluster == LOCAL and isinstance(self._local, InProcess):
            return await self._local.handle(request, wanted, user)
        passage = await self._passage(request, wanted, user)
        response = await passage.respond(await passage.ask(request))
        if _not_accepted(response):
            passage.refused()
            response = await passage.respond(await passage.ask(request))
        if _token_unknown(response):  # the caller's own credentials are as good as before
            message = f"cluster {wanted.cluster} does not accept by whom users are let in there"
            raise StatusError(message, code=502, reason="BadGateway")
        return response

    def _checked(self, request: Request, user: User, *, upgrade: bool) -> Asked:
        check_authenticated(user)
        check_connection(request.headers)
        check_origin(request, self._server_url(), upgrade=upgrade)
        return asked(request)

    async def _passage(self, request: Request, wanted: Asked, user: User) -> _Passage:
        """Raises unless the user, or whom the user may act as, may use that cluster."""
        acting = await self._acting(request, wanted, user)
        if wanted.cluster == LOCAL and isinstance(self._local, Remote):
            return _Passage(self._local_connections, self._local.target, self._local, acting, wanted)
        acting = crossing(acting)
        if not await self._may_use(acting, wanted.cluster):
            raise Forbidden(f'user "{acting.name}" may not use cluster {wanted.cluster}')
        target = await self._target_of(wanted.cluster)
        return _Passage(self._connections, target, self._tokens, acting, wanted)

    async def _acting(self, request: Request, wanted: Asked, user: User) -> User:
        someone = wanted_user(request.headers)
        if someone is None:
            return user
        if wanted.cluster != LOCAL:
            check_wanted(someone)
        if not await self._may_impersonate(user, someone):
            raise Forbidden(f'user "{user.name}" may not act as "{someone.name}" with what else was asked for')
        return someone

    def _client_with(self, target: Target, token: str) -> Client:
        return Client(DownstreamTransport(self._connections, target, token), field_manager="herder-impersonation")

    # --- upgrades -----------------------------------------------------------------------------------------------------

    async def upgrade(self, takeover: Takeover, request: Request, user: User) -> bool:
        """True where the connection was taken: by the upgrade, or by the answer that refuses it."""
        protocol = requested_upgrade(request.headers)
        if not protocol:
            return False
        try:
            wanted = self._checked(request, user, upgrade=True)
            if wanted.cluster == LOCAL and isinstance(self._local, InProcess):
                return False
            passage = await self._passage(request, wanted, user)
            outcome = await _switched(passage, request, protocol)
        except StatusError as error:
            outcome = _refusal(error)
        if isinstance(outcome, Response):
            _answer(takeover, outcome)
        else:
            pump = Pump(outcome.channel, outcome.rest, self._pumps.discard)
            self._pumps.add(pump)
            takeover.take(pump, switching(outcome.headers, protocol))
        return True


class _Passage:
    """One user's way into one cluster."""

    def __init__(self, connections: Connections, target: Target, tokens: Tokens, user: User, wanted: Asked) -> None:
        self._connections = connections
        self._target = target
        self._tokens = tokens
        self._user = user
        self._wanted = wanted

    async def ask(self, request: Request, *, upgrade: str = "") -> Exchange:
        authorization = await self._tokens.authorization(self._target, self._user)
        outgoing = rebuilt(request, self._wanted, self._target, self._user, authorization, upgrade=upgrade)
        return await self._connections.ask(self._target, outgoing, fresh=bool(upgrade))

    async def respond(self, exchange: Exchange) -> Response:
        return await relayed(self._connections, self._target, exchange, answered(exchange.headers, self._wanted))

    def refused(self) -> None:
        self._tokens.refused(self._target, self._user)


async def _switched(passage: _Passage, request: Request, protocol: str) -> Exchange | Response:
    """The exchange that ended in another protocol, or the answer that refuses it."""
    exchange = await passage.ask(request, upgrade=protocol)
    if exchange.status == _SWITCHING_PROTOCOLS:
        return exchange
    response = await whole(await passage.respond(exchange))
    if not _not_accepted(response):
        return response
    passage.refused()
    exchange = await passage.ask(request, upgrade=protocol)
    return exchange if exchange.status == _SWITCHING_PROTOCOLS else await whole(await passage.respond(exchange))


def _not_accepted(response: Response) -> bool:
    """The cluster turned away the impersonator, not the user: its token or its role is gone and can be made anew."""
    return _token_unknown(response) or (response.status == 403 and _MAY_NOT_ACT in response.content())


def _token_unknown(response: Response) -> bool:
    """Said by the API server; what runs in the cluster and is reached through it may know users of its own."""
    return response.status == 401 and all(word in response.content() for word in _UNKNOWN_TOKEN)


def _refusal(error: StatusError) -> Response:
    headers = {"content-type": "application/json", **error.headers}
    return Response(error.code, headers, msgspec.json.encode(error.to_status()) + b"\n")


def _answer(takeover: Takeover, response: Response) -> None:
    body = response.content()
    start = head(response, "", length=len(body), chunked=False, keep_alive=False)
    transport: asyncio.Transport = takeover.take(Farewell(), start + body)
    transport.close()
