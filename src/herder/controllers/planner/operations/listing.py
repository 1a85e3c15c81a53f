"""ETCDSnapshot objects from what servers report.

A server reports all snapshots that it knows after it has saved one: those on its disk, and those in S3. K3s and RKE2
report the list of their own command. Reports come from nodes, so their size and content are limited, and a node lists
local files only for its own Machine.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME
from herder.api.machines.names import safe_concat
from herder.api.numbers import INT64_MAX, parse_int64
from herder.api.rke import names
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.operations import SAVE_SNAPSHOT
from herder.api.times import parse_time
from herder.api.writes import delete, owner_reference
from herder.controllers.planner.operations.interface import OperationScope
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable
from herder.engine.runtime.decision import Create, Write

SNAPSHOTS_OF = "snapshots-of"
MAX_SNAPSHOTS = 200
"""Most snapshots in one report; further ones are ignored."""
_MAX_TEXT = 1024
_MAX_METADATA = 512 << 10
"""Longer metadata is left out: it contains a copy of the cluster's spec, which an annotation has to hold, too."""
_NOT_IN_NAMES, _DOTS = re.compile(r"[^a-z0-9.-]"), re.compile(r"[.-]*\.[.-]*")
"""What names of objects cannot contain: other characters, and dots next to dots or dashes."""
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
"""Names of files: they become parts of paths on servers."""
_S3 = "s3"


class Reported(msgspec.Struct, frozen=True, rename="camel"):
    """A snapshot in the report of a server."""

    name: str
    location: str = ""
    created_at: str = ""
    size: int = 0
    status: str = ""
    message: str = ""
    metadata: Mapping[str, str] = {}

    @property
    def in_s3(self) -> bool:
        return self.location.startswith("s3://")


class _FileSpec(msgspec.Struct, frozen=True, rename="camel"):
    snapshot_name: str = ""
    location: str = ""
    metadata: Mapping[str, str] | None = None


class _FileStatus(msgspec.Struct, frozen=True, rename="camel"):
    creation_time: str = ""
    size: str = "0"
    ready_to_use: bool = True
    error: Mapping[str, str] | None = None


class _File(msgspec.Struct, frozen=True):
    """An item of the list that K3s and RKE2 print (ETCDSnapshotFile of k3s.cattle.io/v1)."""

    spec: _FileSpec = msgspec.field(default_factory=_FileSpec)
    status: _FileStatus = msgspec.field(default_factory=_FileStatus)

    def as_reported(self) -> Reported:
        return Reported(
            self.spec.snapshot_name,
            self.spec.location,
            self.status.creation_time,
            parse_int64(self.status.size, 0),
            "" if self.status.ready_to_use else "failed",
            (self.status.error or {}).get("message", ""),
            self.spec.metadata or {},
        )


class _Report(msgspec.Struct, frozen=True):
    """The report of either program."""

    snapshots: tuple[Reported, ...] = ()
    items: tuple[_File, ...] = ()


def reported_by(entry: PlanEntry) -> Sequence[Reported] | None:
    """The snapshots that a server reports; None if it reports none that can be read."""
    output = entry.plan.outputs.get(SAVE_SNAPSHOT, b"")
    try:
        report = msgspec.json.decode(output, type=_Report)
    except (ValueError, RecursionError):
        return None
    found = [*report.snapshots[:MAX_SNAPSHOTS], *(each.as_reported() for each in report.items[:MAX_SNAPSHOTS])]
    return [each for each in found if FILE_NAME.fullmatch(each.name)]


def record_snapshots(scope: OperationScope) -> Sequence[Write]:
    """Create objects of new snapshots, and delete those of files that are gone."""
    reports = {entry.uid: (entry, found) for entry in scope.members() if (found := reported_by(entry)) is not None}
    if not reports:
        return ()
    wanted: dict[str, Object] = {}
    for entry, found in reports.values():
        wanted |= {obj["metadata"]["name"]: obj for obj in _objects(scope, entry, found)}
    known = {each["metadata"]["name"]: each for each in _known(scope, reports.keys())}
    view = scope.planning.view
    new = [name for name in sorted(wanted.keys() - known.keys()) if view.get(ETCD_SNAPSHOT, name) is None]
    created = [Create(ETCD_SNAPSHOT, wanted[name], "a snapshot") for name in new]
    gone = [delete(ETCD_SNAPSHOT, known[name], "its file is gone") for name in sorted(known.keys() - wanted.keys())]
    return [*created, *gone]


