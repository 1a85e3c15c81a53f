"""Requests as a service account of the cluster, with a short-lived token of that account.

The cluster itself decides who may impersonate it, so no impersonation headers are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from herder.api.capi.typed import mapping
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.engine.client.client import Client
from herder.engine.meta.errors import BadRequest, Forbidden, StatusError, Unauthorized
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.meta.names import dns1123_label, dns1123_subdomain
from herder.engine.wire import Request, User
from herder.gateway.proxy.impersonation.objects import checked_token
from herder.gateway.proxy.rewrite import Outgoing, forwarded_request
from herder.gateway.proxy.targets import ClusterPath, Target

TOKEN_SECONDS = 600
MAX_TOKENS = 10_000
_USED_FRACTION = 0.8  # fraction of the token's lifetime; requests must finish before it expires
_PREFIX = "system:serviceaccount:"
_REVIEWS = GroupVersionResource("authorization.k8s.io", "v1", "subjectaccessreviews")


@dataclass(frozen=True, slots=True)
class Account:
    """A service account."""

    namespace: str
    name: str


Key = tuple[str, str, str, Account]
"""Cluster, address, CA and account: a token is never sent to another cluster."""


def account_of(wanted: User | None) -> Account | None:
    """The service account in the impersonation headers; None if it is another user. Its groups are implied."""
    if wanted is None or not wanted.name.startswith(_PREFIX):
        return None
    namespace, _, name = wanted.name.removeprefix(_PREFIX).partition(":")
    if dns1123_label(namespace) or dns1123_subdomain(name):
        raise BadRequest(f'Impersonate-User: "{wanted.name}" is not a service account')
    if wanted.groups or wanted.extra:
        raise BadRequest("Impersonate-Group, Impersonate-Extra: not supported for service accounts")
    return Account(namespace, name)


class ServiceAccounts:
    """Short-lived tokens of service accounts."""

    def __init__(self, client_with: Callable[[Target, str], Client]) -> None:
        """`client_with` is called with the agent's token."""
        self._client_with = client_with
        self._tokens: dict[Key, tuple[str, float]] = {}  # token and end of its use

    async def check(self, target: Target, user: User, account: Account) -> None:
        """Raise Forbidden unless the user may impersonate the account; checked per request, as rights may be
        revoked."""
        attributes = {
            "verb": "impersonate",
            "resource": SERVICE_ACCOUNT.plural,
            "namespace": account.namespace,
            "name": account.name,
        }
        spec = {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}
        review = {"apiVersion": _REVIEWS.api_version, "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._asked(target, lambda client: client.create(_REVIEWS, review))
        if not mapping(answer.get("status")).get("allowed"):
            whom = f"{account.namespace}/{account.name}"
            raise Forbidden(
                f'user "{user.name}" may not impersonate service account {whom} of cluster {target.cluster}'
            )

    async def authorization(self, target: Target, account: Account) -> str:
        token, until = self._tokens.get(_key(target, account), ("", 0.0))
        now = asyncio.get_running_loop().time()
        if not token or now >= until:
            token, seconds = await self._request(target, account)
            self._remember(_key(target, account), token, now + seconds * _USED_FRACTION)
        return f"Bearer {token}"

    def refused(self, target: Target, account: Account) -> None:
        self._tokens.pop(_key(target, account), None)

    def forget(self, cluster: str) -> None:
        for key in [key for key in self._tokens if key[0] == cluster]:
            del self._tokens[key]

    async def _request(self, target: Target, account: Account) -> tuple[str, float]:
        spec = {"expirationSeconds": TOKEN_SECONDS}
        token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await self._asked(
            target,
            lambda client: client.create(
                SERVICE_ACCOUNT.resource,
                token_request,
                namespace=account.namespace,
                name=account.name,
                subresource="token",
            ),
        )
        granted = mapping(answer.get("spec")).get("expirationSeconds") or TOKEN_SECONDS
        token = mapping(answer.get("status")).get("token") if isinstance(granted, int) else None
        return checked_token(token, target.cluster), float(min(granted, TOKEN_SECONDS))

    async def _asked(self, target: Target, ask: Callable[[Client], Awaitable[Object]]) -> Object:
        try:
            return await ask(self._client_with(target, target.token))
        except (Unauthorized, Forbidden) as error:  # said of the agent; the user must not take it as said of itself
            message = (
                f"cluster {target.cluster}: its agent may not create impersonation service accounts: {error.message}"
            )
            raise StatusError(message, code=502, reason="BadGateway") from error

    def _remember(self, key: Key, token: str, until: float) -> None:
        self._tokens.pop(key, None)
        self._tokens[key] = (token, until)
        if len(self._tokens) > MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]


def _key(target: Target, account: Account) -> Key:
    return target.cluster, target.address, target.ca, account


class ServiceAccountIdentity:
    """A service account of the cluster."""

    def __init__(self, account: Account, accounts: ServiceAccounts) -> None:
        self._account = account
        self._accounts = accounts

    async def outgoing(self, request: Request, wanted: ClusterPath, target: Target, upgrade: str) -> Outgoing:
        authorization = await self._accounts.authorization(target, self._account)
        return forwarded_request(request, wanted, target, authorization, upgrade=upgrade)

    def refused(self, target: Target) -> bool:
        self._accounts.refused(target, self._account)
        return True
