"""Who asks: from the token in a request to a user, or a refusal that says nothing but that.

The order of the checks is that of the contract; the key comes before all that could tell something about the token.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from herder.api.capi.kinds import SECRET
from herder.api.identity import hashes
from herder.api.identity.credentials import Credential, credential_of
from herder.api.identity.hashes import Entropy
from herder.api.identity.names import EVERYONE, LOCAL_PRINCIPAL, SESSION
from herder.api.identity.tokens import TokenRecord, group_names, key_fits, problem, token_id, use_patch, user_problem
from herder.api.management.kinds import TOKEN
from herder.api.management.names import TOKENS_NAMESPACE
from herder.api.settings import SESSION_IDLE_TTL
from herder.engine.client.client import Client
from herder.engine.client.wire import Request, User
from herder.engine.control.cache import Change
from herder.engine.control.tasks import Tasks
from herder.engine.logs import get_logger
from herder.engine.meta.errors import Forbidden, StatusError, Unauthorized
from herder.engine.meta.kinds import Object
from herder.gateway.identity.known import Known
from herder.gateway.identity.running import RunningByToken

log = get_logger(__name__)

MUST_AUTHENTICATE = "must authenticate"
MUST_CHANGE = "the password must be changed first: create a PasswordChangeRequest of ext.cattle.io/v1"
USE_NOTED_EVERY = timedelta(minutes=1)
SLOW_CHECKS_AT_ONCE = 2

_CLUSTER_PATH = re.compile(r"/k8s/(?:clusters|proxy)/([^/]+)(?:/.*)?", re.DOTALL)
_EXT = "/apis/ext.cattle.io/v1/"
_BEFORE_NEW_PASSWORD = frozenset({f"{_EXT}passwordchangerequests", f"{_EXT}selfusers", "/v1/logout"})

REQUEST_TOKEN = "requesttokenid"  # extras of a user
REQUEST_HOST = "requesthost"
PRINCIPAL, USERNAME = "principalid", "username"


@dataclass(frozen=True, slots=True)
class Identified:
    user: User
    token: TokenRecord


class Identity:
    def __init__(
        self, client: Client, *, clock: Callable[[], datetime], entropy: Entropy, setting: Callable[[str], str]
    ) -> None:
        self.known = Known(client, self._on_token, lambda change: self.running.user_changed(change.key.name))
        self.running = RunningByToken(self._now, clock)
        self._client = client
        self._clock = clock
        self._entropy = entropy
        self._setting = setting
        self._used: dict[str, datetime] = {}  # by token: the last use that was or is being noted
        self._tasks = Tasks()
        self._slow = asyncio.Semaphore(SLOW_CHECKS_AT_ONCE)

    async def run(self) -> None:
        try:
            await self.known.run()
        finally:
            await self._tasks.stop()

    async def ready(self) -> None:
        await self.known.ready()

    # --- asking -------------------------------------------------------------------------------------------------

    async def authenticate(self, request: Request) -> User:
        """Who asks; never an anonymous user, and never anybody by default."""
        return (await self.identify(request)).user

    async def identify(self, request: Request) -> Identified:
        credential = credential_of(request.method, request.headers)
        if credential is None:
            raise Unauthorized(MUST_AUTHENTICATE)
        record = await self.known.token(credential.name, ext=credential.ext)
        if not await self._fits(record, credential.key) or record is None:
            log.debug("token refused", token=credential.name, why="there is none of this name and key")
            raise Unauthorized(MUST_AUTHENTICATE)
        user = await self.known.user(record.user)
        why = self._refusal(record, user, cluster_of(request.path))
        if why or user is None:
            log.info("token refused", token=record.id, user=record.user, why=why)
            raise Unauthorized(MUST_AUTHENTICATE)
        if record.kind == SESSION and user.get("mustChangePassword") and request.path not in _BEFORE_NEW_PASSWORD:
            raise Forbidden(MUST_CHANGE)
        self._note_use(record, credential, user)
        return Identified(_user(record, user, request), record)

    def may_use(self, user: User, token: str, cluster_id: str) -> bool:
        """Whether this token (the user's extra `requesttokenid`) is the user's and good for that cluster, now."""
        name = token.removeprefix("ext/")
        record = self.known.token_now(name, ext=token != name)
        if record is None or record.user != user.name:
            return False
        return record.cluster in ("", cluster_id) and not self._problem(record)

    def bind(self, who: Identified, path: str, end: Callable[[], object]) -> Callable[[], None]:
        """Ties what goes on at `path` to the token that it began with; what comes back unties it."""
        return self.running.bind(who.token, cluster_of(path), end)

    # --- the token ----------------------------------------------------------------------------------------------

    async def _fits(self, record: TokenRecord | None, key: str) -> bool:
        if record is None or not hashes.is_slow(record.kept):
            return key_fits(record, key)
        async with self._slow:
            return await asyncio.to_thread(key_fits, record, key)

    def _refusal(self, record: TokenRecord, user: Object | None, cluster: str) -> str:
        if why := self._problem(record):
            return why
        if record.cluster and record.cluster != cluster:
            return f"the token is for cluster {record.cluster} alone"
        return user_problem(record, user)

    def _now(self, token: TokenRecord, cluster: str) -> TokenRecord | str:
        """The token, or why it does not count any more."""
        record = self.known.token_now(token.name, ext=token.ext)
        if record is None or record.uid != token.uid:
            return "the token is gone"
        return self._refusal(record, self.known.user_now(record.user), cluster) or record

    def _problem(self, record: TokenRecord) -> str:
        used = max((at for at in (record.used, self._used.get(record.id)) if at is not None), default=None)
        idle = timedelta(minutes=int(self._setting(SESSION_IDLE_TTL)))
        return problem(replace(record, used=used), self._clock(), session_idle=idle)

    # --- its use ------------------------------------------------------------------------------------------------

    def _note_use(self, record: TokenRecord, credential: Credential, user: Object) -> None:
        """Now and then, and beside the request; with it a key that was kept in an old way is hashed in the new one."""
        now = self._clock()
        aged = not hashes.is_newest(record.kept)
        times = (self._used.get(record.id), None if aged else record.used)
        if any(last is not None and now - last < USE_NOTED_EVERY for last in times):
            return
        self._used[record.id] = now
        key_hash = hashes.hashed(credential.key, self._entropy) if aged else ""
        self._tasks.spawn(self._write_use(record, use_patch(record, now, user, key_hash)), name=f"use of {record.id}")

    async def _write_use(self, record: TokenRecord, patch: Object) -> None:
        resource, namespace = (SECRET.resource, TOKENS_NAMESPACE) if record.ext else (TOKEN.resource, "")
        try:
            self.known.wrote(await self._client.patch(resource, record.name, patch, namespace=namespace))
        except (StatusError, OSError, TimeoutError) as error:
            log.info("use of a token not noted", token=record.id, error=str(error))

    def _on_token(self, change: Change) -> None:
        token = token_id(change.key.name, ext=bool(change.key.namespace))
        if change.new is None:
            self._used.pop(token, None)
        self.running.token_changed(token)


def cluster_of(path: str) -> str:
    """The cluster that a path leads to, or nothing."""
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