def _known(scope: OperationScope, machines: Collection[str]) -> Iterator[Object]:
    """Snapshots of the cluster that are in S3 or on one of these machines, which are given by their UIDs."""
    view = scope.planning.view
    for each in view.select(ETCD_SNAPSHOT, index=(SNAPSHOTS_OF, f"{view.namespace}/{view.name}")):
        owners = [owner["uid"] for owner in each["metadata"].get("ownerReferences") or ()]
        is_in_s3 = (each.get("snapshotFile") or {}).get("nodeName") == _S3
        if is_in_s3 or any(uid in machines for uid in owners):
            yield each


def snapshots_of(snapshot: Object) -> Iterator[str]:
    """Indexer: the cluster that a snapshot is of."""
    name = (snapshot.get("spec") or {}).get("clusterName")
    if name:
        yield f"{snapshot['metadata']['namespace']}/{name}"


def _objects(scope: OperationScope, entry: PlanEntry, found: Sequence[Reported]) -> Iterator[Object]:
    cluster, namespace = scope.planning.view.name, scope.planning.view.namespace
    for each in found:
        place, node = (_S3, _S3) if each.in_s3 else ("local", _node_name(entry))
        owner = (
            owner_reference(CLUSTER, scope.planning.cluster, controller=False)
            if each.in_s3
            else owner_reference(MACHINE, entry.machine, controller=False)
        )
        yield {
            "apiVersion": ETCD_SNAPSHOT.api_version,
            "kind": ETCD_SNAPSHOT.kind,
            "metadata": {
                "name": _object_name(scope, each, place, node),
                "namespace": namespace,
                "labels": {CLUSTER_NAME: cluster, names.CLUSTER_NAME: cluster},
                "annotations": {
                    names.SNAPSHOT_FILE: each.name,
                    names.SNAPSHOT_STORAGE: place,
                },
                "ownerReferences": [owner],
            },
            "spec": {"clusterName": cluster},
            "snapshotFile": _file(each, node),
        }


def _object_name(scope: OperationScope, found: Reported, place: str, node: str) -> str:
    """A valid name of its own. Names of clusters can begin alike, and nodes report any files and locations: without the
    UID, a cluster could take names that the snapshots of another one are going to have."""
    cluster = scope.planning.cluster["metadata"]
    identity = (cluster["uid"], node, found.location, found.name)
    digest = hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:6]
    file = _DOTS.sub(".", _NOT_IN_NAMES.sub("-", found.name.lower())).rstrip("-.")
    return safe_concat(scope.planning.view.name, place, file, digest)


def _file(found: Reported, node: str) -> Object:
    created_at = parse_time(found.created_at)
    file = {
        "name": found.name,
        "nodeName": node,
        "location": printable(found.location, _MAX_TEXT),
        "createdAt": timestamp(created_at) if created_at else "",
        "size": min(max(found.size, 0), INT64_MAX),
        "status": "failed" if found.status == "failed" else "successful",
        "message": printable(found.message, _MAX_TEXT),
        "metadata": _metadata(found),
    }
    return {name: value for name, value in file.items() if value not in ("", None)}


def _metadata(found: Reported) -> str:
    metadata = {str(key): str(value) for key, value in found.metadata.items()}
    encoded = base64.b64encode(msgspec.json.encode(metadata, order="sorted")).decode() if metadata else ""
    return encoded if len(encoded) <= _MAX_METADATA else ""


def _node_name(entry: PlanEntry) -> str:
    return str(((entry.machine.get("status") or {}).get("nodeRef") or {}).get("name") or entry.name)
