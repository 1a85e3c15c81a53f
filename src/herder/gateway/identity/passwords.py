"""Passwords of local users, stored as hashes in Secrets; hashing runs in threads."""

from __future__ import annotations

import asyncio
import base64
import binascii

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn import passwords
from herder.api.identity.authn.hashes import Entropy
from herder.api.identity.names import PASSWORDS_NAMESPACE, principal_user
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, TooManyRequests
from herder.engine.meta.kinds import Object

CONCURRENT_HASHES = 2
"""Maximum concurrent hashes: each takes a core and 64 MiB."""
WAITING, RESERVED = 64, 16
"""Length of the queue, and additional places for logins from sources known to the account.

Guesses from everywhere thus do not lock out users who log in from where they did before.
"""
_KEY = "hash"


class Passwords:
    """Sets and verifies passwords."""

    def __init__(self, client: Client, entropy: Entropy) -> None:
        self._client = client
        self._entropy = entropy
        self._slots = asyncio.Semaphore(CONCURRENT_HASHES)
        self._waiting = 0

    async def set(self, user: str, password: str, *, replaces: str = "") -> bool:
        """`user` is the object's name. The caller checks the password rules (`passwords.rule_broken`).

        `replaces`: the stored hash of the password that this one replaces. Return False if there is another one now.
        """
        async with self._slots:
            stored_hash = await asyncio.to_thread(passwords.hash_password, password, self._entropy)
        metadata: Object = {"name": user, "namespace": PASSWORDS_NAMESPACE}
        if replaces:
            current = await self._secret(user)
            if _hash_in(current) != replaces:
                return False
            metadata["resourceVersion"] = current["metadata"]["resourceVersion"]
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "Opaque",
            "data": {_KEY: base64.b64encode(stored_hash.encode()).decode()},
        }
        await self._client.apply(SECRET.resource, secret, field_manager="herder-passwords")
        return True

    async def verify(self, user: str | None, login: str, password: str, *, known: bool = False) -> str:
        """The stored hash, if this is the user's password, otherwise ""; takes the same time for unknown users and
        missing passwords.

        `known`: the request comes from a source where this user logged in before.
        """
        stored_hash = await self._stored_hash(user or principal_user(f"nobody://{login}"))
        if self._waiting >= WAITING + (RESERVED if known else 0):
            raise TooManyRequests("too many concurrent logins; retry later", headers={"retry-after": "5"})
        self._waiting += 1
        try:
            async with self._slots:
                found = await asyncio.to_thread(passwords.matches, password, stored_hash or passwords.UNKNOWN)
        finally:
            self._waiting -= 1
        is_password = found and user is not None and bool(stored_hash)
        return stored_hash if is_password and await self.is_current(user or "", stored_hash) else ""

    async def is_current(self, user: str, stored_hash: str) -> bool:
        """Whether the password has not been changed: comparisons wait for each other, which takes seconds."""
        return await self._stored_hash(user) == stored_hash

    async def _stored_hash(self, user: str) -> str:
        return _hash_in(await self._secret(user))

    async def _secret(self, user: str) -> Object:
        try:
            return await self._client.get(SECRET.resource, user, namespace=PASSWORDS_NAMESPACE)
        except NotFound:
            return {}


def _hash_in(secret: Object) -> str:
    try:
        return base64.b64decode((secret.get("data") or {}).get(_KEY, "")).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
