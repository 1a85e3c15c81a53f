"""Operations that users abort, whose leader disappears, or that another request follows."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.conditions import find
from herder.api.rke import names, operations
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operation_history import MAX_ENTRIES, extended_history
from herder.engine.meta.kinds import Object
from herder.sim import loop
from tests.support.builders import NOW
from tests.unit.controllers.planner.operations.test_operations import create, run
from tests.unit.controllers.planner.operations.test_restore import SERVERS, Witness, create_snapshot
from tests.unit.controllers.planner.simulated_cluster import NAME, NAMESPACE, SimulatedCluster

RESTORE: dict[str, Any] = {"generation": 1, "name": "before"}


async def until_phase(cluster: SimulatedCluster, *phases: str) -> operations.Run:
    async def reached() -> bool:
        found = operations.Run.of(await cluster.control_plane())
        return found is not None and found.phase in phases

    await cluster.world.until(reached)
    found = operations.Run.of(await cluster.control_plane())
    assert found is not None
    return found


async def abort(cluster: SimulatedCluster, id_: str) -> None:
    patch = {"metadata": {"annotations": {names.ABORT_OPERATION: id_}}}
    await cluster.client.patch(CONTROL_PLANE.resource, NAME, patch, namespace=NAMESPACE)


async def condition_of(cluster: SimulatedCluster) -> Object:
    return find(await cluster.control_plane(), "OperationAbortable") or {}


@pytest.mark.parametrize("phase", ["Started", "Snapshot", "Shutdown"])
def test_a_restore_is_aborted_before_the_point_of_no_return(phase: str) -> None:
    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            await cluster.edit(etcdSnapshotRestore=RESTORE)
            found = await until_phase(cluster, phase)
            condition = await condition_of(cluster)
            assert (condition["status"], condition["reason"]) == ("True", "BeforePointOfNoReturn")
            assert found.id in condition["message"]
            await abort(cluster, found.id)
            ended = await until_phase(cluster, "Failed", "Finished")
            assert (ended.phase, ended.message) == ("Failed", f"phase {phase}: aborted on request")
            await cluster.world.until(cluster.is_ready)
            assert not witness.positions(operations.RESTORE_SNAPSHOT)
            started = set(witness.positions(operations.START_SERVICES).values())
            assert started == (set(SERVERS) if phase == "Shutdown" else set())
            assert (await condition_of(cluster))["reason"] == "NoOperation"

    loop.run(scenario())


def test_an_abort_after_the_point_of_no_return_or_of_another_operation_is_refused() -> None:
    async def scenario() -> None:
        async with SimulatedCluster(answer=Witness()) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            await cluster.edit(etcdSnapshotRestore=RESTORE)
            await until_phase(cluster, "Shutdown")
            await abort(cluster, "etcdSnapshotRestore-0-1")
            found = await until_phase(cluster, "Restore", "InitialRestartCluster")
            await abort(cluster, found.id)

            async def is_reported() -> bool:
                condition = await condition_of(cluster)
                return condition["reason"] == "PointOfNoReturn" and "too late" in condition["message"]

            await cluster.world.until(is_reported)
            ended = await until_phase(cluster, "Failed", "Finished")
            assert ended.phase == "Finished", ended.message

    loop.run(scenario())


def test_a_rotation_of_certificates_is_aborted_between_machines() -> None:
    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            witness.tasks.clear()
            await cluster.edit(rotateCertificates={"generation": 1})
            found = await until_phase(cluster, "Rotate")
            await cluster.world.until(lambda: _has_rotated(witness))
            await abort(cluster, found.id)
            ended = await until_phase(cluster, "Failed", "Finished")
            assert ended.message == "phase Rotate: aborted on request"
            await cluster.world.until(cluster.is_ready)
            assert len(witness.positions(operations.ROTATE_CERTIFICATES)) < len(SERVERS)

    loop.run(scenario())


async def _has_rotated(witness: Witness) -> bool:
    return bool(witness.positions(operations.ROTATE_CERTIFICATES))


@pytest.mark.parametrize("phase", ["Shutdown", "Restore", "InitialRestartCluster"])
def test_a_leader_that_is_deleted_fails_the_phase_at_once_and_a_new_request_works(phase: str) -> None:
    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            await create_snapshot(cluster, "in-s3", machine="")
            await cluster.edit(etcdSnapshotRestore=RESTORE)
            found = await until_phase(cluster, phase)
            assert found.leader == "server-1"
            await cluster.start_deletion("server-1")
            ended = await until_phase(cluster, "Failed", "Finished")
            assert (ended.phase, ended.message) == (
                "Failed",
                f"phase {phase}: machine server-1, which acts for the others, is deleted; request the operation again",
            )
            dropped = set(witness.positions(operations.DROP_DATA).values())
            assert dropped == set(), "the others keep their data"
            await cluster.finish_deletion("server-1")
            status = await run(cluster, operations.RESTORE, {"generation": 2, "name": "in-s3"})
            assert status["operation"]["phase"] == "Finished", status["operation"]

    loop.run(scenario())


def test_a_leader_whose_agent_is_silent_fails_the_restore_before_its_deadline() -> None:
    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            cluster.silent = lambda plan: (
                plan.labels[names.MACHINE_NAME] == "server-1"
                and operations.RESTORE_SNAPSHOT in operations.task_instructions(plan.plan)
            )
            began = cluster.world.now()
            status = await run(cluster, operations.RESTORE, RESTORE)
            assert status["operation"]["phase"] == "Failed"
            assert "machine server-1: waiting for plan to be applied (no report" in status["operation"]["message"]
            assert "repair or delete it" in status["operation"]["message"]
            assert (cluster.world.now() - began).total_seconds() < 20 * 60
            assert operations.task_instructions((await cluster.plan("server-1")).plan) == set()

    loop.run(scenario())


def test_a_request_during_a_run_starts_another_run_afterwards() -> None:
    async def scenario() -> None:
        witness = Witness()
        async with SimulatedCluster(answer=witness) as cluster:
            await create(cluster)
            await create_snapshot(cluster)
            await create_snapshot(cluster, "later", machine="server-2")
            await cluster.edit(etcdSnapshotRestore=RESTORE)
            await until_phase(cluster, "Shutdown")
            status = await run(cluster, operations.RESTORE, {"generation": 2, "name": "later"})
            assert status["operation"]["phase"] == "Finished"
            assert list(witness.positions(operations.RESTORE_SNAPSHOT).values()) == ["server-1", "server-2"]
            kept = [(each["generation"], each["phase"]) for each in status["operationHistory"]]
            assert kept == [(1, "Finished"), (2, "Finished")]
            assert all(seconds >= 0 for each in status["operationHistory"] for seconds in each["timings"].values())
            assert {"Started", "Shutdown", "Restore"} <= status["operationHistory"][0]["timings"].keys()

    loop.run(scenario())


def test_the_history_keeps_the_last_restore_that_can_be_undone() -> None:
    """`herder rollback cluster` finds it there, however many snapshots have been taken since."""
    inverse = {"kind": operations.RESTORE, "name": "old"}
    ended = [
        operations.Run("1", operations.RESTORE, "Finished", 1, NOW, inverse={**inverse, "name": "older"}),
        operations.Run("2", operations.RESTORE, "Finished", 2, NOW, inverse=inverse),
        operations.Run("3", operations.RESTORE, "Failed", 3, NOW, inverse={"message": "it cannot be undone"}),
        *(operations.Run(f"{each}", operations.SCHEDULED_SNAPSHOT, "Finished", 0, NOW) for each in range(4, 30)),
    ]
    status: dict[str, Any] = {}
    for each in ended:
        status = {"operationHistory": extended_history(status, each, NOW)}
        assert len(status["operationHistory"]) <= MAX_ENTRIES
    assert [entry["id"] for entry in status["operationHistory"]] == ["2", *(str(each) for each in range(21, 30))]
    assert status["operationHistory"][0]["inverse"] == inverse


def test_the_history_keeps_the_last_restore_that_has_replaced_data() -> None:
    """Until its rights are compared, members cannot use the cluster, however many snapshots have been taken since."""
    inverse, replaced = {"kind": operations.RESTORE, "name": "old"}, {"Shutdown": 1}
    ended = [
        operations.Run("1", operations.RESTORE, "Finished", 1, NOW, inverse=inverse, timings=replaced),
        operations.Run("2", operations.RESTORE, "Finished", 2, NOW, timings=replaced),
        operations.Run("3", operations.RESTORE, "Failed", 3, NOW),
        *(operations.Run(f"{each}", operations.SCHEDULED_SNAPSHOT, "Finished", 0, NOW) for each in range(4, 30)),
    ]
    status: dict[str, Any] = {}
    for each in ended:
        status = {"operationHistory": extended_history(status, each, NOW)}
        assert len(status["operationHistory"]) <= MAX_ENTRIES
    assert [entry["id"] for entry in status["operationHistory"]] == ["1", "2", *(str(each) for each in range(22, 30))]


def test_the_history_of_operations_is_bounded() -> None:
    async def scenario() -> None:
        async with SimulatedCluster() as cluster:
            await create(cluster)
            for generation in range(1, 13):
                status = await run(cluster, operations.SNAPSHOT, {"generation": generation})
            assert [each["generation"] for each in status["operationHistory"]] == list(range(3, 13))

    loop.run(scenario())
