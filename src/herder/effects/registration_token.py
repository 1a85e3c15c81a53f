"""Effects `registration-token` and `agent-token`: create, rotate and deliver registration tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import SECRET
from herder.api.identity.authn.hashes import new_key
from herder.api.management import names
from herder.api.management.kinds import REGISTRATION_TOKEN
from herder.api.management.registration import Tokens, agent_secret, read_tokens, rotate_tokens, token_secret
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object


class Renewal:
    """Executor of `registration-token`."""

    def __init__(self, client: Client, clock: Callable[[], datetime], entropy: Callable[[int], bytes]) -> None:
        self._client = client
        self._clock = clock
        self._entropy = entropy

    async def __call__(self, arguments: Mapping[str, Any]) -> Object:
        """Idempotent. The result contains no token."""
        namespace, name = arguments["namespace"], arguments["name"]
        registration = await self._client.get(REGISTRATION_TOKEN.resource, name, namespace=namespace)
        secret = await self._secret(namespace, names.token_secret(name))
        known = read_tokens(secret) if secret and _is_owned(secret, arguments["uid"]) else None
        fresh = new_key(self._entropy)
        old = str((registration.get("status") or {}).get("token") or "")
        if known is None and old:  # an older manager stored it in the status
            fresh = old
        tokens = rotate_tokens(known, fresh, arguments["lifetime"], self._clock(), arguments["uid"])
        if tokens != known:
            await self._write(token_secret(registration, tokens, arguments["owner"]), secret)
        return _times(tokens)

    async def _secret(self, namespace: str, name: str) -> Object | None:
        try:
            return await self._client.get(SECRET.resource, name, namespace=namespace)
        except NotFound:
            return None

    async def _write(self, wanted: Object, remote: Object | None) -> None:
        """Fails on a concurrent update: two managers must not both hand out what only one of them stored."""
        if remote is None:
            await self._client.create(SECRET.resource, wanted, namespace=wanted["metadata"]["namespace"])
        else:
            wanted["metadata"]["resourceVersion"] = remote["metadata"]["resourceVersion"]
            await self._client.update(SECRET.resource, wanted)


def _is_owned(secret: Object, uid: str) -> bool:
    """A token in a Secret with another owner is replaced."""
    return any(each["uid"] == uid for each in secret["metadata"].get("ownerReferences") or ())


def _times(tokens: Tokens) -> Object:
    ends = tokens.previous_expires
    return {"expiresAt": timestamp(tokens.expires), "gracePeriodExpiresAt": timestamp(ends) if ends else ""}


class Delivery:
    """Executor of `agent-token`: writes the current token into a connected cluster, where its agent reads it."""

    def __init__(self, client: Client, connect: Callable[[str], Awaitable[Client]]) -> None:
        self._client = client
        self._connect = connect

    async def __call__(self, arguments: Mapping[str, Any]) -> None:
        name, namespace = names.token_secret(names.DEFAULT_TOKEN), arguments["management"]
        tokens = read_tokens(await self._client.get(SECRET.resource, name, namespace=namespace))
        if tokens is None:
            raise LookupError(f"Secret {namespace}/{name} holds no token")
        remote = await self._connect(arguments["cluster"])
        try:
            await remote.apply(SECRET.resource, agent_secret(tokens), field_manager="cluster-manager")
        finally:
            await remote.close()
