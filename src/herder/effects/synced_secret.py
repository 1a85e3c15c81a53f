"""Effect `sync-secret`: copy a Secret into a managed cluster, so that no decision contains its data."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import annotations_of
from herder.api.management.secret_sync import ALLOWED_TYPES, PLACEHOLDER, SYNCED_FROM, TARGET_NAME
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable
from herder.engine.runtime.remote import Remotes

_TYPE_LENGTH = 100  # longest part of a type in messages: a hostile cluster may return anything


class SecretNotSynced(ValueError):
    """The Secret cannot be synced. The message is shown in conditions, unlike that of a built-in ValueError."""


class SecretSync:
    """Executor of `sync-secret`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, remotes: Remotes, arguments: Mapping[str, Any]) -> None:
        """An up-to-date Secret is not written again. A deleted source is ignored."""
        source, target, cluster = arguments["source"], arguments["target"], arguments["cluster"]
        try:
            secret = await self._client.get(SECRET.resource, source["name"], namespace=source["namespace"])
        except NotFound:
            return
        if secret["metadata"]["uid"] != source["uid"]:
            return  # Attempts may be minutes apart: another user can have created one of the same name since.
        if (type_ := secret.get("type", "Opaque")) not in ALLOWED_TYPES:
            raise SecretNotSynced(f"Secrets of type {type_} cannot be synced; use type Opaque")
        wanted = _generate(secret, target, cluster)
        remote = remotes.client(cluster)
        try:
            known = await remote.get(SECRET.resource, target["name"], namespace=target["namespace"])
        except NotFound:
            await remote.create(SECRET.resource, wanted, namespace=target["namespace"])
            return
        if known.get("type") != wanted["type"]:
            found = printable(str(known.get("type")), _TYPE_LENGTH)
            raise SecretNotSynced(
                f"Secret {target['namespace']}/{target['name']} of the cluster is of type {found}, and "
                f"would have to be of type {wanted['type']}; delete it there, or choose another name"
            )
        await _update(remote, known, wanted)


async def _update(remote: Client, known: Object, wanted: Object) -> None:
    """Adopt an unmarked Secret with the same content: earlier versions did not mark what they created."""
    meta, place = known["metadata"], wanted["metadata"]  # a hostile cluster chooses the former
    own, source = annotations_of(known).get(SYNCED_FROM), place["annotations"][SYNCED_FROM]
    same = (known.get("data") or {}) == wanted["data"]
    if own == source and same:
        return
    if own != source and not (own is None and same):
        raise SecretNotSynced(
            f"Secret {place['namespace']}/{place['name']} of the cluster was not created by Herder from {source}; "
            f"delete it there, or choose another name with annotation {TARGET_NAME}"
        )
    marked = {**meta, "annotations": {**annotations_of(known), SYNCED_FROM: source}}
    await remote.update(SECRET.resource, {**known, "metadata": marked, "data": wanted["data"]})


def _generate(secret: Object, target: Mapping[str, str], cluster: str) -> Object:
    data = {key: _filled(value, cluster) for key, value in (secret.get("data") or {}).items()}
    source = f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"
    meta = {"name": target["name"], "namespace": target["namespace"], "annotations": {SYNCED_FROM: source}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": secret.get("type", "Opaque"), "data": data}


def _filled(value: str, cluster: str) -> str:
    content = base64.b64decode(value).replace(PLACEHOLDER.encode(), cluster.encode())
    return base64.b64encode(content).decode()
