"""The management API where it is a real one behind our address: users come there by the rules of the proxy, all others
by credentials of that API's own, such as the tokens of service accounts, and with no right of the manager's."""

from __future__ import annotations

from dataclasses import replace

from herder.api.management.names import LOCAL, PROXY_PREFIX
from herder.engine.client.wire import Request, Response, User
from herder.engine.front.hijack import Hijack
from herder.engine.meta.errors import BadRequest, StatusError, Unauthorized
from herder.gateway.proxy.acting import wanted_user
from herder.gateway.proxy.channels import Dial, dial_tcp
from herder.gateway.proxy.connections import Connections
from herder.gateway.proxy.exchange import Exchange
from herder.gateway.proxy.local import Remote
from herder.gateway.proxy.passage import AsItself, Bind, Passage, Upgraded, bound_to, refusal, unbound
from herder.gateway.proxy.proxy import ClusterProxy
from herder.gateway.proxy.rebuilding import check_connection, requested_upgrade
from herder.gateway.proxy.targets import asked, is_watch

_PREFIX = f"{PROXY_PREFIX}{LOCAL}"


class Behind:
    def __init__(self, proxy: ClusterProxy, server: Remote, dial: Dial = dial_tcp) -> None:
        self._proxy = proxy
        self._target = server.for_strangers
        self._connections = Connections(dial)  # none of them was ever the manager's
        self._upgraded = Upgraded()

    async def handle(self, request: Request) -> Response:
        if request.user is not None:
            return await self._proxy.handle(_inside(request), request.user)
        try:
            passage = self._passage(request)
            # Only the API server can say whose token this is: until then the sender is known by its address.
            await request.admit(None, long_running=request.flows or is_watch(request))
            await request.receive_body()
            return await passage.response(request)
        except StatusError as error:
            return refusal(error)

    async def upgrade(self, hijack: Hijack, request: Request, user: User, bind: Bind = unbound) -> bool:
        return await self._proxy.upgrade(hijack, _inside(request), user, bind)

    async def upgrade_stranger(self, hijack: Hijack, request: Request) -> bool:
        """True where the connection was taken: by the upgrade, or by the answer that refuses it."""
        protocol = requested_upgrade(request.headers)
        if not protocol:
            return False
        outcome: Exchange | Response
        try:
            passage = self._passage(request)
            await request.admit(None, long_running=True)
            outcome = await passage.switched(request, protocol)
        except StatusError as error:
            outcome = refusal(error)
        self._upgraded.answer(hijack, outcome, protocol, bound_to(request))
        return True

    async def close(self) -> None:
        await self._upgraded.close()
        self._connections.close()

    def _passage(self, request: Request) -> Passage:
        check_connection(request.headers)
        if wanted_user(request.headers) is not None:
            raise BadRequest("Impersonate-User: only users of the manager may act as others here")
        wanted = replace(asked(_inside(request)), prefix="")
        return Passage(self._connections, self._target, wanted, AsItself(_own_bearer(request)))


def _own_bearer(request: Request) -> str:
    """The header of a token that can be the API server's own: one of ours has a colon in it, and stays here."""
    scheme, _, token = request.headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip() or ":" in token:
        raise Unauthorized("must authenticate")
    return f"Bearer {token.strip()}"


def _inside(request: Request) -> Request:
    target = _PREFIX + request.target if request.target else ""
    return replace(request, path=_PREFIX + request.path, target=target)
