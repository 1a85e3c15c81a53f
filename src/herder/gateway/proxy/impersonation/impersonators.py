"""Impersonation service accounts: one per user and cluster, and its token."""

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
from herder.engine.meta.errors import Forbidden, NotFound, ServiceUnavailable, StatusError, Unauthorized
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from herder.engine.wire import User
from herder.gateway.proxy.impersonation import objects
from herder.gateway.proxy.targets import Target

TOKEN_SECONDS = 20.0  # timeout for the cluster to fill a token Secret
MAX_TOKENS = 10_000
MAX_SECRETS = 500  # of one service account that are searched for its token
AUTHORIZER_DELAYS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

_RULES_REVIEW = GroupVersionResource("authorization.k8s.io", "v1", "selfsubjectrulesreviews")
_RULES_REVIEW_TYPE: Object = {"apiVersion": _RULES_REVIEW.api_version, "kind": "SelfSubjectRulesReview"}

Key = tuple[str, str, str]
"""Cluster, user, and a digest of everything that must be unchanged for a token to be reused."""


class Tokens(Protocol):
    """Source of the Authorization header for impersonated requests."""

    async def authorization(self, target: Target, user: User) -> str:
        """Value of the Authorization header. Raises StatusError; there is no fallback."""

    def refused(self, target: Target, user: User) -> None:
        """The cluster rejected the token: recreate it next time."""

    def forget(self, cluster: str, user_name: str = "") -> None:
        """Drop the tokens of a deleted cluster, or of a user who lost access to it."""


class Impersonators:
    """Creates service accounts that may impersonate one user each."""

    def __init__(self, client_with: Callable[[Target, str], Client]) -> None:
        """`client_with` takes a token: the agent's, only for the impersonators' objects, or an impersonator's."""
        self._client_with = client_with
        self._tokens: OrderedDict[Key, str] = OrderedDict()
        self._pending: dict[Key, asyncio.Task[str]] = {}

    async def authorization(self, target: Target, user: User) -> str:
        key = _key(target, user)
        token = self._tokens.get(key)
        if token is None:
            token = await self._create_once(key, target, user)
        return f"Bearer {token}"

    def refused(self, target: Target, user: User) -> None:
        self._tokens.pop(_key(target, user), None)

    def forget(self, cluster: str, user_name: str = "") -> None:
        for key in [key for key in self._tokens if key[0] == cluster and user_name in ("", key[1])]:
            del self._tokens[key]

    async def _create_once(self, key: Key, target: Target, user: User) -> str:
        """Concurrent callers share one creation; a canceled caller does not cancel it for the others."""
        task = self._pending.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create(key, target, user))
            self._pending[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        return await asyncio.shield(task)

    def _finished(self, key: Key, task: asyncio.Task[str]) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # Already raised in the callers, if any still wait.

    async def _create(self, key: Key, target: Target, user: User) -> str:
        client = self._client_with(target, target.token)
        try:
            with objects.reading(target.cluster):
                token = objects.checked_token(await _token(client, await _ensure(client, user)), target.cluster)
                await _wait_until_authorized(self._client_with(target, token), user)
        # This is about the agent; the user must not take it as their own 401 or 403.
        except (Unauthorized, Forbidden) as error:
            message = (
                f"cluster {target.cluster}: its agent may not create impersonation service accounts: {error.message}"
            )
            raise StatusError(message, code=502, reason="BadGateway") from error
        # The objects were updated for the user's current groups; an older token may grant too much.
        self.forget(key[0], key[1])
        self._tokens[key] = token
        if len(self._tokens) > MAX_TOKENS:
            self._tokens.popitem(last=False)
        return token


async def _ensure(client: Client, user: User) -> Object:
    """Create the service account that may impersonate the user."""
    role = await _apply(client, objects.CLUSTER_ROLE, objects.cluster_role(user))
    try:
        account = await _apply(client, SERVICE_ACCOUNT, objects.service_account(user, role))
    except NotFound:
        await _apply(client, NAMESPACE, objects.namespace())
        account = await _apply(client, SERVICE_ACCOUNT, objects.service_account(user, role))
    await _apply(client, objects.CLUSTER_ROLE_BINDING, objects.cluster_role_binding(user, role))
    return account


async def _apply(client: Client, kind: Kind, wanted: Object) -> Object:
    applied = await client.apply(kind.resource, wanted)
    return {"apiVersion": kind.api_version, "kind": kind.kind} | applied


async def _token(client: Client, account: Object) -> str:
    name = account["metadata"]["name"]
    namespace = objects.IMPERSONATION_NAMESPACE
    labels = f"{objects.ACCOUNT_LABEL}={name}"
    page = await client.list(SECRET.resource, namespace=namespace, labels=labels, limit=MAX_SECRETS)
    encoded = next(filter(None, (objects.token_in(secret, account) for secret in page.items[:MAX_SECRETS])), "")
    if not encoded:
        secret = await client.create(SECRET.resource, objects.token_secret(account), namespace=namespace)
        encoded = await _wait_for_token(client, secret, account)
    try:
        return base64.b64decode(encoded).decode()
    except ValueError:
        return ""


async def _wait_for_token(client: Client, secret: Object, account: Object) -> str:
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
    raise ServiceUnavailable(f"timed out waiting for the token of service account {account['metadata']['name']}")


async def _wait_until_authorized(client: Client, user: User) -> None:
    """Wait until the cluster's authorizer has seen the new RBAC objects.

    It does not announce that, so it is polled with a SelfSubjectRulesReview. If it never confirms, the request itself
    will show.
    """
    for delay in AUTHORIZER_DELAYS:
        try:
            review = await client.create(_RULES_REVIEW, {"spec": {"namespace": "default"}} | _RULES_REVIEW_TYPE)
        except (Unauthorized, Forbidden):
            review = {}
        if objects.rules_cover(((review.get("status") or {}).get("resourceRules")) or [], user):
            return
        await asyncio.sleep(delay)


def _key(target: Target, user: User) -> Key:
    """A token is reused only for the same user, groups and cluster."""
    digest = hashlib.sha256(f"{target.address}\n{target.ca}\n{objects.fingerprint(user)}".encode()).hexdigest()
    return target.cluster, user.name, digest
