"""ETCDSnapshot objects from what servers report.

A server reports all snapshots that it knows after it has saved one: those on its disk, and those in S3. K3s and RKE2
report the list of their own command. Reports come from nodes, so their size and content are limited, and a node lists
local files only for its own Machine.
"""

from __future__ import annotations

import base64
import hashlib
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

import msgspec

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME, is_deleting
from herder.api.machines.names import MAX_OBJECT_NAME, limited_concat, safe_concat
from herder.api.numbers import INT64_MAX, parse_int64
from herder.api.rke import names
from herder.api.rke.etcd.encryption import SNAPSHOT_METADATA, names_keys
from herder.api.rke.etcd.restore import modes_of
from herder.api.rke.etcd.snapshots import FINALIZER, S3, SNAPSHOTS_OF, is_in_s3, machine_uid, without_finalizer
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.node.plan_secret import decode_report
from herder.api.rke.operations import SAVE_SNAPSHOT
from herder.api.times import parse_time
from herder.api.writes import delete, owner_reference, status_patch
from herder.controllers.planner.distributions.snapshot_program import DEFAULT_RETENTION, SCHEDULED
from herder.controllers.planner.operations.interface import OperationScope
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.names import dns1123_subdomain
from herder.engine.meta.printable import printable
from herder.engine.runtime.decision import Create, Write
from herder.engine.runtime.view import View

