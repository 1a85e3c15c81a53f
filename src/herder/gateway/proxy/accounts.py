"""Service accounts of a cluster, for those who may act as them there: the cluster itself says who may, and gives a
short-lived token of the account, so that nothing has to be impersonated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.engine.client.client import Client
from herder.engine.client.wire import Request, User
from herder.engine.meta.errors import BadRequest, Forbidden, StatusError, Unauthorized
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.meta.names import dns1123_label, dns1123_subdomain
from herder.gateway.proxy.rebuilding import Outgoing, passed_on
from herder.gateway.proxy.targets import Asked, Target

TOKEN_SECONDS = 600
REMEMBERED = 10_000
_USED_FOR = 0.8  # of its life; what is asked with it shall be answered before it ends
_PREFIX = "system:serviceaccount:"
_REVIEWS = GroupVersionResource("authorization.k8s.io", "v1", "subjectaccessreviews")


@dataclass(frozen=True, slots=True)
class Account:
    namespace: str
    name: str


Key = tuple[str, str, str, Account]
"""Cluster, where it is and whom it trusts: a token is never shown to another."""


def account_of(wanted: User | None) -> Account | None:
    """The service account that somebody asks to act as; None where it is none. What it is a member of, it brings."""
    if wanted is None or not wanted.name.startswith(_PREFIX):
        return None
    namespace, _, name = wanted.name.removeprefix(_PREFIX).partition(":")
    if dns1123_label(namespace) or dns1123_subdomain(name):
        raise BadRequest(f'Impersonate-User: "{wanted.name}" names no service account')
    if wanted.groups or wanted.extra:
        raise BadRequest("Impersonate-Group, Impersonate-Extra: a service account's groups and extras are its own")
    return Account(namespace, name)


class Accounts:
    def __init__(self, client_with: Callable[[Target, str], Client]) -> None:
        """`client_with` the agent's token."""
        self._client_with = client_with
        self._tokens: dict[Key, tuple[str, float]] = {}  # and until when each is used

    async def check(self, target: Target, user: User, account: Account) -> None:
        """Raises Forbidden unless the user may act as it there. That is asked each time: rights end when they end."""
        attributes = {
            "verb": "impersonate",
            "resource": SERVICE_ACCOUNT.plural,
            "namespace": account.namespace,
            "name": account.name,
        }
        spec = {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}
        review = {"apiVersion": _REVIEWS.api_version, "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._asked(target, lambda client: client.create(_REVIEWS, review))
        if not (answer.get("status") or {}).get("allowed"):
            whom = f"{account.namespace}/{account.name}"
            raise Forbidden(f'user "{user.name}" may not act as service account {whom} of cluster {target.cluster}')

    async def authorization(self, target: Target, account: Account) -> str:
        token, until = self._tokens.get(_key(target, account), ("", 0.0))
        now = asyncio.get_running_loop().time()
        if not token or now >= until:
            token, seconds = await self._request(target, account)
            self._remember(_key(target, account), token, now + seconds * _USED_FOR)
        return f"Bearer {token}"

    def refused(self, target: Target, account: Account) -> None:
        self._tokens.pop(_key(target, account), None)

    def forget(self, cluster: str) -> None:
        for key in [key for key in self._tokens if key[0] == cluster]:
            del self._tokens[key]

    async def _request(self, target: Target, account: Account) -> tuple[str, float]:
        spec = {"expirationSeconds": TOKEN_SECONDS}
        wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await self._asked(
            target,
            lambda client: client.create(
                SERVICE_ACCOUNT.resource, wish, namespace=account.namespace, name=account.name, subresource="token"
            ),
        )
        granted = (answer.get("spec") or {}).get("expirationSeconds") or TOKEN_SECONDS
        return str(answer["status"]["token"]), float(granted)

    async def _asked(self, target: Target, ask: Callable[[Client], Awaitable[Object]]) -> Object:
        try:
            return await ask(self._client_with(target, target.token))
        except (Unauthorized, Forbidden) as error:  # said of the agent; the user must not take it as said of itself
            message = f"cluster {target.cluster}: its agent is not allowed to let users in: {error.message}"
            raise StatusError(message, code=502, reason="BadGateway") from error

    def _remember(self, key: Key, token: str, until: float) -> None:
        self._tokens.pop(key, None)
        self._tokens[key] = (token, until)
        if len(self._tokens) > REMEMBERED:
            del self._tokens[next(iter(self._tokens))]


def _key(target: Target, account: Account) -> Key:
    return target.cluster, target.address, target.ca, account


class AsAccount:
    """As a service account of the cluster's own."""

    def __init__(self, account: Account, accounts: Accounts) -> None:
        self._account = account
        self._accounts = accounts

    async def outgoing(self, request: Request, wanted: Asked, target: Target, upgrade: str) -> Outgoing:
        authorization = await self._accounts.authorization(target, self._account)
        return passed_on(request, wanted, target, authorization, upgrade=upgrade)

    def refused(self, target: Target) -> bool:
        self._accounts.refused(target, self._account)
        return True
