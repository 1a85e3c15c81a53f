"""Kinds that are an answer rather than an object: who am I, and a new password."""

from __future__ import annotations

from herder.api.identity.tokens import token_id
from herder.api.management.kinds import TOKEN, USER
from herder.engine.client.wire import User
from herder.engine.meta.errors import BadRequest, Forbidden, TooManyRequests, Unauthorized
from herder.engine.meta.kinds import Object
from herder.gateway.identity.answers import text_of
from herder.gateway.identity.ext import discovery
from herder.gateway.identity.identity import REQUEST_TOKEN
from herder.gateway.identity.known import Known
from herder.gateway.identity.passwords import Passwords
from herder.gateway.identity.throttle import LoginThrottle
from herder.gateway.identity.users import Users, check_password


async def self_user(_wanted: Object, user: User) -> Object:
    return _answered("SelfUser", {}, {"userID": user.name})


EXT_TOKENS = token_id("", ext=True)


class PasswordChanges:
    """One's own, with the one that counted so far: a stolen session is not enough to keep the account."""

    def __init__(self, known: Known, users: Users, passwords: Passwords, throttle: LoginThrottle) -> None:
        self._known = known
        self._users = users
        self._passwords = passwords
        self._throttle = throttle

    async def create(self, wanted: Object, asker: User) -> Object:
        spec = wanted.get("spec") or {}
        if text_of(spec, "userID", asker.name) not in ("", asker.name):
            raise Forbidden("spec.userID: passwords can be changed by their users alone")
        current, new = text_of(spec, "currentPassword"), text_of(spec, "newPassword")
        if not current or not new:
            raise BadRequest("spec.currentPassword and spec.newPassword: both must be given")
        user = await self._known.user(asker.name)
        if user is None:
            raise Unauthorized("must authenticate")
        check_password(user.get("username") or "", new, "spec.newPassword")
        if new == current:
            raise BadRequest("spec.newPassword: must be another one")
        await self._prove(asker, current)
        await self._users.set_password(user, new)
        await self._users.end_sessions(asker.name, but=asker.extra.get(REQUEST_TOKEN, ()))
        return _answered("PasswordChangeRequest", {"userID": asker.name}, {"summary": "Completed"})

    async def _prove(self, asker: User, current: str) -> None:
        """The session is the source here: who holds a stolen one does not keep its user from changing the password."""
        name, source = f"{USER.kind}/{asker.name}", f"{TOKEN.kind}/{_source(asker)}"
        wait = self._throttle.attempt(name, source)
        if wait:
            seconds = str(int(wait) + 1)
            raise TooManyRequests(f"too many tries, again in {seconds} seconds", headers={"retry-after": seconds})
        if not await self._passwords.fits(asker.name, asker.name, current):
            raise Forbidden("spec.currentPassword: is not the password")
        self._throttle.succeeded(name, source)


def _source(asker: User) -> str:
    """The session. Tokens that a session can create count as one: each would be good for some more guesses."""
    token = "".join(asker.extra.get(REQUEST_TOKEN, ()))
    return EXT_TOKENS if token.startswith(EXT_TOKENS) else token


def _answered(kind: str, spec: Object, status: Object) -> Object:
    answered: Object = {"apiVersion": discovery.API_VERSION, "kind": kind, "metadata": {}}
    return answered | ({"spec": spec} if spec else {}) | {"status": status}
