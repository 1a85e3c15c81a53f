"""Management API of a remote API server behind our address.

Users are forwarded by the cluster proxy. All other clients, such as service accounts, use their own credentials, never
the manager's.
"""

from __future__ import annotations

from dataclasses import replace

from herder.api.management.names import LOCAL, PROXY_PREFIX
from herder.engine.front.hijack import Hijack
from herder.engine.meta.errors import BadRequest, StatusError, Unauthorized
from herder.engine.wire import Request, Response, User
from herder.gateway.proxy.forward import (
    Bind,
    ForwardedRequest,
    OwnCredential,
    UpgradedConnections,
    hold_slot,
    refusal,
    unbound,
)
from herder.gateway.proxy.impersonation.identity import requested_user
from herder.gateway.proxy.local import Remote
from herder.gateway.proxy.proxy import ClusterProxy
from herder.gateway.proxy.rewrite import check_connection, requested_upgrade
from herder.gateway.proxy.targets import asked, is_watch
from herder.gateway.proxy.upstream.channel import Dial, dial_tcp
from herder.gateway.proxy.upstream.connections import Connections
from herder.gateway.proxy.upstream.exchange import Exchange

_PREFIX = f"{PROXY_PREFIX}{LOCAL}"


class RemoteManagementApi:
    """Forwards requests to the remote management API."""

    def __init__(self, proxy: ClusterProxy, server: Remote, dial: Dial = dial_tcp) -> None:
        self._proxy = proxy
        self._target = server.without_client_certificate
        self._connections = Connections(dial)  # These connections never carry the manager's credentials.
        self._upgraded = UpgradedConnections()

    async def handle(self, request: Request) -> Response:
        if request.user is not None:
            return await self._proxy.handle(_inside(request), request.user)
        try:
            forwarded = self._forwarded(request)
            # Only the API server knows the owner of the token, so the client is limited by address.
            await request.admit(None, long_running=request.is_streaming or is_watch(request))
            await request.receive_body()
            return await forwarded.response(request)
        except StatusError as error:
            return refusal(error)

    async def upgrade(self, hijack: Hijack, request: Request, user: User, bind: Bind = unbound) -> bool:
        return await self._proxy.upgrade(hijack, _inside(request), user, bind)

    async def upgrade_direct(self, hijack: Hijack, request: Request) -> bool:
        """True if the connection was hijacked: by the upgrade, or by the response that refuses it."""
        protocol = requested_upgrade(request.headers)
        if not protocol:
            return False
        outcome: Exchange | Response
        try:
            forwarded = self._forwarded(request)
            await request.admit(None, long_running=True)
            outcome = await forwarded.switched(request, protocol)
        except StatusError as error:
            outcome = refusal(error)
        self._upgraded.answer(hijack, outcome, protocol, hold_slot(request))
        return True

    async def close(self) -> None:
        await self._upgraded.close()
        self._connections.close()

    def _forwarded(self, request: Request) -> ForwardedRequest:
        check_connection(request.headers)
        if requested_user(request.headers) is not None:
            raise BadRequest("Impersonate-User: only users of the manager may impersonate others")
        wanted = replace(asked(_inside(request)), prefix="")
        return ForwardedRequest(self._connections, self._target, wanted, OwnCredential(_own_bearer(request)))


def _own_bearer(request: Request) -> str:
    """A token that may be the API server's; tokens of the manager contain a colon and must not be forwarded."""
    scheme, _, token = request.headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip() or ":" in token:
        raise Unauthorized("must authenticate")
    return f"Bearer {token.strip()}"


def _inside(request: Request) -> Request:
    target = _PREFIX + request.target if request.target else ""
    return replace(request, path=_PREFIX + request.path, target=target)
