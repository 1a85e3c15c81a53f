"""An in-process API server with users and tokens, and the identity service that watches them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.authn.hashes import hash_key, new_key
from herder.api.identity.authn.tokens import NewToken, token_object, token_secret
from herder.api.identity.crds import CRDS
from herder.api.identity.names import PASSWORDS_NAMESPACE
from herder.api.management.kinds import TOKEN, USER
from herder.api.management.names import SYSTEM_NAMESPACE, TOKENS_NAMESPACE
from herder.api.settings import DEFINITIONS
from herder.app.install import install_kinds
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object
from herder.engine.wire import Query, Request, User
from herder.gateway.identity.services import assemble
from tests.unit.engine.runtime import envtest
from tests.unit.engine.runtime.envtest import Environment

RANDOM = Random(7)


@dataclass
class IdentityHarness:
    env: Environment
    settings: dict[str, str] = field(default_factory=dict)
    clock_offset: timedelta = timedelta(0)
    clusters: dict[str, dict[str, str]] = field(default_factory=dict)  # by user: the clusters that the user can reach

    def __post_init__(self) -> None:
        self.parts = assemble(
            self.client,
            clock=self.clock,
            entropy=RANDOM.randbytes,
            setting=self.setting,
            reachable=self.reachable,
        )
        self.identity = self.parts.identity

    @property
    def client(self) -> Client:
        return self.env.client

    def clock(self) -> datetime:
        return envtest.now() + self.clock_offset

    def setting(self, name: str) -> str:
        return self.settings.get(name, DEFINITIONS[name].default)

    async def reachable(self, user: User) -> dict[str, str]:
        return self.clusters.get(user.name, {})

    async def create_user(self, name: str, **fields: Any) -> Object:
        obj = {
            "apiVersion": USER.api_version,
            "kind": USER.kind,
            "metadata": {"name": name},
            "username": name,
            **fields,
        }
        return await self.env.outside.create(USER.resource, obj)

    async def create_token(
        self, user: str, *, name: str = "", stored: str | None = None, ext: bool = False, **options: Any
    ) -> str:
        """Create a token as another program would, and return the bearer value."""
        key = new_key(RANDOM.randbytes)
        name = name or f"token-{key[:8]}"
        key_hash = hash_key(key, RANDOM.randbytes) if stored is None else stored.replace("KEY", key)
        new = NewToken(user, user, **options)
        if ext:
            secret = token_secret(new, name, key_hash, "uid", self.clock())
            await self.env.outside.create(SECRET.resource, secret, namespace=TOKENS_NAMESPACE)
            return f"ext/{name}:{key}"
        obj = token_object(new, name, key_hash)
        if stored is not None and not stored.startswith("$"):
            del obj["metadata"]["annotations"]
        await self.env.outside.create(TOKEN.resource, obj)
        return f"{name}:{key}"

    async def finish_background_tasks(self) -> None:
        """Wait for the tasks that requests started in the background."""
        while self.identity._tasks._tasks:
            await asyncio.gather(*self.identity._tasks._tasks, return_exceptions=True)


def request_with_token(bearer: str, path: str = "/v1", method: str = "GET", **headers: str) -> Request:
    return Request(method, path, headers={"authorization": f"Bearer {bearer}", "host": "manager", **headers})


def new_request(method: str, path: str, body: Any = None, *, query: str = "", remote: str = "192.0.2.1") -> Request:
    return Request(method, path, Query.parse(query), {}, b"" if body is None else json.dumps(body).encode(), remote)


@asynccontextmanager
async def running_identity() -> AsyncIterator[IdentityHarness]:
    async with envtest.environment() as env:
        await install_kinds(env.outside, CRDS)
        for name in (TOKENS_NAMESPACE, PASSWORDS_NAMESPACE, SYSTEM_NAMESPACE):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await env.outside.create(NAMESPACE.resource, namespace)
        harness = IdentityHarness(env)
        identity = harness.identity
        running = asyncio.ensure_future(identity.run())
        try:
            await identity.ready()
            yield harness
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
