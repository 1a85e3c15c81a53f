"""Reports of servers become ETCDSnapshots; what a node writes is limited."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest

from herder.api.capi.kinds import CLUSTER
from herder.api.rke.etcd.encryption import SNAPSHOT_METADATA, needed_by
from herder.api.rke.etcd.snapshots import FINALIZER, S3
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.api.rke.names import SNAPSHOT_SHA256
from herder.api.rke.node.plan_secret import encoded, zipped
from herder.api.rke.operations import RESTORE, SAVE_SNAPSHOT, SNAPSHOT
from herder.controllers.planner import etcd_snapshot
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.distributions.rancher.distribution import Rancher
from herder.controllers.planner.operations import restore
from herder.controllers.planner.operations.interface import OperationScope
from herder.controllers.planner.operations.inverse import hash_that_undoes
from herder.controllers.planner.operations.snapshots import listing
from herder.controllers.planner.operations.snapshots.listing import (
    MAX_RECORDED,
    MAX_SNAPSHOTS,
    Reported,
    files_of,
    reported_by,
)
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch
from herder.sim import loop
from tests.support.builders import new_manifest
from tests.support.views import view_of
from tests.unit.controllers.planner.objects import SERVER, entry
from tests.unit.controllers.planner.operations.test_operations import run
from tests.unit.controllers.planner.simulated_cluster import ALL_ROLES, NAME, NAMESPACE, SimulatedCluster

K3S = {
    "kind": "List",
    "items": [
        {
            "spec": {"location": "file:///snapshots/a", "nodeName": "s1", "snapshotName": "a", "metadata": {"k": "v"}},
            "status": {"creationTime": "2026-11-16T07:25:41Z", "readyToUse": True, "size": "1114144"},
        },
        {
            "spec": {"location": "", "snapshotName": "b"},
            "status": {"readyToUse": False, "size": "0", "error": {"message": "no space left on device"}},
        },
    ],
}


def reporting(output: bytes) -> PlanEntry:
    found = entry("a", SERVER)
    data = {**(found.plan.secret.get("data") or {}), "applied-output": encoded(zipped({SAVE_SNAPSHOT: output}))}
    return PlanEntry(found.machine, type(found.plan)({**found.plan.secret, "data": data}))


def test_the_list_of_k3s_is_read() -> None:
    assert reported_by(reporting(msgspec.json.encode(K3S))) == [
        Reported("a", "file:///snapshots/a", "2026-11-16T07:25:41Z", 1114144, "", "", {"k": "v"}, "s1"),
        Reported("b", "", "", 0, "failed", "no space left on device", {}),
    ]


def test_the_hash_of_a_file_that_k3s_has_just_saved_is_read() -> None:
    in_s3 = {"spec": {"location": "s3://bucket/a", "snapshotName": "a"}, "status": {}}
    report = {"hashes": {"a": SAVED}, "list": {**K3S, "items": [*K3S["items"], in_s3]}}
    found = reported_by(reporting(msgspec.json.encode(report))) or ()
    assert [(each.name, each.in_s3, each.sha256) for each in found] == [
        ("a", False, SAVED),
        ("b", False, ""),
        ("a", True, SAVED),
    ]


def test_the_list_of_the_snapshot_program_is_read() -> None:
    report = {
        "snapshots": [{"name": "a", "location": "s3://bucket/a", "size": 3, "status": "successful", "sha256": ""}]
    }
    (found,) = reported_by(reporting(msgspec.json.encode(report))) or ()
    assert (found.name, found.in_s3, found.size) == ("a", True, 3)


MANY_FILES = b'{"items":[' + b",".join([b"{}"] * 100_000) + b"]}"
MANY_LABELS = (
    b'{"snapshots":[{"name":"a","metadata":{' + b",".join(b'"%d":""' % each for each in range(50_000)) + b"}}]}"
)


@pytest.mark.parametrize("output", [MANY_FILES, MANY_LABELS])
def test_a_report_with_many_values_is_not_decoded(output: bytes) -> None:
    """Decoding takes as long as there are values, on the event loop. Compressed, such a report has a few KiB."""
    msgspec.json.decode(output)
    assert reported_by(reporting(output)) is None


@pytest.mark.parametrize("output", [b"", b"Snapshot saved", b"[" * 100_000, b'{"snapshots": 3}', b"\xff"])
def test_other_reports_are_ignored(output: bytes) -> None:
    assert reported_by(reporting(output)) is None


def test_reports_are_limited() -> None:
    many: dict[str, Any] = {"snapshots": [{"name": f"s-{number}"} for number in range(MAX_SNAPSHOTS + 50)]}
    hostile = {"snapshots": [{"name": name} for name in ("../etc", "a b", "-x", "", "a" * 300, "good")]}
    assert len(reported_by(reporting(msgspec.json.encode(many))) or ()) == MAX_SNAPSHOTS
    assert [each.name for each in reported_by(reporting(msgspec.json.encode(hostile))) or ()] == ["good"]


@pytest.mark.parametrize(
    "output",
    [
        b'{"items": [' + b"{}," * 900_000 + b"{}]}",
        b'{"snapshots": [' + b'{"name":"a"},' * 200_000 + b'{"name":"a"}]}',
        b'{"snapshots": [{"name": "a", "metadata": {' + b'"a":"",' * 300_000 + b'"a":""}}]}',
    ],
    ids=["objects", "snapshots", "metadata"],
)
def test_reports_of_many_values_are_not_decoded(output: bytes) -> None:
    """Decoding them would block the event loop."""
    assert reported_by(reporting(output)) is None


def test_a_list_of_a_thousand_files_of_k3s_is_read() -> None:
    item = {
        "apiVersion": "k3s.cattle.io/v1",
        "kind": "ETCDSnapshotFile",
        "metadata": {"name": "local-a", "labels": {"etcd.k3s.cattle.io/snapshot-storage-node": "s1"}},
        "spec": {
            "location": "s3://bucket/a",
            "nodeName": "s3",
            "snapshotName": "a",
            "metadata": {"owner": "me"},
            "s3": {"endpoint": "s3.example", "bucket": "bucket", "region": "us-east-1", "prefix": "farm"},
        },
        "status": {"creationTime": "2026-11-16T07:25:41Z", "readyToUse": True, "size": "1", "error": {"message": "x"}},
    }
    output = msgspec.json.encode({"kind": "List", "apiVersion": "v1", "items": [item] * 1000})
    assert len(reported_by(reporting(output)) or ()) == MAX_SNAPSHOTS


# --- objects ----------------------------------------------------------------------------------------------------------


async def snapshots_after(cluster: SimulatedCluster, generation: int, *reported: Object) -> list[Object]:
    """Take a snapshot on a server that reports these; returns all objects."""
    cluster.outputs = {SAVE_SNAPSHOT: json.dumps({"snapshots": reported}).encode()}
    status = await run(cluster, SNAPSHOT, {"generation": generation})
    assert status["operation"]["phase"] == "Finished", status["operation"]
    return (await cluster.client.list_all(ETCD_SNAPSHOT.resource, namespace=NAMESPACE)).items


async def create_server(cluster: SimulatedCluster) -> None:
    await cluster.create()
    await cluster.add("server-0", ALL_ROLES)
    await cluster.world.until(cluster.is_ready)


ODD = (
    {"name": "a_b"},
    {"name": "a..b"},
    {"name": "a."},
    {"name": "x" * 44 + "." + "y" * 40},
    {"name": "size", "size": 2**63},
    {"name": "digits", "size": 10**4000},
    {"name": "time", "createdAt": "20261116T072541Z"},
    {"name": "text", "location": "\x00" * 5000, "message": "\x1b[2J", "status": "other"},
    {"name": "metadata", "metadata": {"spec": "x" * 1_500_000}},
    {"name": "keys", "metadata": {"spec": "x" * 1_500_000, SNAPSHOT_METADATA: "1,3"}},
)


def test_an_operation_ends_whatever_a_server_reports() -> None:
    """The API server would refuse objects with these values, and the planner would try it again without end."""

    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await create_server(cluster)
            found = {each["snapshotFile"]["name"]: each for each in await snapshots_after(cluster, 1, *ODD)}
            assert found.keys() == {each["name"] for each in ODD}
            files = {name: each["snapshotFile"] for name, each in found.items()}
            assert files["size"]["size"] == files["digits"]["size"] == 2**63 - 1
            assert files["time"]["createdAt"] == "2026-11-16T07:25:41Z"
            assert "metadata" not in files["metadata"]
            assert "metadata" in files["metadata"]["message"] == files["keys"]["message"]
            assert needed_by([found["keys"]], (1, 2, 3)) == {1, 3}, "the rotation would delete them"
            assert needed_by([found["metadata"]], (1, 2, 3)) >= {1, 2, 3}

    loop.run(scenario())


def test_a_name_that_another_cluster_uses_does_not_block_a_snapshot() -> None:
    """Users choose the names of clusters and of files on their servers, so they can choose names of objects."""

    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await create_server(cluster)
            reported = {"name": "a", "location": "file:///snapshots/a"}
            (own,) = await snapshots_after(cluster, 1, reported)
            name = own["metadata"]["name"]
            assert await snapshots_after(cluster, 2) == []
            taken = new_manifest(ETCD_SNAPSHOT, name, NAMESPACE, spec={"clusterName": "another"})
            await cluster.client.create(ETCD_SNAPSHOT.resource, taken, namespace=NAMESPACE)
            both = {each["spec"]["clusterName"]: each for each in await snapshots_after(cluster, 3, reported)}
            assert both.keys() == {NAME, "another"}
            assert both[NAME]["snapshotFile"]["name"] == "a"
            renamed = both[NAME]["metadata"]["name"]
            await cluster.client.delete(ETCD_SNAPSHOT.resource, name, namespace=NAMESPACE)
            (kept,) = await snapshots_after(cluster, 4, reported)
            assert kept["metadata"]["name"] == renamed != name

    loop.run(scenario())


SAVED, FORGED = "a" * 64, "b" * 64


def in_s3(name: str, **fields: Any) -> Object:
    return {"name": name, "location": f"s3://bucket/farm/{name}", "nodeName": "server-0", **fields}


def test_what_was_recorded_of_an_object_in_s3_outlasts_its_metadata() -> None:
    """Who can write to the bucket can replace a snapshot with its metadata. A restore requires the recorded hash."""

    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await create_server(cluster)
            (own,) = await snapshots_after(cluster, 1, in_s3("a", sha256=SAVED))
            for generation, forged in enumerate(
                (in_s3("a", sha256=FORGED), in_s3("a", nodeName="", sha256=FORGED), in_s3("a", nodeName="other")), 2
            ):
                assert await snapshots_after(cluster, generation, forged) == [own]

    loop.run(scenario())


def test_an_object_in_s3_is_recorded_as_its_own_server_reports_it() -> None:
    """Another server knows only the metadata in the bucket."""
    entries = [reporting(b""), reporting(b"")]
    bucket = Reported("a", "s3://bucket/a", sha256=FORGED)
    saved = [Reported("a", "file:///a", sha256=SAVED), Reported("a", "s3://bucket/a", sha256=SAVED)]
    for reports in ([(entries[0], saved), (entries[1], [bucket])], [(entries[1], [bucket]), (entries[0], saved)]):
        assert {(each.location, each.sha256) for _, each in files_of(reports)} == {
            ("file:///a", SAVED),
            ("s3://bucket/a", SAVED),
        }


def test_an_object_that_was_added_to_the_bucket_does_not_undo_an_operation() -> None:
    """`herder rollback cluster` restores what `inverse` names. Only a server saves a file beside its object in S3."""

    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await create_server(cluster)
            await snapshots_after(cluster, 1, in_s3("to-restore", sha256=SAVED))
            (restored,) = (await cluster.client.list_all(ETCD_SNAPSHOT.resource, namespace=NAMESPACE)).items
            own = {"name": "own", "location": "file:///own", "createdAt": "2020-01-01T00:00:00Z"}
            planted = in_s3("planted", createdAt="2020-01-02T00:00:00Z")
            future = {"name": "future", "location": "file:///future", "createdAt": "2999-01-01T00:00:00Z"}
            twin = in_s3("own", createdAt="2020-01-01T00:00:00Z")
            reported = [in_s3("to-restore", sha256=SAVED), own, twin, planted, future]
            cluster.outputs = {SAVE_SNAPSHOT: json.dumps({"snapshots": reported}).encode()}
            status = await run(cluster, RESTORE, {"generation": 1, "name": restored["metadata"]["name"]})
            assert status["operation"]["phase"] == "Finished", status["operation"]
            chosen = await cluster.client.get(
                ETCD_SNAPSHOT.resource, status["operation"]["inverse"]["name"], namespace=NAMESPACE
            )
            assert (chosen["snapshotFile"]["name"], chosen["snapshotFile"]["nodeName"]) == ("own", "s3")

    loop.run(scenario())


def test_an_object_that_returns_to_the_bucket_undoes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can write to the bucket deletes an object until its ETCDSnapshot is deleted too, and then adds another one.

    The file on its server may be gone by then, so that nobody compares them. The new ETCDSnapshot has the same name,
    which `herder rollback cluster` restores.
    """
    expected: list[str] = []
    source_of = restore.source_of

    def spy(scope: OperationScope) -> restore.Source | str:
        found = source_of(scope)
        if isinstance(found, restore.Source) and found.file.name == "own":
            expected.append(found.file.sha256)
        return found

    monkeypatch.setattr(restore, "source_of", spy)

    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await create_server(cluster)
            (restored,) = await snapshots_after(cluster, 1, in_s3("to-restore", sha256=SAVED))
            older = in_s3("to-restore", createdAt="2020-01-01T00:00:00Z")
            own = {"name": "own", "location": "file:///own", "createdAt": "2020-01-02T00:00:00Z", "sha256": SAVED}
            twin, forged = ({**own, **in_s3("own", sha256=each)} for each in (SAVED, FORGED))
            cluster.outputs = {SAVE_SNAPSHOT: json.dumps({"snapshots": [older, own, twin]}).encode()}
            status = await run(cluster, RESTORE, {"generation": 1, "name": restored["metadata"]["name"]})
            name = status["operation"]["inverse"]["name"]
            for generation, reported in enumerate(([older], [older, forged]), 2):
                found = {each["metadata"]["name"] for each in await snapshots_after(cluster, generation, *reported)}
                assert (name in found) is (forged in reported)
            status = await run(cluster, RESTORE, {"generation": 2, "name": name})
            assert expected == []
            assert "its hash differs" in status["operation"]["message"]
            patch = {"metadata": {"annotations": {SNAPSHOT_SHA256: None}}}  # as of an object without metadata
            await cluster.client.patch(ETCD_SNAPSHOT.resource, name, patch, namespace=NAMESPACE)
            await run(cluster, RESTORE, {"generation": 3, "name": name})
            assert set(expected) == {SAVED}

    loop.run(scenario())


