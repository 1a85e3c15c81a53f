"""Read the control plane and snapshots of a cluster. Owners, who may not list them, read them through the manager."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.cli.cluster import owned
from herder.cli.cluster.owned import is_kind, objects_of
from herder.engine.client.client import Client
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import Kind, Object


async def control_plane_of(client: Client, cluster: Object) -> Object | None:
    """The control plane; None if it is not created yet."""
    meta = cluster["metadata"]

    async def read() -> list[Object]:
        try:
            return [await client.get(CONTROL_PLANE.resource, meta["name"], namespace=meta["namespace"])]
        except NotFound:
            return []

    return next(iter(await _read_or_ask_manager(client, cluster, CONTROL_PLANE, read)), None)


async def snapshots_of(client: Client, cluster: Object) -> list[Object]:
    """Snapshots of the cluster, newest first."""
    meta = cluster["metadata"]

    async def read() -> list[Object]:
        labels = f"{names.CLUSTER_NAME}={meta['name']}"
        page = await client.list_all(ETCD_SNAPSHOT.resource, namespace=meta["namespace"], labels=labels)
        return page.items

    found = await _read_or_ask_manager(client, cluster, ETCD_SNAPSHOT, read)
    of_cluster = [each for each in found if (each.get("spec") or {}).get("clusterName") == meta["name"]]
    return sorted(of_cluster, key=lambda each: (created_at(each), each["metadata"]["name"]), reverse=True)


async def snapshot_named(client: Client, cluster: Object, name: str) -> Object:
    """The snapshot with this name, or with a file of this name."""
    known, cluster_name = await snapshots_of(client, cluster), cluster["metadata"]["name"]
    for matches in (
        [each for each in known if each["metadata"]["name"] == name],
        [each for each in known if file_of(each).get("name") == name],
    ):
        if len(matches) > 1:
            there = ", ".join(each["metadata"]["name"] for each in matches)
            raise click.ClickException(f"several snapshots have a file {name}; pass the name of one instead ({there})")
        if matches:
            return matches[0]
    listing = f"herder snapshot list {cluster_name} -n {cluster['metadata']['namespace']}"
    raise click.ClickException(f'cluster {cluster_name} has no snapshot "{name}"; list its snapshots with: {listing}')


async def delete_snapshot(client: Client, cluster: Object, snapshot: Object) -> None:
    meta = snapshot["metadata"]
    try:
        await client.delete(ETCD_SNAPSHOT.resource, meta["name"], namespace=meta["namespace"], uid=meta["uid"])
    except NotFound:
        pass
    except Forbidden:
        id_ = str((cluster.get("status") or {}).get("clusterName") or "")
        if not id_:
            raise
        await owned.delete_snapshot(client, id_, meta["name"])


def file_of(snapshot: Object) -> Object:
    file: Object = snapshot.get("snapshotFile") or {}
    return file


def created_at(snapshot: Object) -> str:
    """When the snapshot was taken; the creation of its object if the server did not report it."""
    return str(file_of(snapshot).get("createdAt") or snapshot["metadata"].get("creationTimestamp") or "")


async def _read_or_ask_manager(
    client: Client, cluster: Object, kind: Kind, read: Callable[[], Awaitable[list[Object]]]
) -> list[Object]:
    try:
        return await read()
    except Forbidden as refusal:
        error = refusal
    id_ = str((cluster.get("status") or {}).get("clusterName") or "")
    if not id_:
        raise error
    try:
        return [each for each in await objects_of(client, id_) if is_kind(each, kind)]
    except (NotFound, Forbidden):
        raise error from None
