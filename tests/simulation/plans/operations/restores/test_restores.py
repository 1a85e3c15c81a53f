"""Restores from S3 on simulated servers of all distributions: on new servers, and failures that change nothing.

The planner, its guards and the agents' core are the real ones. The invariants of plans hold throughout: no data of
before a restore is served again, and no server begins a second cluster.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.rke import operations
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT, PLAN_SECRET
from herder.api.rke.names import JOIN_URL, JOINED_TO
from herder.api.rke.node.plan_secret import PlanSecret
from herder.engine.meta.kinds import Object
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.host.disk import Snapshot
from tests.simulation.plans.operations.operated_cluster import ALL_VERSIONS, HOUR, OperatedCluster, run
from tests.support.builders import new_manifest

BUCKET = "snaps"
S3 = {"cloudCredentialName": "s3", "endpoint": "s3.sim:9000", "bucket": BUCKET, "folder": "farm"}
LOST = "Restoration from etcd snapshot is required"


def servers_of(version: str) -> int:
    return 1 if "herder" in version else 3


async def create_with_s3(cluster: OperatedCluster) -> None:
    sim = cluster.simulation.sim
    sim.context.s3.buckets[BUCKET] = {}
    keys = {"s3credentialConfig-accessKey": "access", "s3credentialConfig-secretKey": "secret"}
    await sim.create(SECRET, new_manifest(SECRET, "s3", "fleet-default", stringData=keys))
    await cluster.create(s3=S3)


async def saved_in_s3(cluster: OperatedCluster) -> Object:
    saved = await cluster.run(operations.SNAPSHOT)
    assert saved.phase == "Finished", saved.message
    found = await cluster.simulation.sim.all(ETCD_SNAPSHOT)
    return next(each for each in found if each["snapshotFile"]["nodeName"] == "s3")


async def lose_all_servers(cluster: OperatedCluster) -> None:
    """Their disks are lost with them; the pool replaces the machines."""
    simulation = cluster.simulation
    lost = cluster.servers
    for node in lost:
        node.die()
    for node in lost:
        await simulation.delete_machine(simulation.machine_of(node))

    async def is_reported() -> bool:
        (plane,) = await simulation.sim.all(CONTROL_PLANE)
        return any(LOST in (each.get("message") or "") for each in plane["status"]["conditions"])

    await simulation.sim.world.until(is_reported, within=HOUR)


@pytest.mark.parametrize(
    ("version", "faults"),
    [*((version, NONE) for version in ALL_VERSIONS), *((version, ROUGH) for version in ALL_VERSIONS[2:])],
)
def test_a_cluster_that_lost_all_servers_is_restored_on_new_ones(version: str, faults: Faults) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await cluster.write("before")
        snapshot = await saved_in_s3(cluster)
        await cluster.write("after")
        await lose_all_servers(cluster)
        restored = await cluster.run(operations.RESTORE, name=snapshot["metadata"]["name"])
        assert restored.phase == "Finished", restored.message
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)
        await cluster.write("later")

    run(version, scenario, faults, servers=servers_of(version), prepare=create_with_s3)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_snapshot_in_s3_is_checked_and_restored_in_place(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await cluster.write("before")
        snapshot = await saved_in_s3(cluster)
        await cluster.write("after")
        restored = await cluster.run(operations.RESTORE, name=snapshot["metadata"]["name"])
        assert restored.phase == "Finished", restored.message
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)

    run(version, scenario, servers=servers_of(version), prepare=create_with_s3)


@pytest.mark.parametrize("version", ALL_VERSIONS[:3])
def test_servers_that_are_being_deleted_do_not_serve_beside_the_restored_one(version: str) -> None:
    """They get no plan any more, so nothing could stop them."""

    async def scenario(cluster: OperatedCluster) -> None:
        simulation = cluster.simulation
        await cluster.write("before")
        snapshot = await saved_in_s3(cluster)
        await cluster.write("after")
        for node in cluster.servers[1:]:
            await simulation.delete_machine(simulation.machine_of(node))
        name = snapshot["metadata"]["name"]
        refused = await cluster.run(operations.RESTORE, name=name)
        assert (refused.phase, "are being deleted" in refused.message) == ("Failed", True), refused.message
        assert await cluster.has("after")
        restored = await cluster.run(operations.RESTORE, generation=2, name=name)
        assert restored.phase == "Finished", restored.message
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)

    run(version, scenario, prepare=create_with_s3)


@pytest.mark.parametrize("version", ALL_VERSIONS[:3])
def test_a_restore_ends_although_a_server_is_lost_for_good(version: str) -> None:
    """The server fails while the others start. They come back, and so does its replacement."""

    async def scenario(cluster: OperatedCluster) -> None:
        simulation = cluster.simulation
        await cluster.write("before")
        snapshot = await saved_in_s3(cluster)
        name = snapshot["metadata"]["name"]
        await simulation.sim.edit({"rkeConfig": {operations.RESTORE: {"generation": 1, "name": name}}})

        async def is_restored() -> bool:
            found = operations.Run.of(await cluster.control_plane())
            return found is not None and found.phase == operations.REJOIN_PHASE

        await simulation.sim.world.until(is_restored, within=HOUR)
        run_ = operations.Run.of(await cluster.control_plane())
        assert run_ is not None
        lost = next(node for node in cluster.servers if simulation.machine_of(node) != run_.leader)
        lost.die()
        ended = await cluster.run(operations.RESTORE, settles=False, name=name)
        assert ended.phase == "Failed"
        assert simulation.machine_of(lost) in ended.message
        assert all(node.running for node in simulation.nodes if node is not lost)
        await simulation.delete_machine(simulation.machine_of(lost))
        await simulation.until_settled()
        assert await cluster.has("before")

    run(version, scenario, prepare=create_with_s3)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_file_without_an_object_is_restored_on_the_only_server(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await cluster.write("before")
        saved = await cluster.run(operations.SNAPSHOT)
        assert saved.phase == "Finished", saved.message
        await cluster.write("after")
        (disk,) = (node.disk for node in cluster.servers)
        ((path, snapshot),) = [(path, each) for path, each in disk.files.items() if isinstance(each, Snapshot)]
        disk.files[f"{path.rpartition('/')[0]}/copy"] = replace(snapshot, name="copy")
        missing = await cluster.run(operations.RESTORE, name="other")
        assert (missing.phase, "other" in missing.message) == ("Failed", True)
        assert await cluster.has("after")
        restored = await cluster.run(operations.RESTORE, generation=2, name="copy")
        assert restored.phase == "Finished", restored.message
        assert (await cluster.has("before"), await cluster.has("after")) == (True, False)

    run(version, scenario, servers=1)


@pytest.mark.parametrize("version", ALL_VERSIONS[:2])
def test_a_snapshot_that_the_bucket_has_lost_stops_nothing(version: str) -> None:
    """The servers still have a file of its name."""

    async def scenario(cluster: OperatedCluster) -> None:
        snapshot = await saved_in_s3(cluster)
        starts = {node.name: node.starts for node in cluster.servers}
        cluster.simulation.sim.context.s3.buckets[BUCKET].pop(f"farm/{snapshot['snapshotFile']['name']}")
        failed = await cluster.run(operations.RESTORE, name=snapshot["metadata"]["name"])
        assert (failed.phase, "the bucket has no snapshot" in failed.message) == ("Failed", True), failed.message
        assert {node.name: node.starts for node in cluster.servers} == starts

    run(version, scenario, prepare=create_with_s3)


def test_a_server_that_had_not_joined_yet_does_not_block_a_restore() -> None:
    """With this seed, the last server is lost when its replacement has the plan to join it. No server can be joined
    then, which the tasks before the restore must not wait for."""

    async def scenario(cluster: OperatedCluster) -> None:
        await cluster.write("before")
        snapshot = await saved_in_s3(cluster)
        await lose_all_servers(cluster)
        await cluster.simulation.sim.world.until(partial(_has_new_servers, cluster), within=HOUR)
        secrets = [PlanSecret(each) for each in cluster.simulation.invariants.objects[PLAN_SECRET].values()]
        joining = [plan for plan in secrets if plan.is_etcd and plan.annotations.get(JOINED_TO)]
        assert [plan.annotations.get(JOIN_URL) for plan in joining] == [None]
        restored = await cluster.run(operations.RESTORE, name=snapshot["metadata"]["name"])
        assert restored.phase == "Finished", restored.message
        assert await cluster.has("before")

    run("v1.34.1+k3s1", scenario, prepare=create_with_s3, seed=8)


async def _has_new_servers(cluster: OperatedCluster) -> bool:
    nodes = cluster.simulation.nodes
    return len(nodes) == cluster.simulation.desired.machines and all(node.powered for node in nodes)


def _truncate(cluster: OperatedCluster) -> None:
    cluster.simulation.sim.context.s3.truncates = True


def _refuse(cluster: OperatedCluster) -> None:
    cluster.simulation.sim.context.s3.refuses = True


@pytest.mark.parametrize(("fault", "cause"), [(_truncate, "is truncated"), (_refuse, "connection refused")])
@pytest.mark.parametrize("version", ALL_VERSIONS[2:])
def test_a_snapshot_that_cannot_be_read_stops_nothing(version: str, fault: Any, cause: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        snapshot = await saved_in_s3(cluster)
        await cluster.write("after")
        starts = {node.name: node.starts for node in cluster.servers}
        fault(cluster)
        failed = await cluster.run(operations.RESTORE, name=snapshot["metadata"]["name"])
        assert (failed.phase, cause in failed.message) == ("Failed", True), failed.message
        assert await cluster.has("after")
        assert {node.name: node.starts for node in cluster.servers} == starts

    run(version, scenario, servers=servers_of(version), prepare=create_with_s3)


@pytest.mark.parametrize("version", ALL_VERSIONS[2:])
def test_a_restore_that_fails_after_the_check_starts_the_servers_again(version: str) -> None:
    """The bucket breaks when all servers are stopped."""

    async def scenario(cluster: OperatedCluster) -> None:
        snapshot = await saved_in_s3(cluster)
        await cluster.write("after")
        simulation = cluster.simulation
        await simulation.sim.edit(
            {"rkeConfig": {operations.RESTORE: {"generation": 1, "name": snapshot["metadata"]["name"]}}}
        )

        async def are_stopped() -> bool:
            return not any(node.running for node in cluster.servers)

        await simulation.sim.world.until(are_stopped, within=HOUR)
        _truncate(cluster)
        failed = await cluster.run(operations.RESTORE, name=snapshot["metadata"]["name"])
        assert (failed.phase, "is truncated" in failed.message) == ("Failed", True), failed.message
        assert await cluster.has("after")
        assert all(node.running for node in simulation.nodes)

    run(version, scenario, servers=servers_of(version), prepare=create_with_s3)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_restore_that_failed_on_a_new_server_can_be_requested_again(version: str) -> None:
    async def scenario(cluster: OperatedCluster) -> None:
        await cluster.write("before")
        snapshot = await saved_in_s3(cluster)
        await lose_all_servers(cluster)
        s3 = cluster.simulation.sim.context.s3
        s3.truncates = True
        failed = await cluster.run(operations.RESTORE, settles=False, name=snapshot["metadata"]["name"])
        assert failed.phase == "Failed"
        s3.truncates = False
        name = snapshot["metadata"]["name"]
        restored = await cluster.run(operations.RESTORE, generation=2, name=name)
        assert restored.phase == "Finished", restored.message
        assert await cluster.has("before")

    run(version, scenario, servers=servers_of(version), prepare=create_with_s3)
