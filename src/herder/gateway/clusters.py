"""Where managed clusters are: what their agents told, and whether they are connected now."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable

from herder.api.capi.conditions import find
from herder.api.capi.kinds import SECRET
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import CREDENTIALS_NAMESPACE
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import Informer
from herder.engine.meta.errors import NotFound, ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.gateway.agent_records import CREDENTIAL
from herder.gateway.proxy.targets import Target

HTTPS = "https://"


class Clusters:
    """Kept up to date by watches: requests to clusters are many, and their agents seldom tell anything new."""

    def __init__(self, client: Client) -> None:
        self._clusters = Cache(MANAGEMENT_CLUSTER)
        self._credentials = Cache(SECRET)
        self._listeners: list[Callable[[str], None]] = []
        self._informers = (
            Informer(client, self._clusters, self._changed),
            Informer(client, self._credentials, lambda _change: None, namespace=CREDENTIALS_NAMESPACE),
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run())

    async def ready(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()

    def listen(self, changed: Callable[[str], None]) -> None:
        """`changed` is told of each cluster that has come, changed or gone."""
        self._listeners.append(changed)

    def _changed(self, change: Change) -> None:
        for listener in self._listeners:
            listener(change.key.name)

    def ids(self) -> list[str]:
        return [key.name for key in self._clusters.keys()]  # noqa: SIM118 - a cache is no mapping

    def get(self, cluster: str) -> Object | None:
        return self._clusters.get(Key("", cluster))

    async def target_of(self, cluster: str) -> Target:
        """Raises NotFound for an unknown cluster, ServiceUnavailable for one whose agent never came."""
        found = self.get(cluster)
        if found is None:
            raise NotFound(f'clusters.management.cattle.io "{cluster}" not found')
        status = found.get("status") or {}
        endpoint = str(status.get("apiEndpoint") or "")
        secret_name = status.get("serviceAccountTokenSecret")
        if not endpoint.startswith(HTTPS) or not secret_name:
            raise ServiceUnavailable(f"cluster {cluster}: its agent has not registered yet")
        return Target(
            cluster,
            endpoint.removeprefix(HTTPS).rstrip("/"),
            _certificates(cluster, status.get("caCert")),
            token=self._credential(found, secret_name),
            disconnected_since=_disconnected_since(found),
        )

    def _credential(self, managed: Object, name: str) -> str:
        """Users keep cloud credentials in the same namespace: only a Secret that the cluster owns holds its own."""
        cluster, uid = managed["metadata"]["name"], managed["metadata"]["uid"]
        secret = self._credentials.get(Key(CREDENTIALS_NAMESPACE, name))
        owners = (secret["metadata"].get("ownerReferences") or ()) if secret else ()
        if secret is None or not any(each["uid"] == uid for each in owners):
            raise ServiceUnavailable(f"cluster {cluster}: the credential of its agent is gone; restart the agent")
        return base64.b64decode((secret.get("data") or {}).get(CREDENTIAL) or "").decode()


def _certificates(cluster: str, encoded: object) -> str:
    try:
        return base64.b64decode(str(encoded or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ServiceUnavailable(f"cluster {cluster}: status.caCert cannot be read; restart its agent") from None


def _disconnected_since(cluster: Object) -> str:
    connected = find(cluster, "Connected")
    return str(connected.get("lastTransitionTime") or "") if connected and connected["status"] != "True" else ""
