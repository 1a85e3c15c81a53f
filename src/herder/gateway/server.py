"""The one door: tunnels of agents, logins, managed clusters, and behind all of them the management API itself.

Who asks is found out here, once. What nobody else answers goes to the management API: as the user whose token it was,
or as it came, for those who have credentials of that API's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Protocol

import msgspec

from herder.api.identity.credentials import credential_of
from herder.api.management.names import TUNNELS
from herder.engine.client.wire import Request, Response
from herder.engine.front.hijack import Hijack
from herder.engine.meta.errors import StatusError
from herder.gateway.identity.identity import Identified
from herder.gateway.identity.parts import IdentityParts
from herder.gateway.peers import Peers
from herder.gateway.proxy.behind import Behind
from herder.gateway.proxy.passage import bound_to
from herder.gateway.proxy.proxy import ClusterProxy
from herder.gateway.proxy.targets import PREFIXES, is_watch
from herder.gateway.registration import Refused, Registration
from herder.tunnel import websocket
from herder.tunnel.registry import Registry

_API = ("/api/", "/apis/")  # where the management API has streams of its own
_OURS = frozenset({"authorization", "cookie"})  # headers that end here
_JSON = {"content-type": "application/json"}
_TEXT = {"content-type": "text/plain; charset=utf-8"}


class Api(Protocol):
    """The management API: embedded, or a real one behind its address."""

    async def handle(self, request: Request) -> Response: ...


Answer = Callable[[Request], Awaitable[Response | None]]
"""Answers what it is asked for, and None to everything else."""


class Gateway:
    """`answers` are those who know themselves whom they let in: machines have other credentials than people."""

    receives_body = True  # bodies are read once it is known who sends them

    def __init__(
        self,
        api: Api,
        *,
        registration: Registration,
        tunnels: Registry,
        identity: IdentityParts,
        proxy: ClusterProxy,
        peers: Peers | None = None,
        answers: Sequence[Answer] = (),
    ) -> None:
        self._api = api
        self._registration = registration
        self._tunnels = tunnels
        self._identity = identity
        self._proxy = proxy
        self._peers = peers
        self._answers = (*answers, identity.logins.handle)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Response:
        try:
            return await self._handled(request)
        except StatusError as error:
            return Response(error.code, {**_JSON, **error.headers}, msgspec.json.encode(error.to_status()))

    async def _handled(self, request: Request) -> Response:
        if request.path in TUNNELS:
            return self._why_no_tunnel(request)
        if (response := self._registration.answer(request)) is not None:
            return response
        for answer in self._answers:
            if (response := await answer(request)) is not None:
                return response
        if request.path.startswith(PREFIXES):
            who = await self._identified(request)
            return self._tied(await self._proxy.handle(request, who.user), request, who)
        if credential_of(request.method, request.headers) is None:
            return await self._api.handle(request)  # a certificate, or a token of a service account
        who = await self._identified(request)
        for answered in (self._identity.kubeconfigs.handle, self._identity.ext.handle):
            if (response := await answered(request, who.user)) is not None:
                return response
        asks_for_groups = request.path == "/apis"
        dropped = _OURS | {"accept-encoding"} if asks_for_groups else _OURS
        headers = {name: value for name, value in request.headers.items() if name not in dropped}
        response = await self._api.handle(replace(request, user=who.user, headers=headers))
        if asks_for_groups:
            return self._identity.ext.groups(response)
        if not isinstance(self._api, Behind):  # else the proxy has tied it
            response = self._proxy.tied_here(response, request, who.user, request.path)
        return self._tied(response, request, who)

    async def _identified(self, request: Request) -> Identified:
        """Who asks, within the limits of that user. Bodies are read later, by whoever checks the user's rights."""
        who = await self._identity.identity.identify(request)
        long_running = request.flows or "upgrade" in request.headers or is_watch(request)
        await request.admit(who.user, long_running=long_running)
        return who

    def _tied(self, response: Response, request: Request, who: Identified) -> Response:
        """An answer that goes on and on, such as a watch, ends with the token: with it the task that sends it."""
        task = asyncio.current_task()
        if response.stream is not None and task is not None:
            untie = self._identity.identity.bind(who, request.path, task.cancel)
            task.add_done_callback(lambda _task: untie())
        return response

    # --- upgrades -----------------------------------------------------------------------------------------------------

    async def upgrade(self, hijack: Hijack, request: Request) -> bool:
        """True where the connection was taken over; else the request is answered like any other."""
        if request.path in TUNNELS:
            return await self._tunnel(hijack, request)
        if request.path.startswith(PREFIXES):
            upgrade = self._proxy.upgrade
        elif isinstance(self._api, Behind) and request.path.startswith(_API):
            if credential_of(request.method, request.headers) is None:
                return await self._api.upgrade_stranger(hijack, request)
            upgrade = self._api.upgrade
        else:
            return False
        try:
            who = await self._identified(request)
        except StatusError:
            return False  # and refused on the usual way
        bind = partial(self._identity.identity.bind, who, request.path)
        return await upgrade(hijack, request, who.user, bound_to(request, bind))

    async def close(self) -> None:
        if isinstance(self._api, Behind):
            await self._api.close()

    async def _tunnel(self, hijack: Hijack, request: Request) -> bool:
        """False where there is none to be had: why not is then told on the usual way."""
        if websocket.upgrade_problem(request.method, request.headers):
            return False
        if self._peers is not None and (peer := self._peers.admitted(request.headers)):
            self._tunnels.accept(peer, request.headers, hijack, peering=True)
            return True
        verdict = await self._registration.authorise(request.headers)
        if isinstance(verdict, Refused):
            return False
        self._tunnels.accept(verdict.key, request.headers, hijack)
        return True

    def _why_no_tunnel(self, request: Request) -> Response:
        problem = websocket.upgrade_problem(request.method, request.headers)
        refused = self._registration.refusal(request.headers)
        if refused is None or (problem and refused.status >= HTTPStatus.CONFLICT):  # one of an earlier attempt
            refused = Refused(400, problem or "the tunnel could not be opened")
        return Response(refused.status, dict(_TEXT), refused.text.encode())
