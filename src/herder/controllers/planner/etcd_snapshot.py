"""ETCDSnapshot objects between operations.

- K3s and RKE2 list their snapshots as ETCDSnapshotFile objects, also those that they take by schedule. Each gets an
  ETCDSnapshot, which is deleted with it.
- A deleted ETCDSnapshot is kept until its file is deleted. If the machine or the cluster no longer exists, nobody can
  delete the file, and the object is released.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import msgspec

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting
from herder.api.capi.typed import mapping, string_map, text
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.numbers import parse_int64
from herder.api.rke import names
from herder.api.rke.distributions import K3S, RKE2, version_of
from herder.api.rke.etcd.snapshots import (
    SNAPSHOTS_OF,
    control_plane_of,
    has_finalizer,
    is_in_s3,
    is_of_former_cluster,
    machine_uid,
    snapshots_of,
    without_finalizer,
)
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.api.rke.operations import active_run
from herder.api.writes import ref
from herder.controllers.planner.operations.snapshots.listing import (
    FILE_NAME,
    NewSnapshot,
    Reported,
    create_snapshots,
    delete_snapshot,
    node_of,
    object_name,
)
from herder.controllers.planner.rollout.machines import BY_CLUSTER, by_cluster
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, Patch, Projection, Write
from herder.engine.runtime.handlers import Indexed, Watches, changed, named_by_label
from herder.engine.runtime.view import Observed, View

SNAPSHOT_FILE = Kind("k3s.cattle.io", "v1", "ETCDSnapshotFile", "etcdsnapshotfiles", namespaced=False)
MAX_SNAPSHOTS = 1000
"""Most snapshots of a cluster; further ones are ignored. Anyone with rights in the cluster can create such objects."""
MAX_CREATED = 20
"""Most objects that one pass creates: their metadata is decoded and packed."""
CONTINUE = timedelta(seconds=1)
MAX_METADATA = 64 << 10
MAX_METADATA_KEYS = 100
BY_MANAGEMENT = "snapshots-for-management"
BY_FILE = "file"


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """What the name of the object of an ETCDSnapshotFile depends on."""

    resource: str
    name: str
    node: str
    location: str


def _facts(file: Object) -> Object:
    """The part of an ETCDSnapshotFile that is used. Larger metadata than the manager writes is left out."""
    spec, status = mapping(file.get("spec")), mapping(file.get("status"))
    return {
        "metadata": {"name": text(mapping(file.get("metadata")).get("name"))},
        "snapshotName": text(spec.get("snapshotName")),
        "nodeName": text(spec.get("nodeName")),
        "location": text(spec.get("location")),
        "extra": _small(mapping(spec.get("metadata"))),
        "created": text(status.get("creationTime")),
        "size": text(status.get("size")),
        "failed": status.get("readyToUse") is False,
        "message": text(mapping(status.get("error")).get("message")),
    }


def _small(metadata: Object) -> Object:
    found = string_map(metadata) if len(metadata) <= MAX_METADATA_KEYS else {}
    return found if sum(len(key) + len(value) for key, value in found.items()) <= MAX_METADATA else {}


def _listed(file: Object) -> Iterator[str]:
    """Indexer. Its values are all that a pass reads of files whose objects exist."""
    if FILE_NAME.fullmatch(file["snapshotName"]):
        listed = Listed(file["metadata"]["name"], file["snapshotName"], file["nodeName"], file["location"])
        yield msgspec.json.encode(listed).decode()


FILES = Projection("etcd-snapshot-file", project=_facts, indexes={BY_FILE: _listed})


def reconcile(view: View) -> Decision:
    control_plane, cluster = view.get(CONTROL_PLANE, view.name), view.get(CLUSTER, view.name)
    known = view.select(ETCD_SNAPSHOT, index=(SNAPSHOTS_OF, f"{view.namespace}/{view.name}"))
    if control_plane is None or cluster is None or is_deleting(cluster):
        return Decision(writes=tuple(_released(known, "the cluster is deleted")))
    machines = {each["metadata"]["uid"]: each for each in _machines(view)}
    orphans = [each for each in known if not is_in_s3(each) and machine_uid(each) not in machines]
    former = [each for each in known if is_of_former_cluster(each, cluster)]
    released = Decision(
        writes=(*_released(orphans, "its machine is deleted"), *_released(former, "its cluster is deleted"))
    )
    if active_run(control_plane) is not None:
        return released  # a restore replaces the list
    return released + _sync(view, control_plane, cluster, machines, known)


def _machines(view: View) -> list[Object]:
    return view.select(MACHINE, index=(BY_CLUSTER, cluster_key(view.namespace, view.name)))


def _released(snapshots: list[Object], reason: str) -> Iterator[Write]:
    for each in snapshots:
        if is_deleting(each) and has_finalizer(each):
            yield from without_finalizer(each, reason)


# --- list of K3s and RKE2 ---------------------------------------------------------------------------------------------


def _sync(
    view: View, control_plane: Object, cluster: Object, machines: Mapping[str, Object], known: list[Object]
) -> Decision:
    spec = control_plane["spec"]
    management = view.get(MANAGEMENT_CLUSTER, spec.get("managementClusterName") or "", "")
    version = version_of(spec.get("kubernetesVersion") or "")
    if version is None or version.facts not in (K3S, RKE2):
        return DONE
    if management is None or not clusters.is_connected(management):
        return DONE
    observe = Observe(management["metadata"]["name"], SNAPSHOT_FILE, projection=FILES, values_of=BY_FILE)
    seen = view.observed(observe)
    if not isinstance(seen, Observed):
        return Decision(observe=(observe,))
    wanted = _wanted(view, cluster, machines, seen.values)
    by_name = {each["metadata"]["name"]: each for each in known}
    missing = sorted(wanted.keys() - by_name)
    new = _new_snapshots(view, observe, {name: wanted[name] for name in missing[:MAX_CREATED]}, machines)
    writes: list[Write] = [*create_snapshots(view, control_plane, cluster, new)]
    for name, each in sorted(by_name.items()):
        if name in wanted:
            writes += _with_source(each, wanted[name].resource)
        elif annotations_of(each).get(names.SNAPSHOT_NAME):
            writes += delete_snapshot(each)
    wake_at = view.now + CONTINUE if len(missing) > MAX_CREATED else None
    return Decision(writes=tuple(writes), observe=(observe,), wake_at=wake_at)


def _wanted(view: View, cluster: Object, machines: Mapping[str, Object], values: Sequence[str]) -> dict[str, Listed]:
    """Files by the names of their objects. Files on machines of other managers are left out."""
    by_node = _by_node(machines)
    wanted = {}
    for value in sorted(values)[:MAX_SNAPSHOTS]:
        listed = msgspec.json.decode(value, type=Listed)
        found = Reported(listed.name, listed.location, node_name=listed.node)
        machine = None if found.in_s3 else by_node.get(listed.node)
        if found.in_s3 or machine is not None:
            wanted[object_name(view, cluster, machine, found)] = listed
    return wanted


def _by_node(machines: Mapping[str, Object]) -> dict[str, Object]:
    return {node_of(each): each for each in machines.values()}


def _new_snapshots(
    view: View, observe: Observe, wanted: Mapping[str, Listed], machines: Mapping[str, Object]
) -> Iterator[NewSnapshot]:
    by_node = _by_node(machines)
    for name, listed in wanted.items():
        value = msgspec.json.encode(listed).decode()
        seen = view.observed(replace(observe, focus=(BY_FILE, value), values_of=""))
        for each in seen.objects[:1] if isinstance(seen, Observed) else ():
            found = Reported(
                each["snapshotName"],
                each["location"],
                each["created"],
                parse_int64(each["size"], 0),
                "failed" if each["failed"] else "",
                each["message"],
                each["extra"],
                each["nodeName"],
                resource=each["metadata"]["name"],
            )
            yield NewSnapshot(name, None if found.in_s3 else by_node[listed.node], found)


def _with_source(snapshot: Object, name: str) -> list[Patch]:
    """Record of which ETCDSnapshotFile the object is: it is deleted with it."""
    if annotations_of(snapshot).get(names.SNAPSHOT_NAME) == name or is_deleting(snapshot):
        return []
    annotations = {"metadata": {"annotations": {names.SNAPSHOT_NAME: name}}}
    return [Patch(ref(ETCD_SNAPSHOT, snapshot), annotations, "its ETCDSnapshotFile")]


# --- watches ----------------------------------------------------------------------------------------------------------


def _management_name(control_plane: Object) -> Iterator[str]:
    """Indexer."""
    yield control_plane["spec"].get("managementClusterName") or ""


def _of_same_name(cluster: Object) -> Iterator[Key]:
    yield Key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def _connection_changed(change: Change) -> bool:
    connected = [each is not None and clusters.is_connected(each) for each in (change.old, change.new)]
    return connected[0] != connected[1]


CONTROLLER = Controller(
    name="etcd-snapshots",
    kind=CONTROL_PLANE,
    reconcile=reconcile,
    predicate=changed("spec.kubernetesVersion", "spec.managementClusterName", "status.operation"),
    watches=(
        Watches(ETCD_SNAPSHOT, control_plane_of, changed("metadata")),
        Watches(CLUSTER, _of_same_name, changed("metadata.deletionTimestamp")),
        Watches(MACHINE, named_by_label(CLUSTER_NAME), changed("status.nodeRef")),
        Watches(
            MANAGEMENT_CLUSTER, Indexed(BY_MANAGEMENT, lambda obj: (obj["metadata"]["name"],)), _connection_changed
        ),
    ),
    indexes={
        CONTROL_PLANE: {BY_MANAGEMENT: _management_name},
        MACHINE: {BY_CLUSTER: by_cluster},
        ETCD_SNAPSHOT: {SNAPSHOTS_OF: snapshots_of},
    },
    cluster_of=lambda plane: cluster_key(plane["metadata"]["namespace"], plane["metadata"]["name"]),
)
