"""What operations trust, and users may not write: the status of control planes, and the list of snapshots.

A restore writes the spec of a snapshot with the rights of its author, who may be an administrator. So only admission
may have accepted that spec, and the objects that it references. The run of an operation is stored in the status too:
guards and the planner follow it, and would restore a snapshot that nobody has requested. Snapshots name files that the
manager deletes and restores in their cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.names import annotations_of
from herder.api.rke.names import (
    CLUSTER_SPEC,
    COPIED_TO_CONTROL_PLANE,
    PREVIOUS_SPEC,
    SNAPSHOT_AUTHORITIES,
    SNAPSHOT_NAME,
    SNAPSHOT_SHA256,
)
from herder.engine.meta.kinds import Object

SPEC_COPIES = (CLUSTER_SPEC, PREVIOUS_SPEC)
"""Annotations of RKEControlPlanes. The manager records the digest of the first, and snapshots contain them."""
RECORDS = (
    "specHistory",
    "approvedObjects",
    "operation",
    "operationHistory",
    "rollback",
    "unjoinedServers",
    "encryptionKeys",
    "snapshotSchedule",
    "appliedSpec",
    "appliedDigest",
    "configGeneration",
    "rotateCertificates",
    "certificateRotationGeneration",
    "rotateEncryptionKeys",
    "rotateEncryptionKeysPhase",
    "rotateEncryptionKeysLeader",
    "redeploySystemAgentGeneration",
    "etcdSnapshotCreate",
    "etcdSnapshotCreatePhase",
    "etcdSnapshotRestore",
    "etcdSnapshotRestorePhase",
)
"""Fields of the status of RKEControlPlanes. Requests in it are those that were carried out: without it, they run again.
Others only report, such as conditions."""
BAD_COPY = (
    f"annotations {' and '.join(SPEC_COPIES)}: the manager copies them from the provisioning Cluster, and a restore "
    "trusts them; leave them as they are, and change the Cluster"
)
BAD_RECORD = (
    "status: the manager records the specs and operations of the cluster, which restores trust; change nothing but "
    "conditions and readiness, and request operations in the provisioning Cluster"
)

BAD_SPEC = (
    "spec and annotations of operations: the manager generates them from the provisioning Cluster; change that Cluster"
)

SNAPSHOT_FIELDS = ("spec", "snapshotFile")
SNAPSHOT_MARKS = (SNAPSHOT_SHA256, SNAPSHOT_AUTHORITIES, SNAPSHOT_NAME)
BAD_SNAPSHOT = (
    "the manager lists the snapshots that servers report, and deletes and restores their files; delete the object to "
    "delete its file, and take another snapshot with: herder snapshot create"
)


def control_plane_problems(old: Object | None, new: Object) -> Iterator[str]:
    if _marks(new, SPEC_COPIES) != _marks(old, SPEC_COPIES):
        yield BAD_COPY
    if _marks(old, SPEC_COPIES[:1]) != [None] and _generated(new) != _generated(old):
        yield BAD_SPEC  # Users can neither write nor remove this annotation, which all generated ones have.
    before, after = ((each or {}).get("status") or {} for each in (old, new))
    if any(after.get(name) != before.get(name) for name in RECORDS):
        yield BAD_RECORD


def snapshot_problems(old: Object | None, new: Object) -> Iterator[str]:
    """Users may delete snapshots, and change labels and finalizers. An owner would be the machine that has the file."""
    is_changed = old is None or any(new.get(field) != old.get(field) for field in SNAPSHOT_FIELDS)
    if is_changed or _owners(new) - _owners(old) or _marks(new, SNAPSHOT_MARKS) != _marks(old, SNAPSHOT_MARKS):
        yield BAD_SNAPSHOT


def _generated(obj: Object | None) -> tuple[object, ...]:
    return (obj or {}).get("spec"), _marks(obj, COPIED_TO_CONTROL_PLANE)


def _marks(obj: Object | None, names: tuple[str, ...]) -> list[str | None]:
    found = annotations_of(obj or {"metadata": {}})
    return [found.get(name) for name in names]


def _owners(obj: Object | None) -> set[str]:
    return {str(each.get("uid")) for each in (obj or {"metadata": {}})["metadata"].get("ownerReferences") or ()}
