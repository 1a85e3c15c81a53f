"""ETCDSnapshotFile objects, by which servers of K3s and RKE2 report the snapshots that exist."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.sim.host.disk import Snapshot
from herder.sim.host.s3 import S3Settings
from herder.sim.k3s.invocation import rfc3339

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode

SNAPSHOT_FILES = GroupVersionResource("k3s.cattle.io", "v1", "etcdsnapshotfiles")
_CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "etcdsnapshotfiles.k3s.cattle.io"},
    "spec": {
        "group": "k3s.cattle.io",
        "names": {"kind": "ETCDSnapshotFile", "plural": "etcdsnapshotfiles", "singular": "etcdsnapshotfile"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _ANY, "status": _ANY}}},
                "subresources": {"status": {}},
            }
        ],
    },
}


class SnapshotObjects:
    """Reconciles the objects of a cluster with the files on the disks of its servers and in S3."""

    def __init__(self) -> None:
        self._marked: dict[str, SimulatedNode] = {}
        self._failed: list[Object] = []
        self._installed = False

    def mark(self, node: SimulatedNode) -> None:
        """The snapshots of this server may have changed."""
        if node.runtime in ("k3s", "rke2") and not node.is_worker:
            self._marked[node.name] = node

    def forget(self) -> None:
        """The cluster has other content now."""
        self._installed = False

    def add_failure(self, node: SimulatedNode, name: str, message: str) -> None:
        now = rfc3339(node.context.wall())
        status = {"readyToUse": False, "size": "0", "error": {"time": now, "message": message}}
        self._failed.append(_object(node.runtime, "local", name, node.name, "", node.name, {}, status))

    @property
    def is_pending(self) -> bool:
        return bool(self._marked or self._failed)

    async def reconcile(self, client: Client) -> None:
        if not self._installed:
            with suppress(AlreadyExists):
                await client.create(_CRDS, CRD)
            self._installed = await _is_served(client)
            if not self._installed:
                return  # soon
        failed, self._failed = self._failed, []
        for obj in failed:
            await _create(client, obj)
        marked, self._marked = self._marked, {}
        for node in marked.values():
            await self._reconcile_server(client, node)

    async def _reconcile_server(self, client: Client, node: SimulatedNode) -> None:
        wanted = {obj["metadata"]["name"]: obj for obj in (*_local(node), *_stored(node))}
        label = f"etcd.{node.runtime}.cattle.io/snapshot-storage-node"
        found = (await client.list(SNAPSHOT_FILES)).items
        uses_s3 = _settings(node) is not None
        for obj in found:
            name, where = obj["metadata"]["name"], (obj["metadata"].get("labels") or {}).get(label)
            own = where == node.name or (where == "s3" and uses_s3)
            if own and name not in wanted and not (obj.get("status") or {}).get("error"):
                with suppress(NotFound):
                    await client.delete(SNAPSHOT_FILES, name)
        known = {obj["metadata"]["name"] for obj in found}
        for name, obj in wanted.items():
            if name not in known:
                await _create(client, obj)


async def _is_served(client: Client) -> bool:
    try:
        await client.list(SNAPSHOT_FILES)
    except NotFound:
        return False
    return True


async def _create(client: Client, obj: Object) -> None:
    with suppress(AlreadyExists):
        await client.create(SNAPSHOT_FILES, obj)
        await client.patch(SNAPSHOT_FILES, obj["metadata"]["name"], {"status": obj["status"]}, subresource="status")


def _local(node: SimulatedNode) -> list[Object]:
    directory = node.snapshot_directory or node.disk.layout.snapshots
    snapshots = node.disk.snapshots_in(directory)
    return [_of(node, "local", each, f"file://{directory}/{each.name}", node.name) for each in snapshots]


def _stored(node: SimulatedNode) -> list[Object]:
    settings = _settings(node)
    if settings is None:
        return []
    s3 = node.context.s3
    bucket = s3.buckets.get(settings.bucket, {}) if not s3.refuses else {}
    prefix = settings.key("")
    found = [each for key, each in bucket.items() if key.startswith(prefix)]
    return [_of(node, "s3", each, settings.location(each.name), "s3", settings) for each in found]


def _settings(node: SimulatedNode) -> S3Settings | None:
    """The S3 settings in the server's configuration."""
    config = node.config
    if not config.get("etcd-s3"):
        return None
    return S3Settings(
        str(config.get("etcd-s3-endpoint") or ""),
        str(config.get("etcd-s3-bucket") or ""),
        str(config.get("etcd-s3-folder") or ""),
        str(config.get("etcd-s3-region") or ""),
    )


def _of(
    node: SimulatedNode,
    storage: str,
    snapshot: Snapshot,
    location: str,
    where: str,
    settings: S3Settings | None = None,
) -> Object:
    extra: Object = {"metadata": snapshot.metadata} if snapshot.metadata else {}
    if settings is not None:
        extra["s3"] = {
            "bucket": settings.bucket,
            "endpoint": settings.endpoint,
            "prefix": settings.folder,
            "region": settings.region,
        }
    status = {"creationTime": rfc3339(snapshot.created), "readyToUse": True, "size": str(snapshot.size)}
    return _object(node.runtime, storage, snapshot.name, where, location, snapshot.node, extra, status)


def _object(
    program: str, storage: str, name: str, where: str, location: str, node: str, extra: Object, status: Object
) -> Object:
    digest = hashlib.sha256(f"{node}{location}".encode()).hexdigest()[:6]
    fit = name.replace("/", "-").lower()
    return {
        "apiVersion": "k3s.cattle.io/v1",
        "kind": "ETCDSnapshotFile",
        "metadata": {
            "name": f"{storage}-{fit}-{digest}",
            "labels": {f"etcd.{program}.cattle.io/snapshot-storage-node": where},
        },
        "spec": {"location": location, "nodeName": node, "snapshotName": name, **extra},
        "status": status,
    }
