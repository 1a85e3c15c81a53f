"""Workspaces, owners, management Clusters and the observe-only mark of clusters."""

from __future__ import annotations

from herder.api.capi.kinds import CLUSTER
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.observe_only import OBSERVE_ONLY
from herder.engine.meta.kinds import Object
from tests.support.tenancy.case import OWNER, Case, managed, provisioned

MOVED = tuple(
    managed(
        f"to {place or 'none'}",
        f"c-moved-{place}x",
        {"spec": {"fleetWorkspaceName": place}},
        fleetWorkspaceName="fleet-local",
    )
    for place in ("", "fleet-default")
)
"""A management Cluster outside its workspace no longer belongs to its provisioning Cluster, and outlives it."""


OWNED = (
    managed("a management Cluster is given an owner", "c-owned", {"metadata": {"ownerReferences": [OWNER]}}),
    Case(
        "a provisioning Cluster is given an owner",
        PROVISIONING_CLUSTER,
        {"name": "owned", "namespace": "fleet-default"},
        {"spec": {}},
        {"metadata": {"ownerReferences": [OWNER]}},
    ),
    Case(
        "a provisioning Cluster is created with an owner",
        PROVISIONING_CLUSTER,
        {"name": "owned-2", "namespace": "fleet-default", "ownerReferences": [OWNER]},
        {"spec": {}},
    ),
)
"""Owners of clusters. The garbage collector deletes a cluster with its owner, whoever deletes that."""


def _core(id_: str, name: str, patch: Object | None = None, **annotations: str) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": annotations}
    return Case(id_, CLUSTER, meta, {"spec": {"paused": False}}, patch)


_MARK, _NO_MARK = ({"metadata": {"annotations": {OBSERVE_ONLY: value}}} for value in ("", None))
WITHHELD = (
    managed("a management Cluster becomes observe-only", "c-observed", _MARK),
    Case(
        "a management Cluster is created observe-only",
        MANAGEMENT_CLUSTER,
        {"name": "c-observed-2", "annotations": {OBSERVE_ONLY: "x"}},
        {"spec": {}},
    ),
    Case(
        "a management Cluster is resumed",
        MANAGEMENT_CLUSTER,
        {"name": "c-observed-3", "annotations": {OBSERVE_ONLY: "x"}},
        {"spec": {}},
        _NO_MARK,
    ),
    provisioned("a provisioning Cluster is created observe-only", "observed", **{OBSERVE_ONLY: "x"}),
    Case(
        "a provisioning Cluster becomes observe-only",
        PROVISIONING_CLUSTER,
        {"name": "observed-2", "namespace": "fleet-default"},
        {"spec": {}},
        _MARK,
    ),
    _core("a Cluster API Cluster is created observe-only", "observed", **{OBSERVE_ONLY: "x"}),
    _core("a Cluster API Cluster becomes observe-only", "observed-2", _MARK),
    _core("a Cluster API Cluster is resumed", "observed-3", _NO_MARK, **{OBSERVE_ONLY: "x"}),
)
"""Clusters that the manager only observes. It would not even end rights in them."""


def _identified(id_: str, name: str, patch: Object) -> Case:
    meta = {"name": name, "namespace": "fleet-default"}
    status = {"clusterName": "c-m-identified", "ready": False}
    return Case(id_, PROVISIONING_CLUSTER, meta, {"spec": {}}, patch, "status", status=status)


IDENTIFIED = (
    _identified("another management Cluster", "identified", {"status": {"clusterName": "c-m-another"}}),
    _identified("no management Cluster", "identified-2", {"status": {"clusterName": None}}),
)
"""Administrators resume, and log in to, the management Cluster that a provisioning Cluster names."""
REPORTED = _identified("another field of the status", "identified-3", {"status": {"ready": True}})