def test_the_hash_of_a_snapshot_is_that_of_the_first_record() -> None:
    def undo(sha256: str) -> Object:
        return {"inverse": {"name": "a", "snapshotSHA256": sha256}}

    upgrade = {"snapshot": "b", "snapshotSHA256": SAVED}
    status = {"operationHistory": [{}, undo(SAVED), undo(FORGED)], "operation": undo(FORGED), "rollback": upgrade}
    assert hash_that_undoes(status, "a") == hash_that_undoes(status, "b") == SAVED
    assert hash_that_undoes(status, "c") == hash_that_undoes({"rollback": {"snapshot": "b"}}, "b") == ""


DAYS = [f"2020-01-0{day}T00:00:00Z" for day in range(1, 10)]


def saved_on(day: int, name: str = "", **fields: Any) -> Object:
    name = name or f"on-demand-s-{day}"
    return {"name": name, "location": f"file:///snapshots/{name}", "createdAt": DAYS[day], **fields}


def scheduled_on(day: int) -> Object:
    return saved_on(day, f"etcd-snapshot-s-{day}")


def uploaded_on(day: int, folder: str = "farm") -> Object:
    return saved_on(day, f"etcd-snapshot-s-{day}") | {"location": f"s3://bucket/{folder}/etcd-snapshot-s-{day}"}


