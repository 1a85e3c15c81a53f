"""The accounts of machines: who shows which token, and which machine may be handed the token of its plan.

Of all their Secrets only metadata is kept here, and of tokens a digest: what must be told in full is read when it is.

A label on a Secret is a claim of whoever created it, and so is `data.token`. A token counts only if the manager issued
it, which `issued_to` verifies: the Secret has the name and the owner that the manager gives it, its account leads to
the Machine by owner references, and the API server itself confirms that the token is one of this very account.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.capi.names import annotations_of, labels_of
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change
from herder.engine.control.informer import Informer
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from herder.gateway.nodes.bootstrap_data import machine_token

BY_DIGEST, BY_MACHINE = "digest", "machine"
TOKEN_TYPE, TOKEN_OF = "kubernetes.io/service-account-token", "kubernetes.io/service-account.name"
REVIEWS = GroupVersionResource("authentication.k8s.io", "v1", "tokenreviews")
_DIGEST, _FILLED = "digest", "filled"
_MOST_TOKEN = 256


@dataclass(frozen=True, slots=True)
class Issued:
    """A token that the manager issued."""

    machine: Object
    secret: Object = field(repr=False)


class Accounts:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._secrets = Cache(SECRET, {BY_DIGEST: _digest_of, BY_MACHINE: _machine_of})
        self._informer = Informer(client, self._secrets, self._changed, labels=names.ACCOUNT_ROLE, keep=_kept)
        self._waiting: set[asyncio.Event] = set()

    async def run(self) -> None:
        await self._informer.run()

    async def ready(self) -> None:
        await self._informer.synced.wait()

    def bootstrap_token(self, shown: str) -> Object | None:
        """The metadata of the Secret whose token a machine shows. It is found by a digest of what is shown, so how long
        that takes tells nothing of tokens."""
        if not shown or len(shown) > _MOST_TOKEN:
            return None
        digest = _sha256(shown)
        for secret in self._secrets.select(index=(BY_DIGEST, digest)):
            if hmac.compare_digest(secret[_DIGEST], digest):
                return secret
        return None

    async def stamp(self, token_secret: Object, at: str) -> None:
        """It was used now, which the next look at it must show."""
        meta, stamp = token_secret["metadata"], {"metadata": {"annotations": {names.LAST_ACCESS: at}}}
        answer = await self._client.patch(SECRET.resource, meta["name"], stamp, namespace=meta["namespace"])
        self._secrets.upsert(_kept(answer))

    async def plan_token(self, machine: Object) -> Object:
        """The Secret with the token of the machine's plan account, once it is there; for as long as one likes."""
        meta = machine["metadata"]
        with self._news() as news:
            while True:
                for secret in self._secrets.select(index=(BY_MACHINE, f"{meta['namespace']}/{meta['name']}")):
                    issued = await self.issued_to(secret, names.ACCOUNT_FOR_PLAN)
                    if issued is not None and issued.machine["metadata"]["uid"] == meta["uid"]:
                        return issued.secret
                await news.wait()
                news.clear()

    async def issued_to(self, token_secret: Object, role: str) -> Issued | None:
        """The Machine that the manager issued this token for, and the Secret as it is now; None for any other token."""
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
        if secret.get("type") != TOKEN_TYPE or _kept(secret).get(_DIGEST) != token_secret.get(_DIGEST):
            return None
        return Issued(machine, secret) if await self._is_genuine(secret, account) else None

    async def _is_genuine(self, secret: Object, account: Object) -> bool:
        """Whether the API server signed the token, and for this account rather than another of its name."""
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
    def _news(self) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)

    def _changed(self, _change: Change) -> None:
        for event in self._waiting:
            event.set()


def _token_in(secret: Object) -> bytes:
    try:
        return base64.b64decode((secret.get("data") or {}).get("token") or "")
    except (binascii.Error, ValueError):
        return b""


def _kept(secret: Object) -> Object:
    """Without the token. Of a machine's first one the digest stays, by which it is found again."""
    token = _token_in(secret)
    meta = {name: value for name, value in secret["metadata"].items() if name != "managedFields"}
    kept = {"apiVersion": SECRET.api_version, "kind": SECRET.kind, "metadata": meta, _FILLED: bool(token)}
    role = labels_of(secret).get(names.ACCOUNT_ROLE)
    if token and role == names.ACCOUNT_FOR_BOOTSTRAP:
        return {**kept, _DIGEST: _sha256(machine_token(token))}
    return kept


def _machine_name(account: Object) -> str | None:
    return labels_of(account).get(names.MACHINE_NAME)


def _is_owned(secret: Object, bootstrap: Object) -> bool:
    owners = secret["metadata"].get("ownerReferences") or ()
    return any(each.get("controller") and each["uid"] == bootstrap["metadata"]["uid"] for each in owners)


def _digest_of(secret: Object) -> Iterable[str]:
    return (secret[_DIGEST],) if _DIGEST in secret else ()


def _machine_of(secret: Object) -> Iterable[str]:
    """Indexer: whose plan a token is for, once it is there."""
    labels = labels_of(secret)
    if labels.get(names.ACCOUNT_ROLE) == names.ACCOUNT_FOR_PLAN and secret[_FILLED]:
        yield f"{secret['metadata']['namespace']}/{labels.get(names.MACHINE_NAME, '')}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