MAX_SNAPSHOTS = 200
"""Most snapshots in one report; further ones are ignored."""
MAX_RECORDED = 2 * MAX_SNAPSHOTS
"""Most ETCDSnapshots of one server, and of S3; further files are ignored. Objects of missing files are kept, so reports
of other files each time would add objects without end."""
_MAX_QUOTES = 128 << 10
"""In a report: those of K3s have about 100 for each file. Larger reports are ignored."""
_MAX_TEXT = 1024
_MAX_METADATA = 256 << 10
"""Bytes of metadata; larger metadata is not recorded. The API server would reject the object."""
MAX_CLUSTER_METADATA = 8 << 20
"""Of all snapshots of a cluster. Metadata of further ones is not recorded."""
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
"""Names of files: they become parts of paths on servers."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Reported(msgspec.Struct, frozen=True, rename="camel"):
    """A snapshot in the report of a server."""

    name: str
    location: str = ""
    created_at: str = ""
    size: int = 0
    status: str = ""
    message: str = ""
    metadata: Mapping[str, str] = {}
    node_name: str = ""  # of the server that saved it
    sha256: str = ""
    authorities: str = ""  # SHA-256 of the CAs that it contains
    resource: str = ""  # name of the ETCDSnapshotFile in the cluster, if it is known

    @property
    def in_s3(self) -> bool:
        return self.location.startswith("s3://")


class _FileSpec(msgspec.Struct, frozen=True, rename="camel"):
    snapshot_name: str = ""
    node_name: str = ""
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

    def as_reported(self, report: _Report) -> Reported:
        """The report has hashes of files that the server has just saved, and their CAs. The file and its object in S3
        have the same content."""
        saved = report.hashes.get(self.spec.snapshot_name, "")
        return Reported(
            self.spec.snapshot_name,
            self.spec.location,
            self.status.creation_time,
            parse_int64(self.status.size, 0),
            "" if self.status.ready_to_use else "failed",
            (self.status.error or {}).get("message", ""),
            self.spec.metadata or {},
            self.spec.node_name,
            saved,
            report.authorities if saved else "",
        )


class _Files(msgspec.Struct, frozen=True):
    """The list that K3s and RKE2 print."""

    items: tuple[_File, ...] = ()


class _Report(msgspec.Struct, frozen=True):
    """The report of either program. Plans of earlier managers report only the list of K3s and RKE2."""

    snapshots: tuple[Reported, ...] = ()
    items: tuple[_File, ...] = ()
    hashes: Mapping[str, str] = {}
    authorities: str = ""
    files: _Files = msgspec.field(default=_Files(), name="list")


def reported_by(entry: PlanEntry) -> Sequence[Reported] | None:
    """The snapshots that a server reports; None if it reports none that can be read."""
    report = decode_report(entry.plan.outputs.get(SAVE_SNAPSHOT, b""), _Report, _MAX_QUOTES)
    if report is None:
        return None
    files = (report.items or report.files.items)[:MAX_SNAPSHOTS]
    found = [*report.snapshots[:MAX_SNAPSHOTS], *(each.as_reported(report) for each in files)]
    return [each for each in found[:MAX_SNAPSHOTS] if FILE_NAME.fullmatch(each.name)]


def record_snapshots(scope: OperationScope) -> Sequence[Write]:
    """Create objects of new snapshots, and delete those of files that were deleted.

    A server lists fewer files too if it has lost its disk, or no longer reads the bucket. Snapshots that may exist
    elsewhere need the keys that the manager owns, so their objects are kept, as missing.
    """
    reports = {entry.uid: (entry, found) for entry in scope.members() if (found := reported_by(entry)) is not None}
    if not reports:
        return ()
    planning = scope.planning
    known = {each["metadata"]["name"]: each for each in _known(scope, reports.keys())}
    in_s3 = {
        str(each["snapshotFile"].get("location")): each["metadata"]["name"] for each in known.values() if is_in_s3(each)
    }
    wanted: dict[str, NewSnapshot] = {}
    for entry, each in files_of(reports.values()):
        machine = None if each.in_s3 else entry.machine
        recorded = in_s3.get(each.location) if each.in_s3 else None
        name = recorded or object_name(planning.view, planning.cluster, machine, each)
        wanted[name] = NewSnapshot(name, machine, each)
    new: Iterable[NewSnapshot] = [wanted[name] for name in sorted(wanted.keys() - known.keys())]
    if scope.distribution.manages_keys:  # others keep no objects of files that are missing
        new = _within_limit(new, known.values())
    writes: list[Write] = [*create_snapshots(planning.view, planning.control_plane, planning.cluster, new)]
    listing = _Listing(scope, {uid: found for uid, (_, found) in reports.items()}, known.values())
    for name, snapshot in sorted(known.items()):
        if name in wanted:
            writes += _report_missing(snapshot, missing=False)
        elif not scope.distribution.manages_keys or listing.shows_deletion(snapshot):
            writes += delete_snapshot(snapshot)
        elif not is_deleting(snapshot):
            writes += _report_missing(snapshot, missing=True)
    return writes


def _within_limit(new: Iterable[NewSnapshot], known: Collection[Object]) -> Iterator[NewSnapshot]:
    count = Counter(S3 if is_in_s3(each) else machine_uid(each) for each in known)
    for each in new:
        place = each.machine["metadata"]["uid"] if each.machine else S3
        count[place] += 1
        if count[place] <= MAX_RECORDED:
            yield each


@dataclass(frozen=True)
class _Place:
    """What is listed of one directory or folder."""

    oldest_recorded: datetime | None  # of the files that were recorded before
    series: Mapping[str, Sequence[datetime]]  # their times in order


_EMPTY = _Place(None, {})


@dataclass(frozen=True)
class _Listing:
    """What servers list now, by the UIDs of their Machines, and the snapshots that were recorded before."""

    scope: OperationScope
    reports: Mapping[str, Sequence[Reported]]
    known: Collection[Object]

    def shows_deletion(self, snapshot: Object) -> bool:
        """Whether the file is missing because it was deleted.

        Either the same directory or folder still has a file that is as old, or the retention has kept newer ones.
        """
        file, place = _file_of(snapshot), _place_of(snapshot)
        if file.get("status") == "failed":
            return True
        taken, listed = parse_time(str(file.get("createdAt") or "")), self._places.get(place, _EMPTY)
        if taken is None:
            return False
        if listed.oldest_recorded is not None and listed.oldest_recorded <= taken:
            return True
        series, retention = str(file["name"]).rpartition("-")[0], self._retention(is_in_s3(snapshot))
        times = listed.series.get(series, ())
        newer = len(times) - bisect_right(times, taken)
        return series.startswith(f"{SCHEDULED}-") and 0 < retention <= newer

    @cached_property
    def _places(self) -> Mapping[str, _Place]:
        """Read once: each snapshot is compared with all that is listed of its place."""
        recorded = {(_place_of(each), _file_of(each)["name"]) for each in self.known}
        listed: dict[str, dict[str, datetime]] = defaultdict(dict)
        for place, found in self._complete_lists():
            if (at := parse_time(found.created_at)) is not None:
                listed[place][found.name] = at
        places = {}
        for place, times in listed.items():
            series: dict[str, list[datetime]] = defaultdict(list)
            for name, at in sorted(times.items(), key=lambda each: each[1]):
                series[name.rpartition("-")[0]].append(at)
            known = (at for name, at in times.items() if (place, name) in recorded)
            places[place] = _Place(min(known, default=None), series)
        return places

    def _complete_lists(self) -> Iterator[tuple[str, Reported]]:
        """Files with their places. A list of as many files as a report can have may lack others."""
        for machine, found in self.reports.items():
            if len(found) < MAX_SNAPSHOTS:
                yield from ((_folder(each.location) if each.in_s3 else machine, each) for each in found)

    def _retention(self, in_s3: bool) -> int:
        etcd: Object = self.scope.planning.spec.get("etcd") or {}
        found = (etcd.get("s3") or {}).get("retention") if in_s3 else etcd.get("snapshotRetention") or DEFAULT_RETENTION
        return int(found or 0)


def _place_of(snapshot: Object) -> str:
    """What has the file: the UID of a Machine, or the folder of a bucket."""
    return _folder(str(_file_of(snapshot).get("location") or "")) if is_in_s3(snapshot) else machine_uid(snapshot)


def _folder(location: str) -> str:
    return location.rpartition("/")[0]


def _file_of(snapshot: Object) -> Object:
    found: Object = snapshot["snapshotFile"]
    return found


def _report_missing(snapshot: Object, *, missing: bool) -> Sequence[Write]:
    status: Object = snapshot.get("status") or {}
    wanted = {**status, "missing": True} if missing else {name: status[name] for name in status if name != "missing"}
    reason = "no server lists its file" if missing else "a server lists its file again"
    return status_patch(ETCD_SNAPSHOT, snapshot, wanted, reason)


class NewSnapshot(NamedTuple):
    """A file that has no object yet. `machine` has the file; None for S3."""

    name: str
    machine: Object | None
    found: Reported


def create_snapshots(
    view: View, control_plane: Object, cluster: Object, new: Iterable[NewSnapshot]
) -> Iterator[Create]:
    """Create objects of files, whose metadata is limited for the whole cluster: many passes read all of them."""
    room = MAX_CLUSTER_METADATA - sum(map(_metadata_size, snapshots_in(view)))
    for each in new:
        obj = _snapshot_object(control_plane, cluster, each, room)
        room -= _metadata_size(obj)
        yield Create(ETCD_SNAPSHOT, obj, "a snapshot of the cluster")


def _metadata_size(snapshot: Object) -> int:
    return len((snapshot.get("snapshotFile") or {}).get("metadata") or "")


def delete_snapshot(snapshot: Object) -> Iterator[Write]:
    """Delete the object of a file that no longer exists."""
    reason = "its file is gone"
    yield from without_finalizer(snapshot, reason)
    if not is_deleting(snapshot):
        yield delete(ETCD_SNAPSHOT, snapshot, reason)


def snapshots_in(view: View) -> Iterable[Object]:
    """All snapshots of the cluster."""
    return view.select(ETCD_SNAPSHOT, index=(SNAPSHOTS_OF, f"{view.namespace}/{view.name}"))


def _known(scope: OperationScope, machines: Collection[str]) -> Iterator[Object]:
    """Snapshots of the cluster that are in S3 or on one of these machines, which are given by their UIDs."""
    for each in snapshots_in(scope.planning.view):
        if is_in_s3(each) or machine_uid(each) in machines:
            yield each


def files_of(reports: Iterable[tuple[PlanEntry, Sequence[Reported]]]) -> Iterator[tuple[PlanEntry, Reported]]:
    """Each file once. One in S3 is listed as by the server that has saved it, which compares it with its own file.

    The metadata in S3 proves nothing, so what was recorded first counts: it has the hash that a restore requires.
    """
    in_s3: dict[str, tuple[PlanEntry, Reported]] = {}
    for entry, found in reports:
        own = {each.name for each in found if not each.in_s3}
        for each in found:
            if not each.in_s3:
                yield entry, each
            elif each.location not in in_s3 or each.name in own:
                in_s3[each.location] = entry, each
    yield from in_s3.values()


def _snapshot_object(control_plane: Object, cluster: Object, new: NewSnapshot, room: int) -> Object:
    """The object of a file. `room` limits the size of its metadata."""
    name, found, place = cluster["metadata"]["name"], new.found, _place(new.machine)
    file = _file(found, node_of(new.machine) if new.machine else S3, room)
    return {
        "apiVersion": ETCD_SNAPSHOT.api_version,
        "kind": ETCD_SNAPSHOT.kind,
        "metadata": {
            "name": new.name,
            "namespace": cluster["metadata"]["namespace"],
            "labels": {CLUSTER_NAME: name, names.CLUSTER_NAME: name},
            "annotations": {
                names.SNAPSHOT_FILE: found.name,
                names.SNAPSHOT_STORAGE: place,
                names.RESTORE_MODES: ",".join(modes_of({"snapshotFile": file}, control_plane)),
                **({names.SNAPSHOT_NAME: found.resource} if found.resource else {}),
                **({names.SNAPSHOT_SHA256: found.sha256} if _SHA256.fullmatch(found.sha256) else {}),
                **({names.SNAPSHOT_AUTHORITIES: found.authorities} if _SHA256.fullmatch(found.authorities) else {}),
            },
            "ownerReferences": [owner_reference(*_owner(cluster, new.machine), controller=False)],
            "finalizers": [FINALIZER],
        },
        "spec": {"clusterName": name},
        "snapshotFile": file,
    }


def _place(machine: Object | None) -> str:
    return "local" if machine else S3


def _owner(cluster: Object, machine: Object | None) -> tuple[Kind, Object]:
    return (MACHINE, machine) if machine else (CLUSTER, cluster)


def object_name(view: View, cluster: Object, machine: Object | None, found: Reported) -> str:
    """The name of the object of a file, which does not depend on the file's metadata.

    The same name as in Rancher, unless it is invalid or another cluster uses it. Users choose the names of their
    clusters and of files on their servers, and so the names of their snapshots. Nobody can choose the other name in
    advance: it depends on the UID of the owner.
    """
    place, owner = _place(machine), str(_owner(cluster, machine)[1]["metadata"]["uid"])
    node = node_of(machine) if machine else found.node_name or S3
    digest = hashlib.sha256(f"{node}{found.location}".encode()).hexdigest()
    usual = safe_concat(view.name, f"{place}-{found.name}-{digest[:6]}".lower())
    unique = hashlib.sha256(f"{owner}/{digest}/{found.name}".encode()).hexdigest()[:32]
    other = limited_concat(MAX_OBJECT_NAME, view.name, place, unique)
    is_renamed = view.get(ETCD_SNAPSHOT, other) is not None
    is_usable = not dns1123_subdomain(usual) and _may_use(view.get(ETCD_SNAPSHOT, usual), owner)
    return usual if is_usable and not is_renamed else other


def _may_use(existing: Object | None, owner: str) -> bool:
    references = ((existing or {}).get("metadata") or {}).get("ownerReferences") or ()
    return existing is None or any(each["uid"] == owner for each in references)


def _file(found: Reported, node: str, room: int) -> Object:
    """The file, with values that the API accepts: otherwise the operation could not end."""
    metadata = {str(key): str(value) for key, value in found.metadata.items()}
    packed = _packed(metadata)
    is_large = len(packed) > min(_MAX_METADATA, room)
    message = found.message or (_too_large(len(packed)) if is_large else "")
    if is_large:  # without its keys, the rotation would delete those that the file needs
        generations = metadata.get(SNAPSHOT_METADATA, "")
        packed = _packed({SNAPSHOT_METADATA: generations} if names_keys(generations) else {})
    created = parse_time(found.created_at)
    file = {
        "name": found.name,
        "nodeName": node,
        "location": printable(found.location, _MAX_TEXT),
        "createdAt": timestamp(created) if created else "",
        "size": min(max(found.size, 0), INT64_MAX),
        "status": "failed" if found.status == "failed" else "successful",
        "message": printable(message, _MAX_TEXT),
        "metadata": packed,
    }
    return {name: value for name, value in file.items() if value not in ("", None)}


def _packed(metadata: Mapping[str, str]) -> str:
    return base64.b64encode(msgspec.json.encode(metadata, order="sorted")).decode() if metadata else ""


def _too_large(size: int) -> str:
    if size > _MAX_METADATA:
        return "its metadata is too large to be recorded"
    return "its metadata is not recorded: the snapshots of the cluster have too much; delete old ones"


def node_of(machine: Object) -> str:
    reference = (machine.get("status") or {}).get("nodeRef") or {}
    return str(reference.get("name") or machine["metadata"]["name"])
