"""A restore stops all servers, restores on the one that has the file, and lets the others join it again."""

from __future__ import annotations

import asyncio

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.rke import names, operations
from herder.api.rke.kinds import ETCD_SNAPSHOT
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.writes import owner_reference
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from tests.support.builders import new_manifest
from tests.unit.controllers.planner.operations.test_operations import Agents, create, run
from tests.unit.controllers.planner.simulated_cluster import NAME, NAMESPACE, SERVER_ROLES, SimulatedCluster

SERVERS = ("server-0", "server-1", "server-2")
TASKS = (operations.STOP_SERVICES, operations.RESTORE_SNAPSHOT, operations.DROP_DATA)


async def create_snapshot(
    cluster: SimulatedCluster, name: str = "before", machine: str = "server-1", file_name: str = ""
) -> None:
    """A snapshot file on a machine, or in S3 if none is named."""
    owner = [owner_reference(MACHINE, await cluster.machine(machine), controller=False)] if machine else []
    obj = new_manifest(ETCD_SNAPSHOT, name, NAMESPACE, metadata={"ownerReferences": owner}, spec={"clusterName": NAME})
    file = {"name": file_name or f"file-of-{name}", "nodeName": machine or "s3", "status": "successful"}
    await cluster.client.create(ETCD_SNAPSHOT.resource, obj | {"snapshotFile": file}, namespace=NAMESPACE)
    await asyncio.sleep(5)  # until controllers see it


def instructions_of(plan: PlanSecret) -> list[str]:
    return [each.name for each in plan.plan.instructions] if plan.plan else []


class Witness(Agents):
    """Records the instructions of tasks too."""

    def __init__(self, fails: str = "") -> None:
        super().__init__(lambda plan, _count: bool(fails) and fails in instructions_of(plan))
        self.tasks: list[tuple[str, str]] = []

    def __call__(self, plan: PlanSecret) -> bool:
        tasks = [name for name in instructions_of(plan) if name in operations.TASK_INSTRUCTIONS]
        machine = plan.labels[names.MACHINE_NAME]
        self.tasks += [(machine, task) for task in tasks or ["plan"]]
        return super().__call__(plan)

    def positions(self, task: str) -> dict[int, str]:
        """The machines that ran a task, by the position in the order of all tasks."""
        return {index: machine for index, (machine, each) in enumerate(self.tasks) if each == task}


async def restore_in_place(seed: int, faults: Faults) -> None:
    witness = Witness()
    async with SimulatedCluster(seed, faults=faults, answer=witness) as cluster:
        await create(cluster)
        await create_snapshot(cluster)
        assert (await cluster.plan("server-0")).is_init
        witness.tasks.clear()
        status = await run(cluster, operations.RESTORE, {"generation": 1, "name": "before"})
        assert status["operation"]["phase"] == "Finished", status["operation"]
        assert (status["etcdSnapshotRestorePhase"], status["configGeneration"]) == ("Finished", 1)
        stops, restores, drops = map(witness.positions, TASKS)
        assert set(stops.values()) == set(SERVERS)
        assert set(restores.values()) == {"server-1"}
        assert set(drops.values()) == {"server-0", "server-2"}
        assert max(stops) < min(restores) < min(drops)
        plans = {name: await cluster.plan(name) for name in SERVERS}
        assert [name for name, plan in plans.items() if plan.is_init] == ["server-1"]
        assert plans["server-0"].annotations[names.JOINED_TO] == plans["server-1"].annotations[names.JOIN_URL]
        assert not any(operations.task_instructions(plan.plan) for plan in plans.values())


@pytest.mark.parametrize(("seed", "faults"), [(1, NONE), (2, ROUGH), (3, ROUGH)])
def test_a_snapshot_is_restored_in_place_on_the_machine_that_has_it(seed: int, faults: Faults) -> None:
    loop.run(restore_in_place(seed, faults))


