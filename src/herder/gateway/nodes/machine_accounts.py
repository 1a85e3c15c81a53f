"""Service accounts of machines: authenticate tokens, and find the plan token of a machine.

Only metadata and digests of token Secrets are cached; tokens are read when needed. Labels and `data.token` of a Secret
are claims of its creator. A token is accepted only if the manager issued it, which `issued_to` verifies: the Secret has
the expected name and owner, its account leads to the Machine by owner references, and the API server confirms that the
token belongs to this account.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.capi.names import annotations_of, labels_of
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP
from herder.api.rke.node.bootstrap_token import machine_token
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import Informer
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object

BY_DIGEST, BY_MACHINE = "digest", "machine"
TOKEN_TYPE, TOKEN_OF = "kubernetes.io/service-account-token", "kubernetes.io/service-account.name"
TOKEN_OF_UID = "kubernetes.io/service-account.uid"
_CLAIMS = "kubernetes.io/serviceaccount/"
REVIEWS = GroupVersionResource("authentication.k8s.io", "v1", "tokenreviews")
_DIGEST, _FILLED = "digest", "filled"
_MAX_TOKEN = 256


@dataclass(frozen=True, slots=True)
class Issued:
    """A token that the manager issued."""

    machine: Object
    secret: Object = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Claims:
    """Unverified claims of a service account token; they are only used to end streams."""

    secret: Key
    account_uid: str

    @classmethod
    def of(cls, token: str) -> _Claims | None:
        """None for a token that is not stored in a Secret."""
        try:
            payload = token.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            place = Key(str(claims[f"{_CLAIMS}namespace"]), str(claims[f"{_CLAIMS}secret.name"]))
            return cls(place, str(claims[f"{_CLAIMS}service-account.uid"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            return None

    def is_of(self, secret: Object | None) -> bool:
        """Whether the Secret still holds the token of this account."""
        return secret is not None and annotations_of(secret).get(TOKEN_OF_UID) == self.account_uid


class MachineAccounts:
    """Watched token Secrets of machines."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._secrets = Cache(SECRET, {BY_DIGEST: _digest_of, BY_MACHINE: _machine_of})
        self._informer = Informer(client, self._secrets, self._changed, labels=names.ACCOUNT_ROLE, transform=_redacted)
        self._waiting: set[asyncio.Event] = set()
        self._streams: defaultdict[Key, dict[Callable[[], object], _Claims]] = defaultdict(dict)

    async def run(self) -> None:
        await self._informer.run()

    async def ready(self) -> None:
        await self._informer.synced.wait()

    def connected(self) -> int:
        """Number of machines with an open stream."""
        return len(self._streams)

    def bootstrap_token(self, presented: str) -> Object | None:
        """Metadata of the Secret of a presented token, found by digest, so that timing reveals nothing about tokens."""
        if not presented or len(presented) > _MAX_TOKEN:
            return None
        digest = _sha256(presented)
        for secret in self._secrets.select(index=(BY_DIGEST, digest)):
            if hmac.compare_digest(secret[_DIGEST], digest):
                return secret
        return None

    async def stamp(self, token_secret: Object, at: str) -> None:
        """Record the use; the cache is updated immediately."""
        meta, stamp = token_secret["metadata"], {"metadata": {"annotations": {names.LAST_ACCESS: at}}}
        answer = await self._client.patch(SECRET.resource, meta["name"], stamp, namespace=meta["namespace"])
        self._secrets.upsert(_redacted(answer))

    async def plan_token(self, machine: Object) -> Object:
        """Wait for the Secret with the token of the machine's plan account. Callers set the timeout."""
        meta = machine["metadata"]
        with self._changes() as changes:
            while True:
                for secret in self._secrets.select(index=(BY_MACHINE, f"{meta['namespace']}/{meta['name']}")):
                    issued = await self.issued_to(secret, names.ACCOUNT_FOR_PLAN)
                    if issued is not None and issued.machine["metadata"]["uid"] == meta["uid"]:
                        return issued.secret
                await changes.wait()
                changes.clear()

    def bind(self, token: str, end: Callable[[], object]) -> Callable[[], None]:
        """Call `end` when the token of the machine is deleted; returns the function that unbinds it.

        API servers authorize a watch only when it starts, and the next machine may have a plan Secret of the same name.
        """
        claims = _Claims.of(token)
        if claims is None:
            return lambda: None
        self._streams[claims.secret][end] = claims
        return lambda: self._unbind(claims.secret, end)

    async def is_current(self, token: str) -> bool:
        """Whether the Secret of a token exists; call `bind` before. API servers accept a deleted token for a while."""
        claims = _Claims.of(token)
        if claims is None:
            return True
        known = self._secrets.get(claims.secret)
        if known is None:  # not a machine's account, a new one, or a deleted one
            with suppress(StatusError, OSError):
                known = await self._find(SECRET, claims.secret.name, claims.secret.namespace)
        return claims.is_of(known)

    def _unbind(self, secret: Key, end: Callable[[], object]) -> None:
        self._streams[secret].pop(end, None)
        if not self._streams[secret]:
            del self._streams[secret]

    async def issued_to(self, token_secret: Object, role: str) -> Issued | None:
        """The Machine that the manager issued this token for, and the current Secret; None for any other token."""
        meta = token_secret["metadata"]
        account = await self._find(SERVICE_ACCOUNT, annotations_of(token_secret).get(TOKEN_OF, ""), meta["namespace"])
        if account is None or labels_of(account).get(names.ACCOUNT_ROLE) != role:
            return None
        bootstrap = await self._owner(account, BOOTSTRAP)
        machine = await self._owner(bootstrap, MACHINE) if bootstrap is not None else None
        if bootstrap is None or machine is None or machine["metadata"]["name"] != _machine_name(account):
            return None
        secret = await self._find(SECRET, names.account_token(account["metadata"]["name"]), meta["namespace"])
        if secret is None or secret["metadata"]["uid"] != meta["uid"] or not _is_owned(secret, bootstrap):
            return None
        if secret.get("type") != TOKEN_TYPE or _redacted(secret).get(_DIGEST) != token_secret.get(_DIGEST):
            return None
        return Issued(machine, secret) if await self._is_genuine(secret, account) else None

    async def _is_genuine(self, secret: Object, account: Object) -> bool:
        """Whether the API server signed the token for this very account, not for another of its name."""
        meta = account["metadata"]
        spec = {"token": _token_in(secret).decode(errors="replace")}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self._client.create(REVIEWS, review)).get("status") or {}
        user = status.get("user") or {}
        is_account = user.get("username") == f"system:serviceaccount:{meta['namespace']}:{meta['name']}"
        return bool(status.get("authenticated")) and is_account and user.get("uid") == meta["uid"]

    async def _owner(self, obj: Object, kind: Kind) -> Object | None:
        for reference in obj["metadata"].get("ownerReferences") or ():
            if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == kind.group_kind:
                found = await self._find(kind, reference["name"], obj["metadata"]["namespace"])
                if found is not None and found["metadata"]["uid"] == reference["uid"]:
                    return found
        return None

    async def _find(self, kind: Kind, name: str, namespace: str) -> Object | None:
        try:
            return await self._client.get(kind.resource, name, namespace=namespace) if name else None
        except NotFound:
            return None

    @contextmanager
    def _changes(self) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)

    def _changed(self, change: Change) -> None:
        for event in self._waiting:
            event.set()
        for end, claims in list(self._streams.get(change.key, {}).items()):
            if not claims.is_of(change.new):
                end()


