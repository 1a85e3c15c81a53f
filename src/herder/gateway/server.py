"""Gateway: tunnels of agents, logins, managed clusters, and the management API behind one listener.

Requests are authenticated here, once. Requests that no other handler answers go to the management API: as the user of
their token, or unchanged if they carry credentials of that API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Protocol

import msgspec

from herder.api.identity.authn.credentials import credential_of
from herder.api.management.names import TUNNELS
from herder.engine.front.hijack import Hijack
from herder.engine.meta.errors import StatusError
from herder.engine.wire import Request, Response, User
from herder.gateway.agents.registration import Refused, Registration
from herder.gateway.cluster_objects import ClusterObjects
from herder.gateway.ha.peers import Peers
from herder.gateway.identity.identity import Identified
from herder.gateway.identity.services import IdentityServices
from herder.gateway.proxy.management_api import RemoteManagementApi
from herder.gateway.proxy.proxy import ClusterProxy
from herder.gateway.proxy.rewrite import forbid_caching, requested_upgrade
from herder.gateway.proxy.targets import PREFIXES, is_long_running
from herder.tunnel import websocket
from herder.tunnel.registry import Registry

_API = ("/api/", "/apis/")  # paths with upgrades of the management API
_GATEWAY_HEADERS = frozenset({"authorization", "cookie"})  # headers that are not forwarded
_JSON = {"content-type": "application/json"}
_TEXT = {"content-type": "text/plain; charset=utf-8"}


class Api(Protocol):
    """The management API: embedded or remote."""

    async def handle(self, request: Request) -> Response: ...


RouteHandler = Callable[[Request], Awaitable[Response | None]]
"""Answers requests for its paths, and returns None for all others."""


UserHandler = Callable[[Request, User], Awaitable[Response | None]]
"""The same, for requests of logged-in users."""


class Gateway:
    """Request handler of the gateway; `answers` are handlers with their own authentication, such as for machines."""

    receives_body = True  # Bodies are read after authentication.

    def __init__(
        self,
        api: Api,
        *,
        registration: Registration,
        tunnels: Registry,
        identity: IdentityServices,
        proxy: ClusterProxy,
        peers: Peers | None = None,
        clusters: ClusterObjects | None = None,
        answers: Sequence[RouteHandler] = (),
    ) -> None:
        self._api = api
        self._registration = registration
        self._tunnels = tunnels
        self._identity = identity
        self._proxy = proxy
        self._peers = peers
        self._answers = (*answers, identity.logins.handle)
        self._user_answers: tuple[UserHandler, ...] = (
            identity.kubeconfigs.handle,
            identity.ext.handle,
            *((clusters.handle,) if clusters else ()),
        )

    # --- requests ---------------------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Response:
        try:
            response = await self._dispatch(request)
        except StatusError as error:
            response = Response(error.code, {**_JSON, **error.headers}, msgspec.json.encode(error.to_status()))
        return forbid_caching(response)

    async def _dispatch(self, request: Request) -> Response:
        if request.path in TUNNELS:
            return self._tunnel_refusal(request)
        if (response := self._registration.answer(request)) is not None:
            return response
        for answer in self._answers:
            if (response := await answer(request)) is not None:
                return response
        if request.path.startswith(PREFIXES):
            caller = await self._identified(request)
            return self._bind_stream(await self._proxy.handle(request, caller.user), request, caller)
        if credential_of(request.method, request.headers) is None:
            return await self._api.handle(request)  # a client certificate, or a service account token
        caller = await self._identified(request)
        for handler in self._user_answers:
            if (response := await handler(request, caller.user)) is not None:
                return self._bind_stream(response, request, caller)
        lists_groups = request.path == "/apis"
        dropped = _GATEWAY_HEADERS | {"accept-encoding"} if lists_groups else _GATEWAY_HEADERS
        headers = {name: value for name, value in request.headers.items() if name not in dropped}
        response = await self._api.handle(replace(request, user=caller.user, headers=headers))
        if lists_groups:
            return self._identity.ext.groups(response)
        if not isinstance(self._api, RemoteManagementApi):  # Otherwise the proxy has bound it.
            response = self._proxy.bind_local_stream(response, request, caller.user, request.path)
        return self._bind_stream(response, request, caller)

    async def _identified(self, request: Request, *, upgrades: bool = False) -> Identified:
        """Authenticate and apply the user's limits. Bodies are read later, after authorization."""
        caller = await self._identity.identity.identify(request)
        if await request.admit(caller.user, long_running=upgrades or is_long_running(request)):
            caller = await self._identity.identity.identify(request)
        request.repeat_after_wait(self._identity.identity.identify)
        return caller

    def _bind_stream(self, response: Response, request: Request, caller: Identified) -> Response:
        """A stream, such as a watch, ends with its token: the task that sends it is canceled."""
        task = asyncio.current_task()
        if response.stream is not None and task is not None:
            unbind = self._identity.identity.bind(caller, request.path, task.cancel)
            task.add_done_callback(lambda _task: unbind())
        return response

    # --- upgrades ---------------------------------------------------------------------------------------------------

    async def upgrade(self, hijack: Hijack, request: Request) -> bool | Response:
        """True if the connection was hijacked, or the response that refuses the upgrade; otherwise the request is
        answered normally."""
        if request.path in TUNNELS:
            return await self._tunnel(hijack, request)
        if not requested_upgrade(request.headers):
            return False
        if self._proxy.forwards_upgrade(request):
            upgrade = self._proxy.upgrade
        elif isinstance(self._api, RemoteManagementApi) and request.path.startswith(_API):
            if credential_of(request.method, request.headers) is None:
                return await self._api.upgrade_direct(hijack, request)
            upgrade = self._api.upgrade
        else:
            return False
        try:
            caller = await self._identified(request, upgrades=True)
        except StatusError:
            return False  # The normal path answers with the error.
        bind = partial(self._identity.identity.bind, caller, request.path)
        return await upgrade(hijack, request, caller.user, bind)

    async def close(self) -> None:
        if isinstance(self._api, RemoteManagementApi):
            await self._api.close()

    async def _tunnel(self, hijack: Hijack, request: Request) -> bool:
        """False if the tunnel is refused; the normal path answers with the reason."""
        if websocket.upgrade_problem(request.method, request.headers):
            return False
        if self._peers is not None and (peer := self._peers.admitted(request.headers)):
            self._tunnels.accept(peer, request.headers, hijack, peering=True)
            return True
        verdict = await self._registration.authorize(request.headers)
        if isinstance(verdict, Refused):
            return False
        self._tunnels.accept(verdict.key, request.headers, hijack)
        return True

    def _tunnel_refusal(self, request: Request) -> Response:
        problem = websocket.upgrade_problem(request.method, request.headers)
        refused = self._registration.refusal(request.headers)
        if refused is None or (problem and refused.status >= HTTPStatus.CONFLICT):  # a refusal of an earlier attempt
            refused = Refused(400, problem or "the tunnel could not be opened")
        return Response(refused.status, dict(_TEXT), refused.text.encode())
