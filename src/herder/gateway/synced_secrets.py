"""Brings a Secret into a managed cluster: an effect, so that no decision holds what is in it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.management.syncing import PLACEHOLDER
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.runtime.remote import Remotes


class SecretSync:
    """The performer of `sync-secret`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, remotes: Remotes, arguments: Mapping[str, Any]) -> None:
        """What is there already as it should be is not written again. One that is gone meanwhile is left as it is."""
        source, target, cluster = arguments["source"], arguments["target"], arguments["cluster"]
        try:
            secret = await self._client.get(SECRET.resource, source["name"], namespace=source["namespace"])
        except NotFound:
            return
        wanted = _made(secret, target, cluster)
        there = remotes.client(cluster)
        try:
            known = await there.get(SECRET.resource, target["name"], namespace=target["namespace"])
        except NotFound:
            await there.create(SECRET.resource, wanted, namespace=target["namespace"])
            return
        if known.get("type") != wanted["type"]:
            raise ValueError(
                f"Secret {target['namespace']}/{target['name']} of the cluster is of type {known.get('type')}, and "
                f"would have to be of type {wanted['type']}: delete it there, or choose another name"
            )
        if (known.get("data") or {}) != wanted["data"]:
            await there.update(SECRET.resource, {**known, "data": wanted["data"]})


def _made(secret: Object, target: Mapping[str, str], cluster: str) -> Object:
    data = {key: _filled(value, cluster) for key, value in (secret.get("data") or {}).items()}
    meta = {"name": target["name"], "namespace": target["namespace"]}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": secret.get("type", "Opaque"), "data": data}


def _filled(value: str, cluster: str) -> str:
    content = base64.b64decode(value).replace(PLACEHOLDER.encode(), cluster.encode())
    return base64.b64encode(content).decode()
