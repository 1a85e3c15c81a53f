"""Keeps what agents tell of their clusters: the address in the management Cluster's status, the token in a Secret.

Agents that come back tell what is known already, so nothing is written then, however many come at once.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from herder.api.capi.conditions import timestamp
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
REPORTED_EVERY = timedelta(minutes=1)


class AgentRecords:
    def __init__(self, client: Client, clock: Callable[[], datetime]) -> None:
        self._client = client
        self._clock = clock
        self._stored: dict[str, bytes] = {}  # cluster → digest of the credential that its Secret holds
        self._reported: dict[str, tuple[str, datetime]] = {}  # cluster → the conflict that was written last

    def knows(self, cluster: Object, claimed: Parameters) -> bool:
        """Whether all of this is stored already, as far as is known without asking."""
        before = cluster.get("status") or {}
        same = all(before.get(key) == value for key, value in _status(cluster, claimed).items())
        return same and self._stored.get(cluster["metadata"]["name"]) == _digest(cluster, claimed.token)

    async def credential(self, cluster: Object) -> str:
        """The service account token that is stored for this very cluster, or ""."""
        name, uid = cluster["metadata"]["name"], cluster["metadata"]["uid"]
        secret = await self._find_credential(names.credential_secret(name))
        owners = (secret["metadata"].get("ownerReferences") or ()) if secret else ()
        if secret is None or not any(each["uid"] == uid for each in owners):
            return ""
        return base64.b64decode((secret.get("data") or {}).get(CREDENTIAL) or "").decode(errors="replace")

    async def keep(self, cluster: Object, claimed: Parameters) -> None:
        """The credential before the address: who finds the address finds how to use it."""
        name, before = cluster["metadata"]["name"], cluster.get("status") or {}
        wanted = _status(cluster, claimed)
        if wanted["driver"] not in IMPORTED_DRIVERS:
            return
        await self._keep_credential(cluster, claimed.token)
        if changes := difference({key: before.get(key) for key in wanted}, wanted):
            await self._client.patch(MANAGEMENT_CLUSTER.resource, name, {"status": changes}, subresource="status")

    async def report_conflict(self, cluster: str, outcome: str) -> None:
        """At most once a minute: whoever tries again and again causes no more writes."""
        now = self._clock()
        last, at = self._reported.get(cluster, ("", now))
        if last == outcome and now - at < REPORTED_EVERY:
            return
        self._reported[cluster] = (outcome, now)
        change = {"metadata": {"annotations": {names.AGENT_CONFLICT: f"{timestamp(now)} {outcome}"}}}
        with suppress(NotFound):
            await self._client.patch(MANAGEMENT_CLUSTER.resource, cluster, change)

    def forget(self, cluster: str) -> None:
        self._stored.pop(cluster, None)
        self._reported.pop(cluster, None)

    async def _keep_credential(self, cluster: Object, token: str) -> None:
        name = cluster["metadata"]["name"]
        digest = _digest(cluster, token)
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
        await self._remove_foreign(names.credential_secret(name))
        try:
            await self._apply(secret)
        except NotFound:  # the first cluster of all
            await self._make_namespace()
            await self._apply(secret)
        self._stored[name] = digest

    async def _remove_foreign(self, name: str) -> None:
        """A Secret of this name that no cluster owns is a user's, who may read it: no credential goes there."""
        there = await self._find_credential(name)
        owners = (there["metadata"].get("ownerReferences") or ()) if there else ()
        if there is not None and not any(each["kind"] == MANAGEMENT_CLUSTER.kind for each in owners):
            uid = there["metadata"]["uid"]
            with suppress(NotFound):
                await self._client.delete(SECRET.resource, name, namespace=names.CREDENTIALS_NAMESPACE, uid=uid)

    async def _find_credential(self, name: str) -> Object | None:
        try:
            return await self._client.get(SECRET.resource, name, namespace=names.CREDENTIALS_NAMESPACE)
        except NotFound:
            return None

    async def _apply(self, secret: Object) -> None:
        await self._client.apply(SECRET.resource, secret, field_manager="agent-registration")

    async def _make_namespace(self) -> None:
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.CREDENTIALS_NAMESPACE}}
        with suppress(AlreadyExists):
            await self._client.create(NAMESPACE.resource, made)


def _status(cluster: Object, claimed: Parameters) -> Object:
    name, before = cluster["metadata"]["name"], cluster.get("status") or {}
    return {
        "driver": before.get("driver") or "imported",
        "apiEndpoint": f"https://{claimed.address}",
        "caCert": claimed.encoded_ca,
        "serviceAccountTokenSecret": names.credential_secret(name),
    }


def _digest(cluster: Object, token: str) -> bytes:
    return hashlib.sha256(f"{cluster['metadata']['uid']} {token}".encode()).digest()