def test_a_restore_that_fails_starts_all_servers_again() -> None:
    async def scenario() -> None:
        witness = Witness(fails=operations.RESTORE_SNAPSHOT)
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            witness.tasks.clear()
            status = await run(cluster, operations.RESTORE, {"generation": 1, "name": "before"})
            assert status["operation"]["phase"] == status["etcdSnapshotRestorePhase"] == "Failed"
            assert "machine server-1:" in status["operation"]["message"]
            started = {machine for machine, task in witness.tasks if task == operations.START_SERVICES}
            assert started == set(SERVERS)
            assert not any(task == operations.DROP_DATA for _, task in witness.tasks)
            assert "configGeneration" not in status

    loop.run(scenario())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch", 'snapshot "nosuch" does not exist'),
        ("packed.zip", "is compressed"),
        ("elsewhere", "invalid file name"),
    ],
)
def test_a_restore_is_refused_before_anything_is_stopped(name: str, message: str) -> None:
    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            await create_snapshot(cluster, "packed.zip")
            await create_snapshot(cluster, "elsewhere", file_name="../../../../../tmp/planted")
            witness.tasks.clear()
            status = await run(cluster, operations.RESTORE, {"generation": 1, "name": name})
            assert message in status["operation"]["message"]
            assert witness.tasks == []

    loop.run(scenario())


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("snapshot", 'snapshot "before" does not exist'),
        ("machine", "machine server-1, which acts for the others, is deleted"),
    ],
)
def test_a_restore_that_lost_its_snapshot_starts_all_servers_with_their_data(lost: str, message: str) -> None:
    """Otherwise the others would drop their data and join a server that has restored nothing."""

    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            witness.tasks.clear()
            await cluster.edit(etcdSnapshotRestore={"generation": 1, "name": "before"})
            await cluster.world.until(lambda: _is_in_phase(cluster, "Shutdown"))
            if lost == "snapshot":
                await cluster.client.delete(ETCD_SNAPSHOT.resource, "before", namespace=NAMESPACE)
            else:
                await cluster.start_deletion("server-1")
            await cluster.world.until(lambda: _is_in_phase(cluster, "Failed"))
            assert message in (await cluster.control_plane())["status"]["operation"]["message"]
            started = {machine for machine, task in witness.tasks if task == operations.START_SERVICES}
            assert started == set(SERVERS) - ({"server-1"} if lost == "machine" else set())
            done = {task for _, task in witness.tasks}
            assert not done & {operations.RESTORE_SNAPSHOT, operations.DROP_DATA}

    loop.run(scenario())


def test_no_server_drops_its_data_once_the_restored_one_is_deleted() -> None:
    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            witness.tasks.clear()
            await cluster.edit(etcdSnapshotRestore={"generation": 1, "name": "before"})
            await cluster.world.until(lambda: _is_in_phase(cluster, "InitialRestartCluster"))
            await cluster.start_deletion("server-1")
            await cluster.world.until(lambda: _is_in_phase(cluster, "Failed"))
            assert "server-1" in (await cluster.control_plane())["status"]["operation"]["message"]
            assert not any(task == operations.DROP_DATA for _, task in witness.tasks)
            await cluster.finish_deletion("server-1")
            witness.tasks.clear()
            await cluster.world.until(cluster.is_ready)
            assert {machine for machine, _ in witness.tasks} >= {"server-0", "server-2"}  # a new plan restarts them

    loop.run(scenario())


async def _is_in_phase(cluster: SimulatedCluster, phase: str) -> bool:
    run = operations.Run.of(await cluster.control_plane())
    return run is not None and run.phase == phase


def test_a_cluster_without_any_of_its_etcd_machines_is_restored_on_a_new_one_from_s3() -> None:
    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster, "in-s3", machine="")
            for name in SERVERS:
                await cluster.start_deletion(name)
            for name in SERVERS:
                await cluster.finish_deletion(name)
            await cluster.add("new", SERVER_ROLES)
            await cluster.world.until(lambda: _message_contains(cluster, "Restoration from etcd snapshot is required"))
            witness.tasks.clear()
            status = await run(cluster, operations.RESTORE, {"generation": 1, "name": "in-s3"})
            assert status["operation"]["phase"] == "Finished", status["operation"]
            assert witness.tasks[:3] == [
                ("new", operations.RESTORE_SNAPSHOT),
                ("new", operations.COMMIT_RESTORE),
                ("new", operations.DELETE_NODES),
            ]
            assert (await cluster.plan("new")).is_init

    loop.run(scenario())


async def _message_contains(cluster: SimulatedCluster, text: str) -> bool:
    return text in await cluster.message()
