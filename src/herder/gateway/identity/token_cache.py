"""Watched caches of tokens and users; cache misses are fetched once.

A deleted token is invalid from the watch event on; no positive result is remembered.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn.tokens import TokenRecord, from_secret, from_token
from herder.api.identity.names import STORED_KIND, STORED_TOKEN
from herder.api.management.kinds import TOKEN, USER
from herder.api.management.names import TOKENS_NAMESPACE
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import Informer
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.meta.names import dns1123_subdomain

NEGATIVE_CACHE_SECONDS = 1.0
"""How long a missing name is not fetched again."""
NEGATIVE_CACHE_SIZE = 4096
CONCURRENT_LOOKUPS = 8

BY_USERNAME = "username"

OnChange = Callable[[Change], None]


def _username(user: Object) -> Iterable[str]:
    return (user["username"],) if user.get("username") else ()


class IdentityCache:
    """Caches of Tokens, token Secrets and Users."""

    def __init__(self, client: Client, on_token: OnChange, on_user: OnChange) -> None:
        self._client = client
        self._on_token = on_token
        self._tokens = Cache(TOKEN)
        self._users = Cache(USER, {BY_USERNAME: _username})
        self._secrets = Cache(SECRET)
        self._informers = (
            Informer(client, self._tokens, on_token),
            Informer(client, self._users, on_user),
            Informer(
                client,
                self._secrets,
                on_token,
                namespace=TOKENS_NAMESPACE,
                labels=f"{STORED_KIND}={STORED_TOKEN}",
            ),
        )
        self._absent: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._lookups = asyncio.Semaphore(CONCURRENT_LOOKUPS)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())

    async def ready(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()

    # --- lookup -----------------------------------------------------------------------------------------------------

    async def token(self, name: str, *, ext: bool) -> TokenRecord | None:
        cache, namespace = (self._secrets, TOKENS_NAMESPACE) if ext else (self._tokens, "")
        found = await self._find(cache, Key(namespace, name))
        return None if found is None else _record(found, ext=ext)

    def cached_token(self, name: str, *, ext: bool) -> TokenRecord | None:
        """The cached token."""
        key = Key(TOKENS_NAMESPACE if ext else "", name)
        found = (self._secrets if ext else self._tokens).get(key)
        return None if found is None else _record(found, ext=ext)

    async def user(self, name: str) -> Object | None:
        return await self._find(self._users, Key("", name))

    def cached_user(self, name: str) -> Object | None:
        """The cached user."""
        return self._users.get(Key("", name))

    def user_of_login(self, username: str) -> Object | None:
        """None if two users share the name, because the login is ambiguous."""
        found = self._users.select(index=(BY_USERNAME, username))
        return found[0] if len(found) == 1 else None

    def wrote(self, obj: Object) -> None:
        """Add the response of our own write before the watch delivers it."""
        cache = {"Token": self._tokens, "User": self._users, "Secret": self._secrets}[obj["kind"]]
        cache.upsert(obj)

    def removed(self, token: TokenRecord) -> None:
        """Remove a token that we deleted, so that it is invalid immediately."""
        cache, namespace = (self._secrets, TOKENS_NAMESPACE) if token.ext else (self._tokens, "")
        if (change := cache.forget(Key(namespace, token.name), token.uid)) is not None:
            self._on_token(change)

    # --- cache misses -----------------------------------------------------------------------------------------------

    async def _find(self, cache: Cache, key: Key) -> Object | None:
        if key in cache or dns1123_subdomain(key.name) or self._is_absent(cache, key):
            return cache.get(key)  # Invalid names are not put into a URL.
        async with self._lookups:
            if key not in cache and not self._is_absent(cache, key):
                await self._lookup(cache, key)
        return cache.get(key)

    async def _lookup(self, cache: Cache, key: Key) -> None:
        try:
            found = await self._client.get(cache.kind.resource, key.name, namespace=key.namespace)
        except NotFound:
            found = None
        if found is not None and cache.matches(found):
            cache.upsert(found)
        else:
            self._absent[(cache.kind.kind, key.name)] = asyncio.get_running_loop().time() + NEGATIVE_CACHE_SECONDS
            if len(self._absent) > NEGATIVE_CACHE_SIZE:
                self._absent.popitem(last=False)

    def _is_absent(self, cache: Cache, key: Key) -> bool:
        until = self._absent.get((cache.kind.kind, key.name), 0.0)
        return asyncio.get_running_loop().time() < until


def _record(obj: Object, *, ext: bool) -> TokenRecord:
    return from_secret(obj) if ext else from_token(obj)
