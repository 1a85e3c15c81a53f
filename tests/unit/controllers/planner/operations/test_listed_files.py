"""ETCDSnapshotFiles of K3s and RKE2 become ETCDSnapshots; a pass reads whole files only of new snapshots.

Anyone with rights in the workload cluster can create such files, any number of them, with any metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from herder.api.capi.names import annotations_of
from herder.api.management import names as management_names
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.rke import names
from herder.controllers.planner import etcd_snapshot
from herder.controllers.planner.etcd_snapshot import FILES, MAX_CREATED, MAX_METADATA_KEYS, MAX_SNAPSHOTS, SNAPSHOT_FILE
from herder.controllers.planner.operations.snapshots import listing
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Decision, Observe
from herder.engine.runtime.remote.observation import max_objects
from herder.engine.runtime.view import Observed
from tests.support.builders import new_object, reconcile, writes_of
from tests.support.views import NOW
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, cluster, control_plane, machine


def file(name: str, *, metadata: dict[str, str] | None = None, node: str = "a") -> Object:
    spec = {
        "snapshotName": name,
        "nodeName": node,
        "location": f"file:///snapshots/{name}",
        "metadata": {"k": "v"} if metadata is None else metadata,
    }
    status = {"creationTime": "2026-01-01T00:00:00Z", "readyToUse": True, "size": "3"}
    return new_object(SNAPSHOT_FILE, f"local-{name}", spec=spec, status=status)


class Files:
    """Observation of the files of a workload cluster. Counts the records that passes read."""

    def __init__(self, files: Iterable[Object]) -> None:
        records = [FILES.project(each) for each in files]
        self._by_value = {value: each for each in records for value in FILES.indexes[etcd_snapshot.BY_FILE](each)}
        self.read = 0

    def __call__(self, subscription: Observe) -> Observed:
        if subscription.values_of:
            return Observed((), NOW, tuple(self._by_value))
        assert subscription.focus is not None, "a pass must not read all files"
        self.read += 1
        return Observed((self._by_value[subscription.focus[1]],), NOW)


def sync(files: Files, known: Iterable[Object] = ()) -> Decision:
    connected = {management_names.CONNECTED_SINCE: "2026-01-01T00:00:00Z"}
    objects = (
        control_plane(managementClusterName="c-m-1"),
        cluster(),
        machine("a", address="10.0.0.1"),
        new_object(MANAGEMENT_CLUSTER, "c-m-1", annotations=connected),
        *known,
    )
    return reconcile(etcd_snapshot.CONTROLLER, f"{NAMESPACE}/{NAME}", *objects, observed=files)


def created(decision: Decision) -> list[Object]:
    return [write.obj for write in writes_of(decision) if isinstance(write, Create)]


def sync_all(files: Files) -> list[Object]:
    known: list[Object] = []
    while True:
        decision = sync(files, known)
        new = created(decision)
        known += [{**each, "metadata": {**each["metadata"], "uid": each["metadata"]["name"]}} for each in new]
        if decision.wake_at is None:
            return known


def test_a_file_becomes_an_object() -> None:
    (found,) = created(sync(Files([file("x")])))
    assert annotations_of(found)[names.SNAPSHOT_NAME] == "local-x"
    assert found["snapshotFile"] | {"metadata": ""} == {
        "name": "x",
        "nodeName": "a",
        "location": "file:///snapshots/x",
        "createdAt": "2026-01-01T00:00:00Z",
        "size": 3,
        "status": "successful",
        "metadata": "",
    }


def test_files_whose_objects_exist_are_not_read_again() -> None:
    files = Files([file(f"f-{number:03}") for number in range(50)])
    known = sync_all(files)
    assert (len(known), files.read) == (50, 50)
    assert writes_of(sync(files, known)) == []
    assert files.read == 50


def test_one_pass_creates_a_limited_number_and_the_next_continues() -> None:
    files = Files([file(f"f-{number:03}") for number in range(MAX_CREATED + 1)])
    first = sync(files)
    assert (len(created(first)), files.read) == (MAX_CREATED, MAX_CREATED)
    assert first.wake_at is not None
    assert len(sync_all(files)) == MAX_CREATED + 1


def test_number_of_files_is_limited() -> None:
    files = Files([file(f"f-{number:04}") for number in range(MAX_SNAPSHOTS + 5)])
    known = sync_all(files)
    assert len(known) == MAX_SNAPSHOTS
    assert writes_of(sync(files, known)) == []
    assert max_objects(SNAPSHOT_FILE) <= 10_000


def test_an_object_is_deleted_with_its_file() -> None:
    known = sync_all(Files([file("x"), file("y")]))
    deleted = [write for write in writes_of(sync(Files([file("x")]), known)) if not isinstance(write, Create)]
    assert {write.ref.name for write in deleted} == {
        each["metadata"]["name"] for each in known if each["snapshotFile"]["name"] == "y"
    }


def test_metadata_of_all_snapshots_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_CLUSTER_METADATA", 100_000)
    files = Files([file(f"f-{number:02}", metadata={"k": "x" * 10_000}) for number in range(30)])
    known = sync_all(files)
    sizes = [len(each["snapshotFile"].get("metadata", "")) for each in known]
    assert 80_000 < sum(sizes) <= 100_000
    assert len(known) == 30
    assert {each["snapshotFile"].get("message", "") for each in known if "metadata" not in each["snapshotFile"]} == {
        "its metadata is not recorded: the snapshots of the cluster have too much; delete old ones"
    }


def test_metadata_with_many_keys_is_not_cached() -> None:
    """Such a record takes many times as long to decode."""
    many = {str(number): "" for number in range(MAX_METADATA_KEYS + 1)}
    assert FILES.project(file("x", metadata=many))["extra"] == {}
    assert FILES.project(file("x", metadata={"k": "v" * (65 << 10)}))["extra"] == {}


def test_names_that_are_no_file_names_are_not_listed() -> None:
    assert list(FILES.indexes[etcd_snapshot.BY_FILE](FILES.project(file("../etc")))) == []


def test_index_holds_no_metadata() -> None:
    (value,) = FILES.indexes[etcd_snapshot.BY_FILE](FILES.project(file("x")))
    assert json.loads(value) == ["local-x", "x", "a", "file:///snapshots/x"]
