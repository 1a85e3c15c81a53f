"""Effect `cluster-encryption-key`: add a key that encrypts Secrets of a cluster, so that no decision contains it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import CLUSTER_NAME
from herder.api.machines.names import BACKUP_LABEL
from herder.api.rke.etcd.encryption import data_key
from herder.api.rke.names import KEYS_SECRET_TYPE
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, Conflict, NotFound
from herder.engine.meta.kinds import Object

KEY_BYTES = 32
_ATTEMPTS = 5


class EncryptionKeys:
    """Executor of `cluster-encryption-key`."""

    def __init__(self, client: Client, entropy: Callable[[int], bytes]) -> None:
        self._client = client
        self._entropy = entropy

    async def __call__(self, arguments: Mapping[str, Any]) -> None:
        """A key that exists is never replaced: Secrets are encrypted with it."""
        for _ in range(_ATTEMPTS):
            try:
                return await self._add(arguments)
            except (AlreadyExists, Conflict, NotFound):
                continue  # another replica was faster
        raise RuntimeError(f"Secret {arguments['namespace']}/{arguments['name']} changes all the time")

    async def _add(self, arguments: Mapping[str, Any]) -> None:
        name, namespace = arguments["name"], arguments["namespace"]
        try:
            found = await self._client.get(SECRET.resource, name, namespace=namespace)
        except NotFound:
            await self._client.create(SECRET.resource, self._secret(arguments), namespace=namespace)
            return
        if not _belongs_to(found, arguments["owner"]):
            raise RuntimeError(f"Secret {namespace}/{name} does not belong to this cluster; delete it")
        key = data_key(arguments["generation"])
        if key in (found.get("data") or {}):
            return
        patch = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "data": {key: self._new()}}
        await self._client.patch(SECRET.resource, name, patch, namespace=namespace)

    def _secret(self, arguments: Mapping[str, Any]) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": KEYS_SECRET_TYPE,
            "metadata": {
                "name": arguments["name"],
                "namespace": arguments["namespace"],
                "labels": {CLUSTER_NAME: arguments["cluster"], BACKUP_LABEL: "true"},
                "ownerReferences": [dict(arguments["owner"])],
            },
            "data": {data_key(arguments["generation"]): self._new()},
        }

    def _new(self) -> str:
        """The key in base64, as configurations have it, and again as data of a Secret."""
        return base64.b64encode(base64.b64encode(self._entropy(KEY_BYTES))).decode()


def _belongs_to(secret: Object, owner: Mapping[str, Any]) -> bool:
    return any(each["uid"] == owner["uid"] for each in secret["metadata"].get("ownerReferences") or ())
