"""Reports of servers become ETCDSnapshots; what a node writes is limited."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.node.plan_secret import encoded, zipped
from herder.api.rke.operations import SAVE_SNAPSHOT, SNAPSHOT
from herder.controllers.planner.operations.listing import MAX_SNAPSHOTS, Reported, reported_by
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.meta.kinds import Object
from herder.sim import loop
from tests.support.builders import new_manifest
from tests.unit.controllers.planner.objects import SERVER, entry
from tests.unit.controllers.planner.operations.test_operations import run
from tests.unit.controllers.planner.simulated_cluster import ALL_ROLES, NAMESPACE, SimulatedCluster

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
        Reported("a", "file:///snapshots/a", "2026-11-16T07:25:41Z", 1114144, "", "", {"k": "v"}),
        Reported("b", "", "", 0, "failed", "no space left on device", {}),
    ]


def test_the_list_of_the_snapshot_program_is_read() -> None:
    report = {
        "snapshots": [{"name": "a", "location": "s3://bucket/a", "size": 3, "status": "successful", "sha256": ""}]
    }
    (found,) = reported_by(reporting(msgspec.json.encode(report))) or ()
    assert (found.name, found.in_s3, found.size) == ("a", True, 3)


@pytest.mark.parametrize("output", [b"", b"Snapshot saved", b"[" * 100_000, b'{"snapshots": 3}', b"\xff"])
def test_other_reports_are_ignored(output: bytes) -> None:
    assert reported_by(reporting(output)) is None


def test_reports_are_limited() -> None:
    many: dict[str, Any] = {"snapshots": [{"name": f"s-{number}"} for number in range(MAX_SNAPSHOTS + 50)]}
    hostile = {"snapshots": [{"name": name} for name in ("../etc", "a b", "-x", "", "a" * 300, "good")]}
    assert len(reported_by(reporting(msgspec.json.encode(many))) or ()) == MAX_SNAPSHOTS
    assert [each.name for each in reported_by(reporting(msgspec.json.encode(hostile))) or ()] == ["good"]


# --- objects ----------------------------------------------------------------------------------------------------------

TIME = "2026-11-16T07:25:41Z"
HOSTILE: dict[str, dict[str, Any]] = {
    "a name with an underscore": {"name": "on_demand-s1-1794813941"},
    "two dots": {"name": "a..b"},
    "a dot where the name is cut": {"name": f"{'a' * 44}.-{'b' * 60}"},
    "two hyphens where the name is cut": {"name": f"{'a' * 44}--{'b' * 60}"},
    "a size of 300 digits": {"name": "a", "size": 10**300},
    "a size of 64 bits": {"name": "a", "size": 2**63},
    "the week of a year": {"name": "a", "createdAt": "2026-W01-1T00:00:00+00:00"},
    "a time without hyphens": {"name": "a", "createdAt": "20260101T000000+0000"},
    "metadata of 2.9 MB": {"name": "a", "metadata": {"k": "x" * 2_900_000}},
}


async def save(cluster: SimulatedCluster, generation: int, *found: dict[str, Any]) -> list[Object]:
    """Take a snapshot of a server that reports these; returns the objects."""
    cluster.outputs[SAVE_SNAPSHOT] = json.dumps({"snapshots": found}).encode()
    status = await run(cluster, SNAPSHOT, {"generation": generation})
    assert status["operation"]["phase"] == "Finished", status["operation"]
    return (await cluster.client.list_all(ETCD_SNAPSHOT.resource, namespace=NAMESPACE)).items


def test_no_report_keeps_an_operation_from_ending() -> None:
    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await cluster.create()
            await cluster.add("server", ALL_ROLES)
            await cluster.world.until(cluster.is_ready)
            for generation, (case, found) in enumerate(HOSTILE.items(), 1):
                objects = await save(cluster, generation, found, {"name": "other", "createdAt": TIME})
                assert {each["snapshotFile"]["name"] for each in objects} == {found["name"], "other"}, case

    loop.run(scenario())


def test_a_snapshot_of_another_cluster_with_the_same_name_is_kept() -> None:
    """A server of the cluster `a` can report names that begin as those of a cluster `a-local-b` do."""

    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await cluster.create()
            await cluster.add("server", ALL_ROLES)
            await cluster.world.until(cluster.is_ready)
            found = {"name": "taken", "location": "file:///taken"}
            (own,) = await save(cluster, 1, found)
            name = own["metadata"]["name"]
            assert not name.endswith(hashlib.sha256(b"serverfile:///taken").hexdigest()[:6])  # others could choose it
            assert await save(cluster, 2) == []
            foreign = new_manifest(ETCD_SNAPSHOT, name, NAMESPACE, spec={"clusterName": "other"})
            await cluster.client.create(ETCD_SNAPSHOT.resource, foreign, namespace=NAMESPACE)
            objects = await save(cluster, 3, found, {"name": "free"})
            assert {each["spec"]["clusterName"]: "snapshotFile" in each for each in objects} == {
                "other": False,
                "demo": True,
            }

    loop.run(scenario())


@pytest.mark.parametrize(
    "output",
    [
        b'{"snapshots":[' + b",".join([b'{"name":"a"}'] * 230_000) + b"]}",
        b'{"items":[' + b",".join([b"{}"] * 900_000) + b"]}",
        b'{"snapshots":[{"name":"a","metadata":{' + b",".join(b'"%d":""' % n for n in range(270_000)) + b"}}]}",
    ],
    ids=["snapshots", "items", "metadata"],
)
def test_a_report_of_too_many_parts_is_not_decoded(output: bytes) -> None:
    """Each of these takes 0.1 to 0.9 s of one event-loop turn."""
    reporter = reporting(output)
    assert SAVE_SNAPSHOT in reporter.plan.outputs
    assert reported_by(reporter) is None
