"""Owners of in-memory objects (Machine and Cluster), and watch mappings by cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from herder.api.capi.conditions import find
from herder.api.capi.contract import refers_to
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME, CONTROL_PLANE, cluster_key, labels_of
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.handlers import Indexed, MapFunc
from herder.engine.runtime.view import View

BY_CLUSTER = "cluster"


def cluster_label(obj: Object) -> Iterable[str]:
    """Indexer: the workload cluster in the object's label."""
    name = labels_of(obj).get(CLUSTER_NAME)
    return (cluster_key(obj["metadata"]["namespace"], name),) if name else ()


def group(obj: Object) -> str:
    return next(iter(cluster_label(obj)), "")


def objects_of_cluster() -> Indexed:
    """Map a Cluster to the objects with its label."""
    return Indexed(
        BY_CLUSTER, lambda cluster: (cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"]),)
    )


def objects_needing_secret(secret_of: Callable[[str], str]) -> Indexed:
    """Map a well-known Secret of a cluster to the objects of that cluster; ignore other Secrets."""

    def values(secret: Object) -> Iterable[str]:
        cluster = labels_of(secret).get(CLUSTER_NAME, "")
        return cluster_label(secret) if secret["metadata"]["name"] == secret_of(cluster) else ()

    return Indexed(BY_CLUSTER, values)


def referenced(kind: Kind, *path: str) -> MapFunc:
    """Map an object to the object of that kind which a reference at this path names."""

    def keys(obj: Object) -> Iterable[Key]:
        found = _at(obj, path)
        if (found.get("apiGroup"), found.get("kind")) == kind.group_kind:
            yield Key(obj["metadata"]["namespace"], found["name"])

    return keys


def owner_cluster(view: View, obj: Object, kind: Kind, *path: str) -> Object | None:
    """The owning Cluster, once owner reference and label are set, if its reference at this path names the object."""
    return _owner(view, obj, CLUSTER, kind, path) if labels_of(obj).get(CLUSTER_NAME) else None


def owner_machine(view: View, obj: Object, kind: Kind, *path: str) -> Object | None:
    """The same for the owning Machine."""
    return _owner(view, obj, MACHINE, kind, path) if labels_of(obj).get(CLUSTER_NAME) else None


def cluster_of(view: View, machine: Object) -> Object | None:
    return view.get(CLUSTER, machine["spec"]["clusterName"])


def _owner(view: View, obj: Object, owner: Kind, kind: Kind, path: Sequence[str]) -> Object | None:
    for reference in obj["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == owner.group_kind:
            found = view.get(owner, reference["name"])
            if found is None or found["metadata"]["uid"] != reference["uid"]:
                continue
            if refers_to(_at(found, path), kind, obj["metadata"]["name"]):
                return found
    return None


def _at(obj: Object, path: Sequence[str]) -> Object:
    for part in path:
        obj = obj.get(part) or {}
    return obj


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


def transitioned_at(obj: Object, condition: str) -> datetime:
    """When a condition last changed; the creation time if it does not exist."""
    found = find(obj, condition)
    return datetime.fromisoformat(found["lastTransitionTime"]) if found else created_at(obj)
