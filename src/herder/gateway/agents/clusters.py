"""Endpoints and credentials of managed clusters, from the records of their agents."""

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
from herder.gateway.agents.records import CREDENTIAL, REGISTERED_FOR, registered_for
from herder.gateway.proxy.targets import Target

HTTPS = "https://"


class Clusters:
    """Watched caches of management Clusters and agent credentials."""

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
        """Register a callback that is called with each created, changed or deleted cluster."""
        self._listeners.append(changed)

    def _changed(self, change: Change) -> None:
        for listener in self._listeners:
            listener(change.key.name)

    def ids(self) -> list[str]:
        return [key.name for key in self._clusters.keys()]  # noqa: SIM118 - a cache is no mapping

    def get(self, cluster: str) -> Object | None:
        return self._clusters.get(Key("", cluster))

    async def target_of(self, cluster: str) -> Target:
        """Raise NotFound for an unknown cluster, ServiceUnavailable if its agent never registered."""
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
        """Users store cloud credentials in the same namespace; only a Secret owned by the cluster is its credential."""
        cluster, uid = managed["metadata"]["name"], managed["metadata"]["uid"]
        secret = self._credentials.get(Key(CREDENTIALS_NAMESPACE, name))
        owners = (secret["metadata"].get("ownerReferences") or ()) if secret else ()
        if secret is None or not any(each["uid"] == uid for each in owners):
            raise ServiceUnavailable(
                f"cluster {cluster}: the credential of its agent does not exist; restart the agent"
            )
        data = secret.get("data") or {}
        credential, server = (base64.b64decode(data.get(key) or "").decode() for key in (CREDENTIAL, REGISTERED_FOR))
        if server and server != registered_for(managed.get("status") or {}):  # earlier versions did not store it
            raise ServiceUnavailable(f"cluster {cluster}: its agent is registering; try again")
        return credential


def _certificates(cluster: str, encoded: object) -> str:
    try:
        return base64.b64decode(str(encoded or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ServiceUnavailable(f"cluster {cluster}: status.caCert cannot be read; restart its agent") from None


def _disconnected_since(cluster: Object) -> str:
    connected = find(cluster, "Connected")
    return str(connected.get("lastTransitionTime") or "") if connected and connected["status"] != "True" else ""
