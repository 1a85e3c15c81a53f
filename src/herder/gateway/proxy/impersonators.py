"""Keeps a service account for each user in each cluster it uses, and the token that makes a request that user's."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.engine.client.client import Client
from herder.engine.client.wire import User
from herder.engine.meta.errors import Forbidden, NotFound, ServiceUnavailable, StatusError, Unauthorized
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from herder.gateway.proxy import impersonation as objects
from herder.gateway.proxy.targets import Target

TOKEN_SECONDS = 20.0  # for a cluster to put a token into a Secret
REMEMBERED = 10_000
KNOWN_AFTER_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

_RULES_REVIEW = GroupVersionResource("authorization.k8s.io", "v1", "selfsubjectrulesreviews")
_RULES_REVIEW_TYPE: Object = {"apiVersion": _RULES_REVIEW.api_version, "kind": "SelfSubjectRulesReview"}

Key = tuple[str, str, str]
"""Cluster, user, and a digest of everything that must be the same for a token to be used again."""


class Tokens(Protocol):
    """By what right a request becomes a user's."""

    async def authorization(self, target: Target, user: User) -> str:
        """The value of the Authorization header. Raises StatusError; there is nothing to fall back on."""

    def refused(self, target: Target, user: User) -> None:
        """The cluster did not accept it: make sure anew next time."""

    def forget(self, cluster: str, user_name: str = "") -> None:
        """A cluster that is gone; or a user, who has no business there any more."""


class Impersonators:
    def __init__(self, client_with: Callable[[Target, str], Client]) -> None:
        """`client_with` a token: the agent's, for the impersonators' objects alone, or an impersonator's."""
        self._client_with = client_with
        self._tokens: OrderedDict[Key, str] = OrderedDict()
        self._under_way: dict[Key, asyncio.Task[str]] = {}

    async def authorization(self, target: Target, user: User) -> str:
        key = _key(target, user)
        token = self._tokens.get(key)
        if token is None:
            token = await self._made_once(key, target, user)
        return f"Bearer {token}"

    def refused(self, target: Target, user: User) -> None:
        self._tokens.pop(_key(target, user), None)

    def forget(self, cluster: str, user_name: str = "") -> None:
        for key in [key for key in self._tokens if key[0] == cluster and user_name in ("", key[1])]:
            del self._tokens[key]

    async def _made_once(self, key: Key, target: Target, user: User) -> str:
        """Who comes meanwhile waits for the same; who leaves does not take it away from the others."""
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(key, target, user))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._made(key, done))
        return await asyncio.shield(task)

    def _made(self, key: Key, task: asyncio.Task[str]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # told to those who waited, if any still do

    async def _make(self, key: Key, target: Target, user: User) -> str:
        client = self._client_with(target, target.token)
        try:
            token = await _token(client, await _ensure(client, user))
            await _known(self._client_with(target, token), user)
        except (Unauthorized, Forbidden) as error:  # said of the agent; the user must not take it as said of itself
            message = f"cluster {target.cluster}: its agent is not allowed to let users in: {error.message}"
            raise StatusError(message, code=502, reason="BadGateway") from error
        self.forget(key[0], key[1])  # the objects are the user's as of now; a token of before may say too much
        self._tokens[key] = token
        if len(self._tokens) > REMEMBERED:
            self._tokens.popitem(last=False)
        return token


async def _ensure(client: Client, user: User) -> Object:
    """The service account, which may act as the user once this returns."""
    role = await _in_place(client, objects.CLUSTER_ROLE, objects.cluster_role(user))
    try:
        account = await _in_place(client, SERVICE_ACCOUNT, objects.service_account(user, role))
    except NotFound:
        await _in_place(client, NAMESPACE, objects.namespace())
        account = await _in_place(client, SERVICE_ACCOUNT, objects.service_account(user, role))
    await _in_place(client, objects.CLUSTER_ROLE_BINDING, objects.cluster_role_binding(user, role))
    return account


async def _in_place(client: Client, kind: Kind, wanted: Object) -> Object:
    applied = await client.apply(kind.resource, wanted)
    return {"apiVersion": kind.api_version, "kind": kind.kind} | applied


async def _token(client: Client, account: Object) -> str:
    name = account["metadata"]["name"]
    namespace = objects.IMPERSONATION_NAMESPACE
    page = await client.list(SECRET.resource, namespace=namespace, labels=f"{objects.ACCOUNT_LABEL}={name}")
    encoded = next(filter(None, (objects.token_in(secret, account) for secret in page.items)), "")
    if not encoded:
        secret = await client.create(SECRET.resource, objects.token_secret(account), namespace=namespace)
        encoded = await _filled_in(client, secret, account)
    return base64.b64decode(encoded).decode()


async def _filled_in(client: Client, secret: Object, account: Object) -> str:
    if encoded := objects.token_in(secret, account):
        return encoded
    meta = secret["metadata"]
    try:
        async with asyncio.timeout(TOKEN_SECONDS):
            events = client.watch(
                SECRET.resource,
                namespace=meta["namespace"],
                fields=f"metadata.name={meta['name']}",
                resource_version=meta["resourceVersion"],
            )
            async with aclosing(events):
                async for event in events:
                    if encoded := objects.token_in(event.object, account):
                        return encoded
    except TimeoutError:
        pass
    raise ServiceUnavailable(f"the cluster made no token for service account {account['metadata']['name']} in time")


async def _known(client: Client, user: User) -> None:
    """Until the cluster's authorizer goes by what was just written: it hears of it as others do, a little later.

    It tells nobody when it has, so it is asked. One that never says so may still be right; the request will show.
    """
    for delay in KNOWN_AFTER_SECONDS:
        try:
            review = await client.create(_RULES_REVIEW, {"spec": {"namespace": "default"}} | _RULES_REVIEW_TYPE)
        except (Unauthorized, Forbidden):
            review = {}
        if objects.rules_cover(((review.get("status") or {}).get("resourceRules")) or [], user):
            return
        await asyncio.sleep(delay)


def _key(target: Target, user: User) -> Key:
    """A token of one user in one cluster fits no other, nor the same name after its groups or its cluster changed."""
    digest = hashlib.sha256(f"{target.address}\n{target.ca}\n{objects.fingerprint(user)}".encode()).hexdigest()
    return target.cluster, user.name, digest