def own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the manager own the keys, as of the other distributions."""
    distribution = distribution_of("v1.34.1+k3s1")
    assert isinstance(distribution, Rancher)
    monkeypatch.setattr(OperationScope, "distribution", replace(distribution, manages_keys=True))


MANY = [saved_on(8, f"on-demand-s-8-{number}") for number in range(MAX_SNAPSHOTS)]


@pytest.mark.parametrize(
    ("before", "after", "missing", "gone"),
    [
        # the directory is another one, or the list is not complete
        ([saved_on(1)], [], [1], []),
        ([saved_on(1), saved_on(2)], [saved_on(3)], [1, 2], []),
        ([saved_on(2)], [saved_on(1), saved_on(3)], [2], []),  # the older file was not recorded before
        ([saved_on(1), saved_on(2)], [saved_on(1), *MANY], [2], []),
        ([scheduled_on(1)], [scheduled_on(2)], [1], []),
        ([saved_on(1)], [saved_on(2), saved_on(3), saved_on(4)], [1], []),  # the retention does not count these
        ([uploaded_on(1)], [saved_on(2)], [1], []),
        ([uploaded_on(1), uploaded_on(2, "old")], [uploaded_on(1), uploaded_on(3)], [2], []),
        # it is the same, or the retention has deleted the file
        ([saved_on(1), saved_on(2)], [saved_on(1), saved_on(3)], [], [2]),
        ([scheduled_on(1)], [scheduled_on(2), scheduled_on(3)], [], [1]),
        ([uploaded_on(1), uploaded_on(2)], [uploaded_on(1)], [], [2]),
        ([uploaded_on(1)], [uploaded_on(2), uploaded_on(3), uploaded_on(4)], [], [1]),
        ([saved_on(1, status="failed")], [], [], [1]),
    ],
)
def test_a_shorter_list_does_not_prove_that_files_were_deleted(
    before: list[Object], after: list[Object], missing: list[int], gone: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that the manager owns are kept while an object names them."""

    own_keys(monkeypatch)

    def days(found: list[Object]) -> list[int]:
        return sorted(DAYS.index(each["snapshotFile"]["createdAt"]) for each in found)

    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await cluster.create(etcd={"snapshotRetention": 2, "s3": {"retention": 3}})
            await cluster.add("server-0", ALL_ROLES)
            await cluster.world.until(cluster.is_ready)
            recorded = days(await snapshots_after(cluster, 1, *before))
            found = await snapshots_after(cluster, 2, *after)
            assert days([each for each in found if (each.get("status") or {}).get("missing")]) == missing
            assert sorted({*recorded} - {*days(found)}) == gone
            again = await snapshots_after(cluster, 3, *before, *after[:3])
            assert not [each for each in again if (each.get("status") or {}).get("missing")]

    loop.run(scenario())


