"""Management API of a remote API server behind our address.

Users are forwarded by the cluster proxy. All other clients, such as service accounts, use their own credentials, never
the manager's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from herder.api.management.names import LOCAL, PROXY_PREFIX
from herder.engine.front.hijack import Hijack
from herder.engine.meta.errors import BadRequest, StatusError, Unauthorized
from herder.engine.wire import Request, Response, User
from herder.gateway.proxy.forward import (
    Bind,
    ForwardedRequest,
    OwnCredential,
    Release,
    UpgradedConnections,
    hold_slot,
    refusal,
    unbound,
)
from herder.gateway.proxy.impersonation.identity import requested_user
from herder.gateway.proxy.local import Remote
from herder.gateway.proxy.proxy import ClusterProxy
from herder.gateway.proxy.relay import discard
from herder.gateway.proxy.rewrite import check_connection, requested_upgrade
from herder.gateway.proxy.targets import asked, is_long_running
from herder.gateway.proxy.upstream.channel import Dial, dial_tcp
from herder.gateway.proxy.upstream.connections import Connections
from herder.gateway.proxy.upstream.exchange import Exchange

_PREFIX = f"{PROXY_PREFIX}{LOCAL}"
_MUST_AUTHENTICATE = "must authenticate"


class AccountTokens(Protocol):
    """Service account tokens that are stored in Secrets. API servers do not end streams with their token."""

    def bind(self, token: str, end: Callable[[], object]) -> Release:
        """Call `end` when the token is deleted; returns the function that unbinds it."""

    async def is_current(self, token: str) -> bool:
        """Whether the token exists now."""


class RemoteManagementApi:
    """Forwards requests to the remote management API."""

    def __init__(self, proxy: ClusterProxy, server: Remote, accounts: AccountTokens, dial: Dial = dial_tcp) -> None:
        self._proxy = proxy
        self._accounts = accounts
        self._target = server.without_client_certificate
        self._connections = Connections(dial)  # These connections never carry the manager's credentials.
        self._upgraded = UpgradedConnections()

    async def handle(self, request: Request) -> Response:
        if request.user is not None:
            return await self._proxy.handle(_inside(request), request.user)
        try:
            forwarded = self._forwarded(request)
            # Only the API server knows the owner of the token, so the client is limited by address.
            await request.admit(None, long_running=is_long_running(request))
            await request.receive_body()
            return await self._bind_stream(await forwarded.response(request), _token(request))
        except StatusError as error:
            return refusal(error)

    async def upgrade(self, hijack: Hijack, request: Request, user: User, bind: Bind = unbound) -> bool | Response:
        return await self._proxy.upgrade(hijack, _inside(request), user, bind)

    async def upgrade_direct(self, hijack: Hijack, request: Request) -> bool | Response:
        """True if the connection was hijacked, or the response that refuses the upgrade."""
        protocol = requested_upgrade(request.headers)
        if not protocol:
            return False
        outcome: Exchange | Response
        try:
            forwarded = self._forwarded(request)
            bind = partial(self._accounts.bind, _token(request))
            await request.admit(None, long_running=True)
            outcome = await forwarded.switched(request, protocol, bind)
        except StatusError as error:
            return self._upgraded.answer(hijack, refusal(error), protocol, unbound)
        outcome = await self._checked(outcome, bind, _token(request))
        return self._upgraded.answer(hijack, outcome, protocol, hold_slot(request, bind))

    async def _checked(self, outcome: Exchange | Response, bind: Bind, token: str) -> Exchange | Response:
        """The outcome of an upgrade, or a refusal if the token does not exist any more."""
        task = asyncio.current_task()
        assert task is not None
        release = bind(task.cancel)
        is_current = False
        try:
            is_current = await self._accounts.is_current(token)
        finally:
            release()
            if not is_current and isinstance(outcome, Exchange):
                outcome.channel.close()
        return outcome if is_current else refusal(Unauthorized(_MUST_AUTHENTICATE))

    async def _bind_stream(self, response: Response, token: str) -> Response:
        """End a stream, such as a watch, with the token of its request."""
        task = asyncio.current_task()
        if response.stream is None or task is None:
            return response
        release = self._accounts.bind(token, task.cancel)
        task.add_done_callback(lambda _task: release())
        if await self._accounts.is_current(token):
            return response
        await discard(response)
        raise Unauthorized(_MUST_AUTHENTICATE)

    async def close(self) -> None:
        await self._upgraded.close()
        self._connections.close()

    def _forwarded(self, request: Request) -> ForwardedRequest:
        check_connection(request.headers)
        if requested_user(request.headers) is not None:
            raise BadRequest("Impersonate-User: only users of the manager may impersonate others")
        wanted = replace(asked(_inside(request)), prefix="")
        who, begun = OwnCredential(_own_bearer(request)), asyncio.get_running_loop().time()
        return ForwardedRequest(self._connections, self._target, wanted, who, begun=begun)


def _own_bearer(request: Request) -> str:
    """A token that may be the API server's; tokens of the manager contain a colon and must not be forwarded."""
    scheme, _, token = request.headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip() or ":" in token:
        raise Unauthorized(_MUST_AUTHENTICATE)
    return f"Bearer {token.strip()}"


def _token(request: Request) -> str:
    return _own_bearer(request).removeprefix("Bearer ")


def _inside(request: Request) -> Request:
    target = _PREFIX + request.target if request.target else ""
    return replace(request, path=_PREFIX + request.path, target=target)