def _token_in(secret: Object) -> bytes:
    try:
        return base64.b64decode((secret.get("data") or {}).get("token") or "")
    except (binascii.Error, ValueError):
        return b""


def _redacted(secret: Object) -> Object:
    """The Secret without the token; for bootstrap tokens with its digest, by which it is found."""
    token = _token_in(secret)
    meta = {name: value for name, value in secret["metadata"].items() if name != "managedFields"}
    redacted = {"apiVersion": SECRET.api_version, "kind": SECRET.kind, "metadata": meta, _FILLED: bool(token)}
    role = labels_of(secret).get(names.ACCOUNT_ROLE)
    if token and role == names.ACCOUNT_FOR_BOOTSTRAP:
        return {**redacted, _DIGEST: _sha256(machine_token(token))}
    return redacted


def _machine_name(account: Object) -> str | None:
    return labels_of(account).get(names.MACHINE_NAME)


def _is_owned(secret: Object, bootstrap: Object) -> bool:
    owners = secret["metadata"].get("ownerReferences") or ()
    return any(each.get("controller") and each["uid"] == bootstrap["metadata"]["uid"] for each in owners)


def _digest_of(secret: Object) -> Iterable[str]:
    return (secret[_DIGEST],) if _DIGEST in secret else ()


def _machine_of(secret: Object) -> Iterable[str]:
    """Indexer: the machine of a plan token, once the token exists."""
    labels = labels_of(secret)
    if labels.get(names.ACCOUNT_ROLE) == names.ACCOUNT_FOR_PLAN and secret[_FILLED]:
        yield f"{secret['metadata']['namespace']}/{labels.get(names.MACHINE_NAME, '')}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
