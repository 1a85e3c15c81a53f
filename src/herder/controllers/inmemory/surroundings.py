"""Where an in-memory object stands: the Machine and the Cluster that it belongs to, once the core has said so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from herder.api.capi.conditions import find
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME, CONTROL_PLANE, cluster_key, labels_of
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.handlers import Indexed, KeysOf
from herder.engine.runtime.view import View

BY_CLUSTER = "cluster"


def cluster_label(obj: Object) -> Iterable[str]:
    """Indexer and grouping: the workload cluster that an object's label names."""
    name = labels_of(obj).get(CLUSTER_NAME)
    return (cluster_key(obj["metadata"]["namespace"], name),) if name else ()


def group(obj: Object) -> str:
    return next(iter(cluster_label(obj)), "")


def all_of_the_cluster() -> Indexed:
    """Of a Cluster: the objects that carry its name."""
    return Indexed(
        BY_CLUSTER, lambda cluster: (cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"]),)
    )


def all_that_need(secret_of: Callable[[str], str]) -> Indexed:
    """Of a Secret that has a cluster's well-known name: the objects of that cluster. Other Secrets concern nobody."""

    def values(secret: Object) -> Iterable[str]:
        cluster = labels_of(secret).get(CLUSTER_NAME, "")
        return cluster_label(secret) if secret["metadata"]["name"] == secret_of(cluster) else ()

    return Indexed(BY_CLUSTER, values)


def referred(kind: Kind, *path: str) -> KeysOf:
    """The object of that kind to which a reference at this path leads."""

    def keys(obj: Object) -> Iterable[Key]:
        found: Object = obj
        for part in path:
            found = found.get(part) or {}
        if (found.get("apiGroup"), found.get("kind")) == kind.group_kind:
            yield Key(obj["metadata"]["namespace"], found["name"])

    return keys


def owner_cluster(view: View, obj: Object) -> Object | None:
    """The Cluster that owns the object, which the core says with an owner reference and a label."""
    return _owner(view, obj, CLUSTER) if labels_of(obj).get(CLUSTER_NAME) else None


def owner_machine(view: View, obj: Object) -> Object | None:
    return _owner(view, obj, MACHINE) if labels_of(obj).get(CLUSTER_NAME) else None


def cluster_of(view: View, machine: Object) -> Object | None:
    return view.get(CLUSTER, machine["spec"]["clusterName"])


def _owner(view: View, obj: Object, kind: Kind) -> Object | None:
    for reference in obj["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == kind.group_kind:
            found = view.get(kind, reference["name"])
            if found is not None and found["metadata"]["uid"] == reference["uid"]:
                return found
    return None


def is_control_plane(machine: Object) -> bool:
    return CONTROL_PLANE in labels_of(machine)


def infrastructure_provisioned(cluster: Object) -> bool:
    return bool(_initialization(cluster).get("infrastructureProvisioned"))


def control_plane_initialized(cluster: Object) -> bool:
    return bool(_initialization(cluster).get("controlPlaneInitialized"))


def _initialization(obj: Object) -> Object:
    return (obj.get("status") or {}).get("initialization") or {}


def created_at(obj: Object) -> datetime:
    return datetime.fromisoformat(obj["metadata"]["creationTimestamp"])


def turned_at(obj: Object, condition: str) -> datetime:
    """When a condition last changed; the object's creation where it has none."""
    found = find(obj, condition)
    return datetime.fromisoformat(found["lastTransitionTime"]) if found else created_at(obj)