@pytest.mark.parametrize("location", ["file:///snapshots", "s3://bucket"])
def test_reports_of_other_files_each_time_add_no_objects_without_end(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects of missing files are kept. Each was compared with all others, and 1,400 took the event loop a second."""
    own_keys(monkeypatch)
    parsed = 0
    parse_time = listing.parse_time

    def counted(text: str | None) -> datetime | None:
        nonlocal parsed
        parsed += 1
        return parse_time(text)

    monkeypatch.setattr(listing, "parse_time", counted)

    async def scenario() -> None:
        nonlocal parsed
        async with SimulatedCluster() as cluster:
            await create_server(cluster)
            for run_number in range(1, 5):
                names = [f"s-{run_number}-{number}" for number in range(MAX_SNAPSHOTS - 1)]
                folder = f"{location}/{run_number}"  # other folders are other places, and also reported by the server
                reported = [
                    {"name": each, "location": f"{folder}/{each}", "createdAt": DAYS[-run_number]} for each in names
                ]
                parsed = 0
                found = await snapshots_after(cluster, run_number, *reported)
                assert len(found) <= MAX_RECORDED
                assert parsed <= 4 * MAX_RECORDED

    loop.run(scenario())


def test_files_of_a_former_cluster_of_the_name_are_left_alone() -> None:
    """Its snapshots in S3 may still wait for their deletion. The new cluster may be another user's, and may use the
    same folder, with files of the same name."""

    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await create_server(cluster)
            owner = {"apiVersion": CLUSTER.api_version, "kind": CLUSTER.kind, "name": NAME, "uid": "former"}
            meta = {"finalizers": [FINALIZER], "ownerReferences": [owner]}
            file = {"name": "a", "nodeName": S3, "status": "successful"}
            obj = new_manifest(ETCD_SNAPSHOT, "former", NAMESPACE, spec={"clusterName": NAME}, snapshotFile=file)
            obj["metadata"] |= meta
            await cluster.client.create(ETCD_SNAPSHOT.resource, obj, namespace=NAMESPACE)
            await cluster.client.delete(ETCD_SNAPSHOT.resource, "former", namespace=NAMESPACE)

            await asyncio.sleep(600)
            objects = [
                await cluster.client.get(kind.resource, NAME, namespace=NAMESPACE) for kind in (CONTROL_PLANE, CLUSTER)
            ]
            former = await cluster.client.get(ETCD_SNAPSHOT.resource, "former", namespace=NAMESPACE)
            assert "operation" not in objects[0]["status"], "no server deletes a file"
            view = view_of(etcd_snapshot.CONTROLLER, f"{NAMESPACE}/{NAME}", (*objects, former))
            (released,) = etcd_snapshot.reconcile(view).writes
            assert isinstance(released, Patch)
            assert (released.ref.name, released.reason) == ("former", "its cluster is deleted")

    loop.run(scenario())
