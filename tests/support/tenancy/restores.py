"""Records of snapshots, restores and other operations."""

from __future__ import annotations

from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.engine.meta.kinds import Object
from tests.support.tenancy.case import OWNER, Case

_RECORDED: Object = {"specHistory": ["1"], "etcdSnapshotRestore": {"generation": 1, "name": "a"}}


def _plane(id_: str, name: str, patch: Object | None = None, subresource: str = "", **annotations: str) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": annotations}
    fields = {"spec": {"clusterName": "", "managementClusterName": ""}}  # no references: they need more rights
    return Case(id_, CONTROL_PLANE, meta, fields, patch, subresource, status=_RECORDED if patch else None)


def _snapshot(id_: str, name: str, patch: Object | None = None, **annotations: str) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": annotations}
    return Case(id_, ETCD_SNAPSHOT, meta, {"spec": {"clusterName": "other"}, "snapshotFile": {"name": "a"}}, patch)


def _annotated(name: str, value: str | None) -> Object:
    return {"metadata": {"annotations": {name: value}}}


RESTORED = (
    _plane("a control plane is created with a spec of its cluster", "restored", **{names.CLUSTER_SPEC: "x"}),
    _plane("the spec of a cluster is replaced", "restored-2", _annotated(names.CLUSTER_SPEC, "x")),
    _plane(
        "the spec of a cluster is removed",
        "restored-3",
        _annotated(names.CLUSTER_SPEC, None),
        **{names.CLUSTER_SPEC: "x"},
    ),
    _plane("the spec before the last version is replaced", "restored-4", _annotated(names.PREVIOUS_SPEC, "x")),
    _plane("a digest is recorded", "restored-5", {"status": {"specHistory": ["1", "2"]}}, "status"),
    _plane("the digests are deleted", "restored-6", {"status": {"specHistory": None}}, "status"),
    _plane(
        "a generated control plane requests a restore",
        "restored-11",
        {"spec": {"etcdSnapshotRestore": {"generation": 1, "name": "a"}}},
        **{names.CLUSTER_SPEC: "x"},
    ),
    _plane(
        "an operation of a generated control plane is aborted",
        "restored-12",
        _annotated(names.ABORT_OPERATION, "x"),
        **{names.CLUSTER_SPEC: "x"},
    ),
    _plane("an object is approved", "restored-7", {"status": {"approvedObjects": ["1"]}}, "status"),
    _plane("an operation is in progress", "restored-8", {"status": {"operation": {"id": "a"}}}, "status"),
    _plane("an operation was not carried out", "restored-9", {"status": {"etcdSnapshotRestore": None}}, "status"),
    _plane("an upgrade has a snapshot", "restored-10", {"status": {"rollback": {"snapshot": "a"}}}, "status"),
    _snapshot("a snapshot is created", "restored"),
    _snapshot("a snapshot is of another cluster", "restored-2", {"spec": {"clusterName": "another"}}),
    _snapshot("a snapshot is another file", "restored-3", {"snapshotFile": {"name": "b"}}),
    _snapshot("a snapshot has another owner", "restored-5", {"metadata": {"ownerReferences": [OWNER]}}),
    _snapshot("a snapshot has another hash", "restored-4", _annotated(names.SNAPSHOT_SHA256, "x")),
    _snapshot("a snapshot has other CAs", "restored-6", _annotated(names.SNAPSHOT_AUTHORITIES, "x")),
)
"""Writes that decide which spec an administrator restores, or which file the manager deletes or restores."""
LISTED = (
    _plane("an annotation of a control plane", "listed", _annotated("a", "b")),
    _plane("a control plane", "listed-2"),
    _plane("a control plane that is not generated", "listed-4", {"spec": {"unmanagedConfig": True}}),
    _plane("the status of a control plane", "listed-3", {"status": {"ready": True}}, "status"),
    _snapshot("a label of a snapshot", "listed", {"metadata": {"labels": {"a": "b"}}}),
)
