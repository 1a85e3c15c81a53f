"""The cluster proxy, `/k8s/clusters/<cluster>/…`: any request to a cluster's API, as the user who asks and nobody else.

Who asks was found out before. Here it is decided as whom the request goes on and whether it may; it is then written
anew, sent through the cluster's tunnel, and its answer handed on as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from urllib.parse import unquote

from herder.api.management.names import LOCAL
from herder.engine.apiserver.request import RequestInfo, is_long_running, request_info
from herder.engine.client.client import Client
from herder.engine.client.wire import Request, Response, User
from herder.engine.front.hijack import Hijack
from herder.engine.meta.errors import Forbidden, StatusError
from herder.gateway.proxy.accounts import Account, Accounts, AsAccount, account_of
from herder.gateway.proxy.acting import check_authenticated, check_wanted, crossing, wanted_user
from herder.gateway.proxy.channels import Dial, dial_tcp
from herder.gateway.proxy.connections import Connections
from herder.gateway.proxy.exchange import Exchange
from herder.gateway.proxy.impersonators import Impersonators, Tokens
from herder.gateway.proxy.local import InProcess, Remote
from herder.gateway.proxy.members import CHECK_SECONDS, MayUse, Members
from herder.gateway.proxy.origins import check_origin
from herder.gateway.proxy.passage import AsUser, Bind, Passage, Upgraded, refusal, together, unbound
from herder.gateway.proxy.rebuilding import check_connection, requested_upgrade
from herder.gateway.proxy.targets import Asked, Target, TargetOf, asked
from herder.gateway.proxy.transport import DownstreamTransport

MayImpersonate = Callable[[User, User], Awaitable[bool]]
"""Whether the first may act as the second, with all of its groups and extras."""

MayRequest = Callable[[User, RequestInfo], Awaitable[bool]]
"""Whether a user may ask the management API for this."""


_ACCOUNTS = "system:serviceaccount:"


class ClusterProxy:
    def __init__(
        self,
        *,
        target_of: TargetOf,
        dial: Dial,
        may_use: MayUse,
        may_impersonate: MayImpersonate,
        may_request: MayRequest,
        local: InProcess | Remote,
        server_url: Callable[[], str],
        tokens: Tokens | None = None,
        dial_local: Dial = dial_tcp,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """`server_url`: where browsers reach us. `tokens`: by what right requests become a user's; by default that of
        impersonators, which are made where they are missing. `dial_local`: the way to a `Remote` management cluster.
        `check_seconds`: how often it is asked whether users of watches and shells still have the right to them."""
        self._target_of = target_of
        self._may_use = may_use
        self._may_request = may_request
        self._members = Members(check_seconds)
        self._may_impersonate = may_impersonate
        self._local = local
        self._server_url = server_url
        self._connections = Connections(dial)
        self._local_connections = Connections(dial_local)
        self._upgraded = Upgraded()
        self._tokens = tokens or Impersonators(self._client_with)
        self._accounts = Accounts(self._client_with)

    def forget(self, cluster: str, user_name: str = "") -> None:
        """A cluster that is gone or has changed; with a name: a user who has no business there any more."""
        self._tokens.forget(cluster, user_name)
        if not user_name:
            self._accounts.forget(cluster)
            self._connections.forget(cluster)

    async def close(self) -> None:
        self._members.close()
        await self._upgraded.close()
        self._connections.close()
        self._local_connections.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    async def handle(self, request: Request, user: User) -> Response:
        try:
            return await self._handled(request, user)
        except StatusError as error:
            return refusal(error)

    async def _handled(self, request: Request, user: User) -> Response:
        wanted = self._checked(request, user, upgrade=False)
        if wanted.cluster == LOCAL and isinstance(self._local, InProcess):
            return self.tied_here(await self._local.handle(request, wanted, user), request, user, unquote(wanted.path))
        passage = await self._passage(request, wanted, user)
        await request.receive_body()
        return _tied(await passage.response(request), passage.bind)

    def _checked(self, request: Request, user: User, *, upgrade: bool) -> Asked:
        check_authenticated(user)
        check_connection(request.headers)
        check_origin(request, self._server_url(), upgrade=upgrade)
        return asked(request)

    async def _passage(self, request: Request, wanted: Asked, user: User) -> Passage:
        """Raises unless the user, or whom the user may act as, may use that cluster."""
        someone = wanted_user(request.headers)
        if wanted.cluster != LOCAL and (account := account_of(someone)) is not None:
            return await self._passage_of_account(wanted, user, account)
        acting = await self._acting(wanted, user, someone)
        if wanted.cluster == LOCAL and isinstance(self._local, Remote):
            bind = self._bound_here(request, user, unquote(wanted.path))
            return Passage(self._local_connections, self._local.target, wanted, AsUser(acting, self._local), bind)
        acting, target = await self._usable(wanted, acting)
        return Passage(self._connections, target, wanted, AsUser(acting, self._tokens), self._bound(wanted, acting))

    async def _passage_of_account(self, wanted: Asked, user: User, account: Account) -> Passage:
        """Service accounts are one cluster's, and who may act as them is for that cluster to say."""
        acting, target = await self._usable(wanted, user)
        await self._accounts.check(target, acting, account)
        who = AsAccount(account, self._accounts)
        return Passage(self._connections, target, wanted, who, self._bound(wanted, acting))

    def _bound(self, wanted: Asked, user: User) -> Bind:
        """What goes on in the cluster ends when this user may not use it any more."""
        return partial(self._members.bind, user, wanted.cluster, partial(self._may_use, user, wanted.cluster))

    def tied_here(self, response: Response, request: Request, user: User, path: str) -> Response:
        """An answer of the management API that goes on, such as a watch, ends when the user may not ask for it any
        more. `path`: that of the API."""
        if response.stream is None or not _goes_on(request, path):
            return response
        return _tied(response, self._bound_here(request, user, path))

    def _bound_here(self, request: Request, user: User, path: str) -> Bind:
        """What goes on in the management cluster ends when this very request would be refused."""
        acting, info = _acting_here(request, user), request_info(request.method, path, request.query)
        return partial(self._members.bind, acting, info, partial(self._may_request, acting, info))

    async def _usable(self, wanted: Asked, user: User) -> tuple[User, Target]:
        """The user as the cluster sees it, and where that is."""
        acting = crossing(user)
        if not await self._may_use(acting, wanted.cluster):
            raise Forbidden(f'user "{acting.name}" may not use cluster {wanted.cluster}')
        return acting, await self._target_of(wanted.cluster)

    async def _acting(self, wanted: Asked, user: User, someone: User | None) -> User:
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

    async def upgrade(self, hijack: Hijack, request: Request, user: User, bind: Bind = unbound) -> bool:
        """True where the connection was taken: by the upgrade, or by the answer that refuses it."""
        protocol = requested_upgrade(request.headers)
        if not protocol:
            return False
        outcome: Exchange | Response
        try:
            wanted = self._checked(request, user, upgrade=True)
            if wanted.cluster == LOCAL and isinstance(self._local, InProcess):
                return False
            passage = await self._passage(request, wanted, user)
            outcome = await passage.switched(request, protocol)
            bind = together(bind, passage.bind)
        except StatusError as error:
            outcome = refusal(error)
        self._upgraded.answer(hijack, outcome, protocol, bind)
        return True


def _goes_on(request: Request, path: str) -> bool:
    return is_long_running(request, request_info(request.method, path, request.query))


def _acting_here(request: Request, user: User) -> User:
    """As whom the management API answers. It has checked already that the user may act so."""
    named = {name: value for name, value in request.headers.items() if name != "impersonate-uid"}
    someone = wanted_user(named)
    if someone is None:
        return user
    return replace(someone, groups=(*someone.groups, *_implied_groups(someone.name)))


def _implied_groups(name: str) -> tuple[str, ...]:
    """API servers add these to whoever is acted as."""
    account = name.removeprefix(_ACCOUNTS)
    of_accounts = ("system:serviceaccounts", f"system:serviceaccounts:{account.partition(':')[0]}")
    return ("system:authenticated", *(of_accounts if account != name else ()))


def _tied(response: Response, bind: Bind) -> Response:
    """An answer that goes on, such as a watch, ends with the task that sends it."""
    task = asyncio.current_task()
    if response.stream is not None and task is not None:
        untie = bind(task.cancel)
        task.add_done_callback(lambda _task: untie())
    return response
