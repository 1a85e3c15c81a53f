"""The accounts of machines: who shows which token, and which machine may be handed the token of its plan.

Of all their Secrets only metadata is kept here, and of tokens a digest: what must be told in full is read when it is.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.capi.names import labels_of
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.cache import Cache, Change
from herder.engine.runtime.informer import Informer
from herder.gateway.nodes.bootstrap_data import machine_token

BY_DIGEST, BY_MACHINE = "digest", "machine"
TOKEN_OF, TOKEN_OF_UID = "kubernetes.io/service-account.name", "kubernetes.io/service-account.uid"
_DIGEST, _FILLED = "digest", "filled"
_MOST_TOKEN = 256


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
                    owner = await self.machine_of(secret, names.ACCOUNT_FOR_PLAN)
                    if owner is not None and owner["metadata"]["uid"] == meta["uid"]:
                        return await self._client.get(
                            SECRET.resource, secret["metadata"]["name"], namespace=meta["namespace"]
                        )
                await news.wait()
                news.clear()

    async def machine_of(self, token_secret: Object, role: str) -> Object | None:
        """The Machine that an account was made for, by the chain of owners: labels alone would be anybody's claim."""
        meta = token_secret["metadata"]
        told = meta.get("annotations") or {}
        account = await self._find(SERVICE_ACCOUNT, told.get(TOKEN_OF, ""), meta["namespace"])
        if account is None or account["metadata"]["uid"] != told.get(TOKEN_OF_UID):
            return None
        if labels_of(account).get(names.ACCOUNT_ROLE) != role:
            return None
        bootstrap = await self._owner(account, BOOTSTRAP)
        machine = await self._owner(bootstrap, MACHINE) if bootstrap is not None else None
        named = labels_of(account).get(names.MACHINE_NAME)
        return machine if machine is not None and machine["metadata"]["name"] == named else None

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


def _kept(secret: Object) -> Object:
    """Without the token. Of a machine's first one the digest stays, by which it is found again."""
    token = base64.b64decode((secret.get("data") or {}).get("token") or "")
    meta = {name: value for name, value in secret["metadata"].items() if name != "managedFields"}
    kept = {"apiVersion": SECRET.api_version, "kind": SECRET.kind, "metadata": meta, _FILLED: bool(token)}
    role = labels_of(secret).get(names.ACCOUNT_ROLE)
    if token and role == names.ACCOUNT_FOR_BOOTSTRAP:
        return {**kept, _DIGEST: _sha256(machine_token(token))}
    return kept


def _digest_of(secret: Object) -> Iterable[str]:
    return (secret[_DIGEST],) if _DIGEST in secret else ()


def _machine_of(secret: Object) -> Iterable[str]:
    """Indexer: whose plan a token is for, once it is there."""
    labels = labels_of(secret)
    if labels.get(names.ACCOUNT_ROLE) == names.ACCOUNT_FOR_PLAN and secret[_FILLED]:
        yield f"{secret['metadata']['namespace']}/{labels.get(names.MACHINE_NAME, '')}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
