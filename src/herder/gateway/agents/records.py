"""Store what agents report: the endpoint in the management Cluster's status, the token in a Secret.

Reconnecting agents report the same values, so nothing is written, however many reconnect at once.
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
from herder.api.writes import difference, owner_reference
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound
from herder.engine.meta.kinds import Object

CREDENTIAL = "credential"  # key in the Secret
REGISTERED_FOR = "registeredFor"  # beside it: a digest of address and CA of the API server that it is for
REPORT_INTERVAL = timedelta(minutes=1)


class AgentRecords:
    """Stores endpoints and credentials of agents."""

    def __init__(self, client: Client, clock: Callable[[], datetime]) -> None:
        self._client = client
        self._clock = clock
        self._stored: dict[str, bytes] = {}  # cluster → digest of the stored credential
        self._reported: dict[str, tuple[str, datetime]] = {}  # cluster → last reported conflict

    def is_stored(self, cluster: Object, claimed: Parameters) -> bool:
        """Whether all of this is stored already, as far as the caches show."""
        before = cluster.get("status") or {}
        same = all(before.get(key) == value for key, value in _status(cluster, claimed).items())
        return same and self._stored.get(cluster["metadata"]["name"]) == _digest(cluster, claimed)

    async def credential(self, cluster: Object) -> str:
        """The service account token stored for this very cluster, or ""."""
        name, uid = cluster["metadata"]["name"], cluster["metadata"]["uid"]
        secret = await self._find_credential(names.credential_secret(name))
        owners = (secret["metadata"].get("ownerReferences") or ()) if secret else ()
        if secret is None or not any(each["uid"] == uid for each in owners):
            return ""
        return base64.b64decode((secret.get("data") or {}).get(CREDENTIAL) or "").decode(errors="replace")

    async def store(self, cluster: Object, claimed: Parameters) -> None:
        """Store the credential before the endpoint, so that a visible endpoint is always usable."""
        name, before = cluster["metadata"]["name"], cluster.get("status") or {}
        wanted = _status(cluster, claimed)
        if wanted["driver"] not in IMPORTED_DRIVERS:
            return
        await self._store_credential(cluster, claimed)
        if changes := difference({key: before.get(key) for key in wanted}, wanted):
            await self._client.patch(MANAGEMENT_CLUSTER.resource, name, {"status": changes}, subresource="status")

    async def report_conflict(self, cluster: str, outcome: str) -> None:
        """Report at most once a minute, so that repeated attempts cause no more writes."""
        now = self._clock()
        last, at = self._reported.get(cluster, ("", now))
        if last == outcome and now - at < REPORT_INTERVAL:
            return
        self._reported[cluster] = (outcome, now)
        change = {"metadata": {"annotations": {names.AGENT_CONFLICT: f"{timestamp(now)} {outcome}"}}}
        with suppress(NotFound):
            await self._client.patch(MANAGEMENT_CLUSTER.resource, cluster, change)

    def forget(self, cluster: str) -> None:
        self._stored.pop(cluster, None)
        self._reported.pop(cluster, None)

    async def _store_credential(self, cluster: Object, claimed: Parameters) -> None:
        name, digest = cluster["metadata"]["name"], _digest(cluster, claimed)
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
            "data": {
                CREDENTIAL: base64.b64encode(claimed.token.encode()).decode(),
                REGISTERED_FOR: base64.b64encode(registered_for(_status(cluster, claimed)).encode()).decode(),
            },
        }
        await self._remove_foreign(names.credential_secret(name))
        try:
            await self._apply(secret)
        except NotFound:  # the namespace does not exist before the first cluster
            await self._create_namespace()
            await self._apply(secret)
        self._stored[name] = digest

    async def _remove_foreign(self, name: str) -> None:
        """Delete a Secret of this name that no cluster owns: its author could read the credential."""
        existing = await self._find_credential(name)
        owners = (existing["metadata"].get("ownerReferences") or ()) if existing else ()
        if existing is not None and not any(each["kind"] == MANAGEMENT_CLUSTER.kind for each in owners):
            uid = existing["metadata"]["uid"]
            with suppress(NotFound):
                await self._client.delete(SECRET.resource, name, namespace=names.CREDENTIALS_NAMESPACE, uid=uid)

    async def _find_credential(self, name: str) -> Object | None:
        try:
            return await self._client.get(SECRET.resource, name, namespace=names.CREDENTIALS_NAMESPACE)
        except NotFound:
            return None

    async def _apply(self, secret: Object) -> None:
        await self._client.apply(SECRET.resource, secret, field_manager="agent-registration")

    async def _create_namespace(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.CREDENTIALS_NAMESPACE}}
        with suppress(AlreadyExists):
            await self._client.create(NAMESPACE.resource, namespace)


def _status(cluster: Object, claimed: Parameters) -> Object:
    name, before = cluster["metadata"]["name"], cluster.get("status") or {}
    return {
        "driver": before.get("driver") or "imported",
        "apiEndpoint": f"https://{claimed.address}",
        "caCert": claimed.encoded_ca,
        "serviceAccountTokenSecret": names.credential_secret(name),
    }


def registered_for(status: Object) -> str:
    """Of the API server in the status of a management Cluster."""
    return hashlib.sha256(f"{status.get('apiEndpoint')}\n{status.get('caCert')}".encode()).hexdigest()


def _digest(cluster: Object, claimed: Parameters) -> bytes:
    server = registered_for(_status(cluster, claimed))
    return hashlib.sha256(f"{cluster['metadata']['uid']} {claimed.token} {server}".encode()).digest()
