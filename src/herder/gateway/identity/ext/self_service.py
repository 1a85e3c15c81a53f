"""Kinds that are not stored: SelfUser and PasswordChangeRequest."""

from __future__ import annotations

from herder.api.management.kinds import TOKEN, USER
from herder.engine.meta.errors import BadRequest, Forbidden, TooManyRequests, Unauthorized
from herder.engine.meta.kinds import Object
from herder.engine.wire import User
from herder.gateway.identity.bodies import text_of
from herder.gateway.identity.ext import discovery
from herder.gateway.identity.identity import EXT_TOKENS, REQUEST_TOKEN
from herder.gateway.identity.passwords import Passwords
from herder.gateway.identity.throttle import LoginThrottle
from herder.gateway.identity.token_cache import IdentityCache
from herder.gateway.identity.users import Users, check_password


async def self_user(_wanted: Object, user: User) -> Object:
    return _response("SelfUser", {}, {"userID": user.name})


_WRONG = "spec.currentPassword: wrong password"


class PasswordChanges:
    """Change one's own password; the current one is required, so that a stolen session cannot take over the account."""

    def __init__(self, known: IdentityCache, users: Users, passwords: Passwords, throttle: LoginThrottle) -> None:
        self._known = known
        self._users = users
        self._passwords = passwords
        self._throttle = throttle

    async def create(self, wanted: Object, caller: User) -> Object:
        spec = wanted.get("spec") or {}
        if text_of(spec, "userID", caller.name) not in ("", caller.name):
            raise Forbidden("spec.userID: users can change only their own password")
        current, new = text_of(spec, "currentPassword"), text_of(spec, "newPassword")
        if not current or not new:
            raise BadRequest("spec.currentPassword and spec.newPassword: required")
        user = await self._known.user(caller.name)
        if user is None:
            raise Unauthorized("must authenticate")
        check_password(user.get("username") or "", new, "spec.newPassword")
        if new == current:
            raise BadRequest("spec.newPassword: must differ from the current password")
        verified = await self._verify_current(caller, current)
        if not await self._users.set_password(user, new, replaces=verified):
            raise Forbidden(_WRONG)  # It was changed meanwhile.
        await self._users.end_sessions(caller.name, but=caller.extra.get(REQUEST_TOKEN, ()))
        return _response("PasswordChangeRequest", {"userID": caller.name}, {"summary": "Completed"})

    async def _verify_current(self, caller: User, current: str) -> str:
        """Return the hash of the current password.

        Throttle by session, so that the holder of a stolen one cannot block its user.
        """
        name, source = f"{USER.kind}/{caller.name}", f"{TOKEN.kind}/{_source(caller)}"
        wait = self._throttle.attempt(name, source)
        if wait:
            seconds = str(int(wait) + 1)
            raise TooManyRequests(f"too many attempts; retry in {seconds} seconds", headers={"retry-after": seconds})
        verified = await self._passwords.verify(caller.name, caller.name, current)
        if not verified:
            raise Forbidden(_WRONG)
        self._throttle.succeeded(name, source)
        return verified


def _source(caller: User) -> str:
    """The session. Tokens created by a session count as one: each would allow further guesses."""
    token = "".join(caller.extra.get(REQUEST_TOKEN, ()))
    return EXT_TOKENS if token.startswith(EXT_TOKENS) else token


def _response(kind: str, spec: Object, status: Object) -> Object:
    answered: Object = {"apiVersion": discovery.API_VERSION, "kind": kind, "metadata": {}}
    return answered | ({"spec": spec} if spec else {}) | {"status": status}
