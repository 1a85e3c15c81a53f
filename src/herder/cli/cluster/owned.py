"""Objects and logs of the user's own clusters, through the manager.

Owners of a cluster have no right to list the Machines of its namespace, which also holds those of other clusters.
"""

from __future__ import annotations

import json
from contextlib import suppress

from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.cli.cluster.lookup import clusters_of_user
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import Query

NOT_LOGGED_IN = "the manager serves this only to logged-in users; run: herder login URL"


async def cluster_id(client: Client, namespace: str, name: str) -> str:
    """ID of a cluster; empty before the manager has assigned one."""
    cluster = await client.get(PROVISIONING_CLUSTER.resource, name, namespace=namespace)
    return str((cluster.get("status") or {}).get("clusterName") or "")


async def objects_of(client: Client, id_: str) -> list[Object]:
    """The provisioning Cluster, the Cluster API Cluster and its machines."""
    found: list[Object] = (await _get(client, id_, "objects"))["items"]
    return found


async def deletion_of(client: Client, namespace: str, name: str, uid: str) -> Object:
    """What the deletion of a Cluster waits for, also after the rights of its owners have ended."""
    return await _read(client, f"/v3/deletions/{namespace}/{name}/{uid}")


async def delete_snapshot(client: Client, id_: str, name: str) -> None:
    await _send(client, "DELETE", f"/v3/clusters/{id_}/snapshots/{name}")


async def log_of(client: Client, id_: str) -> str:
    return str((await _get(client, id_, "logs"))["log"])


async def machine_log_of(client: Client, id_: str, machine: str) -> str:
    return str((await _get(client, id_, "logs", Query([("machine", machine)])))["log"])


async def registration_of(client: Client, id_: str) -> tuple[Object, str]:
    """Status of the registration token, and the token; empty if it is not issued yet."""
    found = await _get(client, id_, "registration")
    return found.get("status") or {}, str(found.get("token") or "")


async def own_objects(client: Client) -> list[Object]:
    """Objects of all clusters of the user, except the manager's own."""
    found: list[Object] = []
    for id_ in await clusters_of_user(client):
        with suppress(NotFound, Forbidden):
            found += await objects_of(client, id_)
    return found


async def cluster_of_machine(client: Client, machine: str) -> str | None:
    """ID of the user's cluster with this Machine."""
    for id_ in await clusters_of_user(client):
        with suppress(NotFound, Forbidden):
            if any(
                is_kind(each, MACHINE) and each["metadata"]["name"] == machine for each in await objects_of(client, id_)
            ):
                return id_
    return None


def is_kind(obj: Object, kind: Kind) -> bool:
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return (group, obj.get("kind")) == (kind.group, kind.kind)


async def _get(client: Client, id_: str, part: str, query: Query | None = None) -> Object:
    return await _read(client, f"/v3/clusters/{id_}/{part}", query)


async def _read(client: Client, path: str, query: Query | None = None) -> Object:
    return await _send(client, "GET", path, query)


async def _send(client: Client, method: str, path: str, query: Query | None = None) -> Object:
    response = await client.raw(method, path, query)
    content = response.content() if response.stream is None else b"".join([chunk async for chunk in response.stream])
    try:
        found: Object = json.loads(content)
    except ValueError:
        found = {"message": f"{path}: {NOT_LOGGED_IN}"}
    if response.status >= 400:
        raise StatusError.from_status(found, response.status)
    return found
