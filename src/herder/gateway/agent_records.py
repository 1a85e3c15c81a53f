"""Keeps what agents tell of their clusters: the address in the management Cluster's status, the token in a Secret.

Agents that come back tell what is known already, so nothing is written then, however many come at once.
"""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.management import names
from herder.api.management.clusters import IMPORTED_DRIVERS
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.parameters import Parameters
from herder.api.writing import difference, owner_reference
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound
from herder.engine.meta.kinds import Object

CREDENTIAL = "credential"  # the key in the Secret


class AgentRecords:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._stored: dict[str, bytes] = {}  # cluster → digest of the credential that its Secret holds

    async def keep(self, cluster: Object, told: Parameters) -> None:
        """The credential before the address: who finds the address finds how to use it."""
        name, before = cluster["metadata"]["name"], cluster.get("status") or {}
        driver = before.get("driver") or "imported"
        if driver not in IMPORTED_DRIVERS:
            return
        await self._keep_credential(cluster, told.token)
        wanted = {
            "driver": driver,
            "apiEndpoint": f"https://{told.address}",
            "caCert": told.encoded_ca,
            "serviceAccountTokenSecret": names.credential_secret(name),
        }
        if changes := difference({key: before.get(key) for key in wanted}, wanted):
            await self._client.patch(MANAGEMENT_CLUSTER.resource, name, {"status": changes}, subresource="status")

    def forget(self, cluster: str) -> None:
        self._stored.pop(cluster, None)

    async def _keep_credential(self, cluster: Object, token: str) -> None:
        name = cluster["metadata"]["name"]
        digest = hashlib.sha256(f"{cluster['metadata']['uid']} {token}".encode()).digest()
        if self._stored.get(name) == digest:
            return
        secret = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": {
                "name": names.credential_secret(name),
                "namespace": names.CREDENTIALS_NAMESPACE,
                "ownerReferences": [owner_reference(MANAGEMENT_CLUSTER, cluster, controller=True)],
            },
            "type": "Opaque",
            "data": {CREDENTIAL: base64.b64encode(token.encode()).decode()},
        }
        try:
            await self._apply(secret)
        except NotFound:  # the first cluster of all
            await self._make_namespace()
            await self._apply(secret)
        self._stored[name] = digest

    async def _apply(self, secret: Object) -> None:
        await self._client.apply(SECRET.resource, secret, field_manager="agent-registration")

    async def _make_namespace(self) -> None:
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.CREDENTIALS_NAMESPACE}}
        with suppress(AlreadyExists):
            await self._client.create(NAMESPACE.resource, made)
