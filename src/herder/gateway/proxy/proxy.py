"""Cluster proxy, `/k8s/clusters/<cluster>/…`: forwards requests to a cluster's API as the authenticated user.

The user is already authenticated. The proxy decides which identity the request gets and whether it is allowed, rebuilds
the request, sends it through the cluster's tunnel, and streams the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from urllib.parse import unquote

from herder.api.management.names import LOCAL
from herder.engine.apiserver.request.info import RequestInfo, request_info
from herder.engine.client.client import Client
from herder.engine.front.hijack import Hijack
from herder.engine.meta.errors import Forbidden, ServiceUnavailable, StatusError
from herder.engine.wire import Check, Request, Response, User, has_waited
from herder.gateway.proxy.forward import (
    Bind,
    ForwardedRequest,
    ImpersonatedUser,
    RequestIdentity,
    UpgradedConnections,
    combine_binds,
    hold_slot,
    refusal,
    unbound,
)
from herder.gateway.proxy.impersonation.identity import (
    check_authenticated,
    check_impersonated,
    downstream_user,
    requested_user,
)
from herder.gateway.proxy.impersonation.impersonators import Impersonators, Tokens
from herder.gateway.proxy.impersonation.service_accounts import (
    ServiceAccountIdentity,
    ServiceAccounts,
    account_of,
)
from herder.gateway.proxy.local import InProcess, Remote
from herder.gateway.proxy.origins import check_origin
from herder.gateway.proxy.rewrite import check_connection, requested_upgrade
from herder.gateway.proxy.stream_rights import CHECK_SECONDS, MayUse, StreamRights
from herder.gateway.proxy.targets import PREFIXES, ClusterPath, Target, TargetOf, asked
from herder.gateway.proxy.upstream.channel import Dial, dial_tcp
from herder.gateway.proxy.upstream.connections import Connections
from herder.gateway.proxy.upstream.exchange import Exchange
from herder.gateway.proxy.upstream.transport import DownstreamTransport

MayImpersonate = Callable[[User, User], Awaitable[bool]]
"""Whether the first user may impersonate the second, with all groups and extras."""

MayRequest = Callable[[User, RequestInfo], Awaitable[bool]]
"""Whether a user may send this request to the management API."""


_ACCOUNTS = "system:serviceaccount:"
_LOCAL_PREFIXES = tuple(f"{prefix}{LOCAL}/" for prefix in PREFIXES)


CheckAvailable = Callable[[User, str], Awaitable[None]]


async def _always_available(_user: User, _cluster: str) -> None:
    pass


class ClusterProxy:
    """The cluster proxy."""

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
        check_available: CheckAvailable = _always_available,
        tokens: Tokens | None = None,
        dial_local: Dial = dial_tcp,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """Options:

        - `check_available`: raises ServiceUnavailable while a user may not use a cluster, such as during a restore.
        - `server_url`: URL under which browsers reach the manager.
        - `tokens`: source of impersonation tokens; by default impersonation service accounts.
        - `dial_local`: dialer for a `Remote` management cluster.
        - `check_seconds`: how often the rights of open streams are checked.
        """
        self._target_of = target_of
        self._may_use = may_use
        self._check_available = check_available
        self._may_request = may_request
        self._stream_rights = StreamRights(check_seconds)
        self._may_impersonate = may_impersonate
        self._local = local
        self._server_url = server_url
        self._connections = Connections(dial)
        self._local_connections = Connections(dial_local)
        self._upgraded = UpgradedConnections()
        self._tokens = tokens or Impersonators(self._client_with)
        self._accounts = ServiceAccounts(self._client_with)

    def forget(self, cluster: str, user_name: str = "") -> None:
        """Drop the state of a deleted or changed cluster, or of a user who lost access to it."""
        self._tokens.forget(cluster, user_name)
        if not user_name:
            self._accounts.forget(cluster)
            self._connections.forget(cluster)

    async def close(self) -> None:
        self._stream_rights.close()
        await self._upgraded.close()
        self._connections.close()
        self._local_connections.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def handle(self, request: Request, user: User) -> Response:
        try:
            return await self._handled(request, user)
        except StatusError as error:
            return refusal(error)

    async def _handled(self, request: Request, user: User) -> Response:
        wanted = self._checked(request, user, upgrade=False)
        if wanted.cluster == LOCAL and isinstance(self._local, InProcess):
            return self.bind_local_stream(
                await self._local.handle(request, wanted, user), request, user, unquote(wanted.path)
            )
        forwarded = await self._forwarded(request, wanted, user)
        request.repeat_after_wait(partial(self._forwarded, wanted=wanted, user=user))
        await request.receive_body()
        return _bind_stream(await forwarded.response(request), forwarded.bind)

    def _checked(self, request: Request, user: User, *, upgrade: bool) -> ClusterPath:
        check_authenticated(user)
        check_connection(request.headers)
        check_origin(request, self._server_url(), upgrade=upgrade)
        return asked(request)

    async def _forwarded(self, request: Request, wanted: ClusterPath, user: User) -> ForwardedRequest:
        """Raise unless the user, or the user they may impersonate, may use that cluster."""
        begun = asyncio.get_running_loop().time()
        impersonated = requested_user(request.headers)
        account = account_of(impersonated) if wanted.cluster != LOCAL else None
        check_rights = partial(self._acting, wanted, user, impersonated if account is None else None)
        acting = await check_rights()
        if wanted.cluster == LOCAL and isinstance(self._local, Remote):
            local, bind = self._local, self._bind_local(request, user, unquote(wanted.path))
            who: RequestIdentity = ImpersonatedUser(acting, local)
            return ForwardedRequest(self._local_connections, local.target, wanted, who, bind, begun=begun)
        await self._check_available(acting, wanted.cluster)
        target = await self._target_of(wanted.cluster)
        who = ImpersonatedUser(acting, self._tokens)
        if account is not None:
            # Service accounts belong to one cluster, and that cluster decides who may impersonate them.
            await self._accounts.check(target, acting, account)
            who = ServiceAccountIdentity(account, self._accounts)
        if has_waited(begun):
            await check_rights()  # The cluster can be slow, and rights can end meanwhile.
        bind, check = self._bind_cluster(wanted, acting), self._availability(acting, target)
        return ForwardedRequest(self._connections, target, wanted, who, bind, check, begun=begun)

    def _availability(self, user: User, target: Target) -> Check:
        """Repeated before the request is sent: a restore may have begun since it was first checked."""
        return partial(self._check_target, user, target)

    async def _check_target(self, user: User, target: Target) -> None:
        """What is known of a cluster is known of the API server that its agent reports now."""
        await self._check_available(user, target.cluster)
        current = await self._target_of(target.cluster)
        if (current.address, current.ca) != (target.address, target.ca):
            raise ServiceUnavailable(f"cluster {target.cluster}: its agent has changed; try again")

    def _bind_cluster(self, wanted: ClusterPath, user: User) -> Bind:
        """End streams when the user may no longer use the cluster."""
        return partial(self._stream_rights.bind, user, wanted.cluster, partial(self._may_use, user, wanted.cluster))

    def bind_local_stream(self, response: Response, request: Request, user: User, path: str) -> Response:
        """End a stream of the management API, such as a watch, when the user loses the right. `path` is the API
        path."""
        if response.stream is None:
            return response
        return _bind_stream(response, self._bind_local(request, user, path))

    def _bind_local(self, request: Request, user: User, path: str) -> Bind:
        """End streams when this very request would be refused."""
        acting, info = _local_identity(request, user), request_info(request.method, path, request.query)
        return partial(self._stream_rights.bind, acting, info, partial(self._may_request, acting, info))

    async def _acting(self, wanted: ClusterPath, user: User, impersonated: User | None) -> User:
        """The user as the cluster sees it. Raise Forbidden unless they may use the cluster."""
        acting = await self._impersonated(wanted, user, impersonated)
        if wanted.cluster == LOCAL:
            return acting  # The management API decides itself.
        acting = downstream_user(acting)
        if not await self._may_use(acting, wanted.cluster):
            raise Forbidden(f'user "{acting.name}" may not use cluster {wanted.cluster}')
        return acting

    async def _impersonated(self, wanted: ClusterPath, user: User, impersonated: User | None) -> User:
        if impersonated is None:
            return user
        if wanted.cluster != LOCAL:
            check_impersonated(impersonated)
        if not await self._may_impersonate(user, impersonated):
            raise Forbidden(
                f'user "{user.name}" may not act as "{impersonated.name}" with the requested groups and extras'
            )
        return impersonated

    def _client_with(self, target: Target, token: str) -> Client:
        return Client(DownstreamTransport(self._connections, target, token), field_manager="herder-impersonation")

    # --- upgrades ---------------------------------------------------------------------------------------------------

    def forwards_upgrade(self, request: Request) -> bool:
        """Whether an upgrade of this request is forwarded. The embedded server supports none."""
        in_process = isinstance(self._local, InProcess) and request.path.startswith(_LOCAL_PREFIXES)
        return request.path.startswith(PREFIXES) and not in_process

    async def upgrade(self, hijack: Hijack, request: Request, user: User, bind: Bind = unbound) -> bool | Response:
        """True if the connection was hijacked, or the response that refuses the upgrade."""
        protocol = requested_upgrade(request.headers)
        if not protocol:
            return False
        outcome: Exchange | Response
        try:
            wanted = self._checked(request, user, upgrade=True)
            if wanted.cluster == LOCAL and isinstance(self._local, InProcess):
                return False
            forwarded = await self._forwarded(request, wanted, user)
            request.repeat_after_wait(partial(self._forwarded, wanted=wanted, user=user))
            bind = combine_binds(bind, forwarded.bind)
            outcome = await forwarded.switched(request, protocol, bind)
        except StatusError as error:
            outcome = refusal(error)
        return self._upgraded.answer(hijack, outcome, protocol, hold_slot(request, bind))


def _local_identity(request: Request, user: User) -> User:
    """Identity under which the management API answers; it has already authorized the impersonation."""
    named = {name: value for name, value in request.headers.items() if name != "impersonate-uid"}
    impersonated = requested_user(named)
    if impersonated is None:
        return user
    return replace(impersonated, groups=(*impersonated.groups, *_implied_groups(impersonated.name)))


def _implied_groups(name: str) -> tuple[str, ...]:
    """Groups that API servers add to impersonated users."""
    account = name.removeprefix(_ACCOUNTS)
    of_accounts = ("system:serviceaccounts", f"system:serviceaccounts:{account.partition(':')[0]}")
    return ("system:authenticated", *(of_accounts if account != name else ()))


def _bind_stream(response: Response, bind: Bind) -> Response:
    """A stream ends with the task that sends it."""
    task = asyncio.current_task()
    if response.stream is not None and task is not None:
        unbind = bind(task.cancel)
        task.add_done_callback(lambda _task: unbind())
    return response
