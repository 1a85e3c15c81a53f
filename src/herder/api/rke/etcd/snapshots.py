"""ETCDSnapshot objects: cluster and machine of a snapshot, and the finalizer that keeps it until its file is gone."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.writes import object_patch
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch

FINALIZER = "etcdsnapshot.herder.io/file"
SNAPSHOTS_OF, SNAPSHOTS_ON = "snapshots-of", "snapshots-on"
S3 = "s3"
"""Name of the node of snapshots in S3."""


def snapshots_of(snapshot: Object) -> Iterator[str]:
    """Indexer: the cluster that a snapshot is of."""
    name = (snapshot.get("spec") or {}).get("clusterName")
    if name:
        yield f"{snapshot['metadata']['namespace']}/{name}"


def snapshots_on(snapshot: Object) -> Iterator[str]:
    """Indexer: the UID of the Machine that has the file."""
    if uid := machine_uid(snapshot):
        yield uid


def machines_of(snapshot: Object) -> Iterator[str]:
    """The Machine that has the file, by namespace and name."""
    for each in snapshot["metadata"].get("ownerReferences") or ():
        if each["kind"] == MACHINE.kind:
            yield f"{snapshot['metadata']['namespace']}/{each['name']}"


def control_plane_of(snapshot: Object) -> Iterator[Key]:
    """Handler: the RKEControlPlane of the cluster that a snapshot is of."""
    name = (snapshot.get("spec") or {}).get("clusterName")
    if name:
        yield Key(snapshot["metadata"]["namespace"], name)


def is_in_s3(snapshot: Object) -> bool:
    return (snapshot.get("snapshotFile") or {}).get("nodeName") == S3


def machine_uid(snapshot: Object) -> str:
    """UID of the Machine that has the file; empty for snapshots in S3."""
    owners = snapshot["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each["kind"] == MACHINE.kind), "")


def is_of_former_cluster(snapshot: Object, cluster: Object) -> bool:
    """Whether it is in S3 for an earlier Cluster of the same name, which may have been another user's."""
    owners = snapshot["metadata"].get("ownerReferences") or ()
    clusters = [each["uid"] for each in owners if each["kind"] == CLUSTER.kind]
    return bool(clusters) and cluster["metadata"]["uid"] not in clusters


def has_finalizer(snapshot: Object) -> bool:
    return FINALIZER in (snapshot["metadata"].get("finalizers") or ())


def without_finalizer(snapshot: Object, reason: str) -> tuple[Patch, ...]:
    others = [each for each in snapshot["metadata"].get("finalizers") or () if each != FINALIZER]
    wanted = {**snapshot, "metadata": {**snapshot["metadata"], "finalizers": others}}
    return object_patch(ETCD_SNAPSHOT, snapshot, wanted, reason)
