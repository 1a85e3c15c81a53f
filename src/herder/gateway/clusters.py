"""Where managed clusters are: what their agents told, and whether they are connected now."""

from __future__ import annotations

import base64
import binascii

from herder.api.capi.conditions import find
from herder.api.capi.kinds import SECRET
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import CREDENTIALS_NAMESPACE
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.gateway.agent_records import CREDENTIAL
from herder.gateway.proxy.targets import Target

HTTPS = "https://"


class Clusters:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._targets: dict[str, tuple[str, Target]] = {}  # by cluster: the revision that it was read at

    def forget(self, cluster: str) -> None:
        self._targets.pop(cluster, None)

    async def target_of(self, cluster: str) -> Target:
        """Raises NotFound for an unknown cluster, ServiceUnavailable for one whose agent never came."""
        found = await self._client.get(MANAGEMENT_CLUSTER.resource, cluster)
        revision = found["metadata"]["resourceVersion"]
        known = self._targets.get(cluster)
        if known is not None and known[0] == revision:
            return known[1]
        target = await self._read(cluster, found)
        self._targets[cluster] = revision, target
        return target

    async def _read(self, cluster: str, found: Object) -> Target:
        status = found.get("status") or {}
        endpoint = str(status.get("apiEndpoint") or "")
        secret_name = status.get("serviceAccountTokenSecret")
        if not endpoint.startswith(HTTPS) or not secret_name:
            raise ServiceUnavailable(f"cluster {cluster}: its agent has not registered yet")
        return Target(
            cluster,
            endpoint.removeprefix(HTTPS).rstrip("/"),
            _certificates(cluster, status.get("caCert")),
            token=await self._credential(cluster, secret_name),
            disconnected_since=_disconnected_since(found),
        )

    async def _credential(self, cluster: str, name: str) -> str:
        try:
            secret = await self._client.get(SECRET.resource, name, namespace=CREDENTIALS_NAMESPACE)
        except NotFound:
            raise ServiceUnavailable(
                f"cluster {cluster}: the credential of its agent is gone; restart the agent"
            ) from None
        return base64.b64decode((secret.get("data") or {}).get(CREDENTIAL) or "").decode()


def _certificates(cluster: str, encoded: object) -> str:
    try:
        return base64.b64decode(str(encoded or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ServiceUnavailable(f"cluster {cluster}: status.caCert cannot be read; restart its agent") from None


def _disconnected_since(cluster: Object) -> str:
    connected = find(cluster, "Connected")
    return str(connected.get("lastTransitionTime") or "") if connected and connected["status"] != "True" else ""
