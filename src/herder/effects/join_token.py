"""Effect `cluster-tokens`: create the join tokens of a cluster, so that no decision contains one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn.hashes import new_key
from herder.api.machines.names import BACKUP_LABEL
from herder.api.rke.names import TOKENS_SECRET_TYPE
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists


class ClusterTokens:
    """Executor of `cluster-tokens`."""

    def __init__(self, client: Client, entropy: Callable[[int], bytes]) -> None:
        self._client = client
        self._entropy = entropy

    async def __call__(self, arguments: Mapping[str, Any]) -> None:
        """Existing tokens are never replaced, because machines have joined with them."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": TOKENS_SECRET_TYPE,
            "metadata": {
                "name": arguments["name"],
                "namespace": arguments["namespace"],
                "labels": {BACKUP_LABEL: "true"},
                "ownerReferences": [dict(arguments["owner"])],
            },
            "stringData": {name: new_key(self._entropy) for name in ("serverToken", "agentToken")},
        }
        try:
            await self._client.create(SECRET.resource, secret, namespace=arguments["namespace"])
        except AlreadyExists:
            return
