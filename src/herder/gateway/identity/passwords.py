"""Passwords of local users in their Secrets: set, and compared, in threads of their own."""

from __future__ import annotations

import asyncio
import base64
import binascii

from herder.api.capi.kinds import SECRET
from herder.api.identity import passwords
from herder.api.identity.hashes import Entropy
from herder.api.identity.names import PASSWORDS_NAMESPACE, principal_user
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, TooManyRequests
from herder.engine.meta.kinds import Object

AT_ONCE = 2
"""Comparisons at a time: each takes a core and 64 MiB."""
WAITING, RESERVED = 64, 16
"""Comparisons that may wait, and as many again that only logins from sources known to the account may take: guesses
from everywhere do not keep users out who log in where they did before."""
_KEY = "hash"


class Passwords:
    def __init__(self, client: Client, entropy: Entropy) -> None:
        self._client = client
        self._entropy = entropy
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def set(self, user: str, password: str) -> None:
        """`user` is the object's name. The rules are the caller's to check: `passwords.rule_broken`."""
        async with self._turns:
            kept = await asyncio.to_thread(passwords.hashed, password, self._entropy)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": user, "namespace": PASSWORDS_NAMESPACE},
            "type": "Opaque",
            "data": {_KEY: base64.b64encode(kept.encode()).decode()},
        }
        await self._client.apply(SECRET.resource, secret, field_manager="herder-passwords")

    async def fits(self, user: str | None, login: str, password: str, *, known: bool = False) -> bool:
        """Whether this is the user's password. The work is the same where there is no such user, or no password.
        `known`: it comes from where this user logged in before."""
        kept = await self._kept(user or principal_user(f"nobody://{login}"))
        if self._waiting >= WAITING + (RESERVED if known else 0):
            raise TooManyRequests("too many logins at once, try again later", headers={"retry-after": "5"})
        self._waiting += 1
        try:
            async with self._turns:
                found = await asyncio.to_thread(passwords.matches, password, kept or passwords.UNKNOWN)
        finally:
            self._waiting -= 1
        return found and user is not None and bool(kept)

    async def _kept(self, user: str) -> str:
        try:
            secret = await self._client.get(SECRET.resource, user, namespace=PASSWORDS_NAMESPACE)
        except NotFound:
            return ""
        return _hash_in(secret)


def _hash_in(secret: Object) -> str:
    try:
        return base64.b64decode((secret.get("data") or {}).get(_KEY, "")).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
