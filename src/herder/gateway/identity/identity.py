"""Authenticate requests by token; every failure gives the same 401.

The order of checks follows the contract: the key is verified before anything that could reveal details of the token.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn import hashes
from herder.api.identity.authn.credentials import Credential, credential_of
from herder.api.identity.authn.hashes import Entropy
from herder.api.identity.authn.tokens import (
    TokenRecord,
    group_names,
    key_matches,
    problem,
    token_id,
    use_patch,
    user_problem,
)
from herder.api.identity.names import EVERYONE, LOCAL_PRINCIPAL, SESSION
from herder.api.management.kinds import TOKEN
from herder.api.management.names import TOKENS_NAMESPACE
from herder.api.settings import SESSION_IDLE_TTL
from herder.engine.client.client import Client
from herder.engine.control.cache import Change
from herder.engine.control.tasks import Tasks
from herder.engine.logs import get_logger
from herder.engine.meta.errors import Forbidden, StatusError, Unauthorized
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, User
from herder.gateway.identity.token_cache import IdentityCache
from herder.gateway.identity.token_streams import TokenStreams

log = get_logger(__name__)

MUST_AUTHENTICATE = "must authenticate"
MUST_CHANGE = "the password must be changed first; create a PasswordChangeRequest of ext.cattle.io/v1"
USE_RECORD_INTERVAL = timedelta(minutes=1)
CONCURRENT_SLOW_HASHES = 2

_CLUSTER_PATH = re.compile(r"/k8s/(?:clusters|proxy)/([^/]+)(?:/.*)?", re.DOTALL)
_EXT = "/apis/ext.cattle.io/v1/"
_BEFORE_NEW_PASSWORD = frozenset({f"{_EXT}passwordchangerequests", f"{_EXT}selfusers", "/v1/logout"})

EXT_TOKENS = token_id("", ext=True)
"""Prefix of the IDs of ext.cattle.io tokens."""
REQUEST_TOKEN = "requesttokenid"  # user extras
REQUEST_HOST = "requesthost"
PRINCIPAL, USERNAME = "principalid", "username"


@dataclass(frozen=True, slots=True)
class Identified:
    """An authenticated user and the token."""

    user: User
    token: TokenRecord


class Identity:
    """Authenticates requests and records the use of tokens."""

    def __init__(
        self, client: Client, *, clock: Callable[[], datetime], entropy: Entropy, setting: Callable[[str], str]
    ) -> None:
        self.known = IdentityCache(client, self._on_token, lambda change: self.running.user_changed(change.key.name))
        self.running = TokenStreams(self._current_token, clock)
        self._client = client
        self._clock = clock
        self._entropy = entropy
        self._setting = setting
        self._used: dict[str, datetime] = {}  # by token: last recorded use
        self._tasks = Tasks()
        self._slow = asyncio.Semaphore(CONCURRENT_SLOW_HASHES)

    async def run(self) -> None:
        try:
            await self.known.run()
        finally:
            await self._tasks.stop()

    async def ready(self) -> None:
        await self.known.ready()

    # --- authentication ---------------------------------------------------------------------------------------------

    async def authenticate(self, request: Request) -> User:
        """The authenticated user; never an anonymous or default one."""
        return (await self.identify(request)).user

    async def identify(self, request: Request) -> Identified:
        credential = credential_of(request.method, request.headers)
        if credential is None:
            raise Unauthorized(MUST_AUTHENTICATE)
        record = await self.known.token(credential.name, ext=credential.ext)
        if not await self._key_matches(record, credential.key) or record is None:
            log.debug("token refused", token=credential.name, why="no token with this name and key")
            raise Unauthorized(MUST_AUTHENTICATE)
        await self.known.user(record.user)
        # Read again: a slow comparison waits for others, and the token may have ended meanwhile.
        record, user = self._still_valid(record, request.path)
        if self._must_change(record, user) and request.path not in _BEFORE_NEW_PASSWORD:
            raise Forbidden(MUST_CHANGE)
        self._record_use(record, credential, user)
        return Identified(_user(record, user, request), record)

    def check_again(self, caller: User) -> None:
        """Raise unless the token of a request of the manager's own API would be accepted now, too."""
        for token in caller.extra.get(REQUEST_TOKEN, ()):
            name = token.removeprefix(EXT_TOKENS)
            record = self.known.cached_token(name, ext=token != name)
            if record is None or record.user != caller.name:
                raise Unauthorized(MUST_AUTHENTICATE)
            if self._must_change(*self._still_valid(record, "")):
                raise Forbidden(MUST_CHANGE)

    def may_use(self, user: User, token: str, cluster_id: str) -> bool:
        """Whether this token (user extra `requesttokenid`) belongs to the user and is valid for the cluster now."""
        name = token.removeprefix(EXT_TOKENS)
        record = self.known.cached_token(name, ext=token != name)
        if record is None or record.user != user.name:
            return False
        return record.cluster in ("", cluster_id) and not self._problem(record)

    def bind(self, who: Identified, path: str, end: Callable[[], object]) -> Callable[[], None]:
        """Bind a stream at `path` to its token; returns the function that unbinds it."""
        return self.running.bind(who.token, cluster_of(path), end)

    # --- tokens -----------------------------------------------------------------------------------------------------

    async def _key_matches(self, record: TokenRecord | None, key: str) -> bool:
        if record is None or not hashes.is_slow(record.kept):
            return key_matches(record, key)
        async with self._slow:
            return await asyncio.to_thread(key_matches, record, key)

    def _still_valid(self, record: TokenRecord, path: str) -> tuple[TokenRecord, Object]:
        """The token and its user as they are now. Raises Unauthorized."""
        now, user = self._current_token(record, cluster_of(path)), self.known.cached_user(record.user)
        if isinstance(now, str) or user is None:
            log.info("token refused", token=record.id, user=record.user, why=now)
            raise Unauthorized(MUST_AUTHENTICATE)
        return now, user

    @staticmethod
    def _must_change(record: TokenRecord, user: Object) -> bool:
        return record.kind == SESSION and bool(user.get("mustChangePassword"))

    def _refusal(self, record: TokenRecord, user: Object | None, cluster: str) -> str:
        if why := self._problem(record):
            return why
        if record.cluster and record.cluster != cluster:
            return f"the token is only valid for cluster {record.cluster}"
        return user_problem(record, user)

    def _current_token(self, token: TokenRecord, cluster: str) -> TokenRecord | str:
        """The current token, or why it is no longer valid."""
        record = self.known.cached_token(token.name, ext=token.ext)
        if record is None or record.uid != token.uid:
            return "the token does not exist anymore"
        return self._refusal(record, self.known.cached_user(record.user), cluster) or record

    def _problem(self, record: TokenRecord) -> str:
        used = max((at for at in (record.used, self._used.get(record.id)) if at is not None), default=None)
        idle = timedelta(minutes=int(self._setting(SESSION_IDLE_TTL)))
        return problem(replace(record, used=used), self._clock(), session_idle=idle)

    # --- use of tokens ----------------------------------------------------------------------------------------------

    def _record_use(self, record: TokenRecord, credential: Credential, user: Object) -> None:
        """Record the use in the background, at most once per interval; an outdated key hash is upgraded with it."""
        now = self._clock()
        outdated_hash = not hashes.is_newest(record.kept)
        times = (self._used.get(record.id), None if outdated_hash else record.used)
        if any(last is not None and now - last < USE_RECORD_INTERVAL for last in times):
            return
        self._used[record.id] = now
        key_hash = hashes.hash_key(credential.key, self._entropy) if outdated_hash else ""
        self._tasks.spawn(self._write_use(record, use_patch(record, now, user, key_hash)), name=f"use of {record.id}")

    async def _write_use(self, record: TokenRecord, patch: Object) -> None:
        resource, namespace = (SECRET.resource, TOKENS_NAMESPACE) if record.ext else (TOKEN.resource, "")
        try:
            self.known.wrote(await self._client.patch(resource, record.name, patch, namespace=namespace))
        except (StatusError, OSError, TimeoutError) as error:
            log.info("cannot record the use of a token", token=record.id, error=str(error))

    def _on_token(self, change: Change) -> None:
        token = token_id(change.key.name, ext=bool(change.key.namespace))
        if change.new is None:
            self._used.pop(token, None)
        self.running.token_changed(token)


def cluster_of(path: str) -> str:
    """The cluster in a path, or ""."""
    found = _CLUSTER_PATH.fullmatch(path)
    return found[1] if found else ""


def _user(record: TokenRecord, user: Object, request: Request) -> User:
    name = user["metadata"]["name"]
    principals = tuple(user.get("principalIds") or ()) or (record.principal or f"{LOCAL_PRINCIPAL}{name}",)
    return User(
        name=name,
        uid=name,
        groups=tuple(dict.fromkeys((*group_names(record.groups), *EVERYONE))),
        extra={
            PRINCIPAL: principals,
            USERNAME: (user.get("username") or record.login_name or name,),
            REQUEST_TOKEN: (record.id,),
            REQUEST_HOST: (request.headers.get("host", ""),),
        },
    )
