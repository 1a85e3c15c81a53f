"""Endpoints and credentials of managed clusters, from the records of their agents."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from herder.api.capi.conditions import find
from herder.api.capi.kinds import SECRET
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import CREDENTIALS_NAMESPACE
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import RESTORE, Run
from herder.api.times import parse_time
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import Informer
from herder.engine.meta.errors import NotFound, ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.gateway.agents.records import CREDENTIAL, REGISTERED_FOR, registered_for
from herder.gateway.proxy.targets import Target

HTTPS = "https://"
BY_MANAGEMENT = "management"
_SHUTDOWN = "Shutdown"  # phase of a restore
NEVER = datetime.max.replace(tzinfo=UTC)


class Clusters:
    """Watched caches of management Clusters and agent credentials."""

    def __init__(self, client: Client) -> None:
        self._clusters = Cache(MANAGEMENT_CLUSTER)
        self._credentials = Cache(SECRET)
        self._restores = Cache(CONTROL_PLANE, {BY_MANAGEMENT: lambda obj: (obj["cluster"],)})
        self._listeners: list[Callable[[str], None]] = []
        self._informers = (
            Informer(client, self._clusters, self._changed),
            Informer(client, self._credentials, lambda _change: None, namespace=CREDENTIALS_NAMESPACE),
            Informer(client, self._restores, lambda _change: None, transform=_restore),
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run())

    async def ready(self) -> None:
        for informer in self._informers:
            await informer.answered.wait()  # without provisioning, the kind of control planes is not served

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

    def last_restore(self, cluster: str) -> datetime | None:
        """When the last restore ended that has replaced the data of the cluster; NEVER while one is in progress."""
        found = self._restores.select(index=(BY_MANAGEMENT, cluster))
        return max((end for each in found for end in _ends_of_restores(each)), default=None)

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


def _restore(control_plane: Object) -> Object:
    """Only what `last_restore` reads: specs are large."""
    meta, status = control_plane["metadata"], control_plane.get("status") or {}
    ended = [each for each in status.get("operationHistory") or () if each.get("kind") == RESTORE]
    return {
        "metadata": {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in meta},
        "cluster": str((control_plane.get("spec") or {}).get("managementClusterName") or ""),
        "status": {"operation": status.get("operation"), "operationHistory": ended},
    }


def _ends_of_restores(control_plane: Object) -> Iterator[datetime]:
    """Yield when each restore that has replaced data ended; the end of time for one in progress.

    A later operation replaces the run of a restore in `status.operation`, so its end is in the history too.
    """
    run, status = Run.of(control_plane), control_plane["status"]
    if run is not None and run.kind == RESTORE and _SHUTDOWN in run.timings:
        yield NEVER if run.is_active or run.phase_started_at is None else run.phase_started_at
    for each in status["operationHistory"]:
        if _SHUTDOWN in (each.get("timings") or {}):
            yield parse_time(str(each.get("endedAt") or "")) or NEVER
