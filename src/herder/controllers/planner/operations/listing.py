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
_MAX_QUOTES, _MAX_OBJECTS = 40_000, 8000  # in a report: decoding takes as long as it has strings and objects
_MAX_METADATA = 1 << 20  # characters; an API server stores no object above 1.5 MiB
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
"""Names of files: they become parts of paths on servers."""
_OTHER_CHARACTERS = re.compile(r"[^a-z0-9]+")
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
    if output.count(b'"') > _MAX_QUOTES or output.count(b"{") > _MAX_OBJECTS:
        return None
    try:
        report = msgspec.json.decode(output, type=_Report)
    except (ValueError, RecursionError):
        return None
    found = [*report.snapshots[:MAX_SNAPSHOTS], *(each.as_reported() for each in report.items[:MAX_SNAPSHOTS])]
    return [each for each in found if FILE_NAME.fullmatch(each.name)]


def record_snapshots(scope: OperationScope) -> Sequence[Write]:
    """Create objects of new snapshots, and delete those of files that are gone.

    An object of another cluster may have the name of a new one. It stays, and the snapshot is not listed: a write that
    the API refuses would be repeated for ever.
    """
    reports = {entry.uid: (entry, found) for entry in scope.members() if (found := reported_by(entry)) is not None}
    if not reports:
        return ()
    wanted: dict[str, Object] = {}
    for entry, found in reports.values():
        wanted |= {obj["metadata"]["name"]: obj for obj in _objects(scope, entry, found)}
    known = {each["metadata"]["name"]: each for each in _known(scope, reports.keys())}
    new = [
        name for name in sorted(wanted.keys() - known.keys()) if scope.planning.view.get(ETCD_SNAPSHOT, name) is None
    ]
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
                "name": _object_name(scope, place, node, each),
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


def _object_name(scope: OperationScope, place: str, node: str, found: Reported) -> str:
    """A name of letters, digits and hyphens, because names of files may have other characters.

    The UID keeps servers of other clusters, whose names may begin like this one, from choosing the same name.
    """
    parts = (scope.planning.cluster["metadata"]["uid"], node, found.location, found.name)
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:6]
    readable = _OTHER_CHARACTERS.sub("-", found.name.lower())
    return safe_concat(scope.planning.view.name, f"{place}-{readable}-{digest}")


def _file(found: Reported, node: str) -> Object:
    created = parse_time(found.created_at)
    file = {
        "name": found.name,
        "nodeName": node,
        "location": printable(found.location, _MAX_TEXT),
        "createdAt": timestamp(created) if created else "",
        "size": min(max(found.size, 0), INT64_MAX),
        "status": "failed" if found.status == "failed" else "successful",
        "message": printable(found.message, _MAX_TEXT),
        "metadata": _metadata(found),
    }
    return {name: value for name, value in file.items() if value not in ("", None)}


def _metadata(found: Reported) -> str:
    """Metadata as Rancher encodes it; empty if it is too large to be stored."""
    encoded = base64.b64encode(msgspec.json.encode(found.metadata, order="sorted")).decode() if found.metadata else ""
    return encoded if len(encoded) <= _MAX_METADATA else ""


def _node_name(entry: PlanEntry) -> str:
    return str(((entry.machine.get("status") or {}).get("nodeRef") or {}).get("name") or entry.name)
