"""Local users: creation, passwords, and the bootstrap admin."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Collection
from contextlib import suppress

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.authn import passwords as rules
from herder.api.identity.authn.hashes import Entropy, new_key
from herder.api.identity.names import (
    BOOTSTRAP_KEY,
    BOOTSTRAP_SECRET,
    KUBECONFIG,
    LOCAL_PRINCIPAL,
    PASSWORDS_NAMESPACE,
    SESSION,
    STORED_USER,
    TOKEN_KIND,
    TOKEN_USER,
    principal_user,
)
from herder.api.management.kinds import GLOBAL_ROLE, GLOBAL_ROLE_BINDING, TOKEN, USER
from herder.api.management.names import SYSTEM_NAMESPACE, TOKENS_NAMESPACE
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound, already_exists, invalid, invalid_value
from herder.engine.meta.kinds import Object
from herder.gateway.identity.passwords import Passwords

ADMIN = "admin"
ADMIN_ROLE = "admin"
_BOOTSTRAP_CHARACTERS = 24
_NAME_CHARACTERS = 10
_USERNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,252}")
_NAMESPACES = (SYSTEM_NAMESPACE, TOKENS_NAMESPACE, PASSWORDS_NAMESPACE)


class Users:
    """Creates users and sets their passwords."""

    def __init__(self, client: Client, entropy: Entropy, passwords: Passwords) -> None:
        self._client = client
        self._entropy = entropy
        self._passwords = passwords

    async def create(
        self, username: str, password: str, *, display_name: str = "", must_change: bool = False
    ) -> Object:
        """Create a user with the default roles of new users.

        Object names are never reused, not even for the same username: tokens and bindings of a deleted user must not
        come back to life.
        """
        check_username(username)
        check_password(username, password)
        if any(user.get("username") == username for user in (await self._client.list_all(USER.resource)).items):
            raise already_exists(USER.resource.group_resource, username)
        name = f"u-{new_key(self._entropy)[:_NAME_CHARACTERS]}"
        user = await self._client.create(USER.resource, _user(name, username, display_name, must_change))
        await self._passwords.set(name, password)
        for role in (await self._client.list_all(GLOBAL_ROLE.resource)).items:
            if role.get("newUserDefault"):
                binding = _binding("grb", name, role["metadata"]["name"])
                await self._client.create(GLOBAL_ROLE_BINDING.resource, binding)
        return user

    async def set_password(self, user: Object, password: str, *, replaces: str = "") -> bool:
        """`replaces`: see `Passwords.set`, as the result."""
        check_password(user.get("username") or "", password)
        name = user["metadata"]["name"]
        if not await self._passwords.set(name, password, replaces=replaces):
            return False
        if user.get("mustChangePassword"):
            await self._client.patch(USER.resource, name, {"mustChangePassword": False})
        return True

    async def end_sessions(self, user: str, but: Collection[str] = ()) -> None:
        """Delete sessions that were created with the previous password."""
        labels = f"{TOKEN_USER}={user},{TOKEN_KIND} in ({SESSION},{KUBECONFIG})"
        for token in (await self._client.list_all(TOKEN.resource, labels=labels)).items:
            if token["metadata"]["name"] not in but:
                with suppress(NotFound):
                    await self._client.delete(TOKEN.resource, token["metadata"]["name"])

    async def delete(self, user: str) -> int:
        """Delete a user with all tokens, and return their number. A controller deletes the user's bindings."""
        count = await self._delete_tokens(user)
        await self._client.delete(USER.resource, user)
        with suppress(NotFound):
            await self._client.delete(SECRET.resource, user, namespace=PASSWORDS_NAMESPACE)
        return count + await self._delete_tokens(user)  # issued meanwhile

    async def _delete_tokens(self, user: str) -> int:
        count = 0
        places = ((TOKEN, TOKEN_USER, ""), (SECRET, STORED_USER, TOKENS_NAMESPACE))
        for kind, label, namespace in places:
            labels = f"{label}={user}"
            for token in (await self._client.list_all(kind.resource, namespace=namespace, labels=labels)).items:
                with suppress(NotFound):
                    await self._client.delete(kind.resource, token["metadata"]["name"], namespace=namespace)
                    count += 1
        return count

    async def bootstrap_admin(self, password: str = "") -> str:
        """Create the first user, with all rights, if no user exists; returns its password, or "" if one existed.

        A random password is kept in a Secret of the manager until someone deletes it; a given one is not stored. The
        user is created last, so that an interrupted bootstrap is repeated.
        """
        await asyncio.gather(*(self._namespace(name) for name in _NAMESPACES))
        if (await self._client.list(USER.resource, limit=1)).items:
            return ""
        if password:
            check_password(ADMIN, password)
        chosen = password or await self._bootstrap_password()
        name = principal_user(f"{LOCAL_PRINCIPAL}{ADMIN}")  # deterministic, for managers that start concurrently
        await self._delete_tokens(name)  # tokens of an earlier user of that name
        user = _user(name, ADMIN, "Default Admin", must_change=False)
        await self._client.apply(GLOBAL_ROLE_BINDING.resource, _binding("bootstrap", name, ADMIN_ROLE))
        await self._passwords.set(name, chosen)
        with suppress(AlreadyExists):  # Another manager was faster, with the same password.
            await self._client.create(USER.resource, user)
        return chosen

    async def _bootstrap_password(self) -> str:
        """The password in the Secret, which is created with a random one if missing."""
        password = new_key(self._entropy)[:_BOOTSTRAP_CHARACTERS]
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": BOOTSTRAP_SECRET, "namespace": SYSTEM_NAMESPACE},
            "type": "Opaque",
            "data": {BOOTSTRAP_KEY: base64.b64encode(password.encode()).decode()},
        }
        try:
            await self._client.create(SECRET.resource, secret, namespace=SYSTEM_NAMESPACE)
        except AlreadyExists:
            kept = await self._client.get(SECRET.resource, BOOTSTRAP_SECRET, namespace=SYSTEM_NAMESPACE)
            password = base64.b64decode((kept.get("data") or {}).get(BOOTSTRAP_KEY, "")).decode()
            check_password(ADMIN, password, f"Secret {SYSTEM_NAMESPACE}/{BOOTSTRAP_SECRET}: {BOOTSTRAP_KEY}")
        return password

    async def _namespace(self, name: str) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self._client.apply(NAMESPACE.resource, namespace)


def check_password(username: str, password: str, field: str = "password") -> None:
    if broken := rules.password_problem(username, password):
        raise invalid(USER.group_kind, username, [invalid_value(field, "(hidden)", broken)])


def check_username(username: str) -> None:
    if not _USERNAME.fullmatch(username):
        message = "must start with a letter or digit and contain only letters, digits and . _ @ + -"
        raise invalid(USER.group_kind, username[:64], [invalid_value("username", username[:64], message)])


def _user(name: str, username: str, display_name: str, must_change: bool) -> Object:
    return {
        "apiVersion": USER.api_version,
        "kind": USER.kind,
        "metadata": {"name": name},
        "username": username,
        "displayName": display_name or username,
        "principalIds": [f"{LOCAL_PRINCIPAL}{name}"],
        "mustChangePassword": must_change,
        "enabled": True,
    }


def _binding(prefix: str, user: str, role: str) -> Object:
    return {
        "apiVersion": GLOBAL_ROLE_BINDING.api_version,
        "kind": GLOBAL_ROLE_BINDING.kind,
        "metadata": {"name": f"{prefix}-{user}-{role}"},
        "globalRoleName": role,
        "userName": user,
    }
