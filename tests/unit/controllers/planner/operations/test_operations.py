"""Operations run once, in phases that are stored first, and leave every machine with the plan that it had."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from herder.api.rke import names, operations
from herder.api.rke.kinds import ETCD_SNAPSHOT, TOKENS_SECRET
from herder.api.rke.node.plan_secret import MAX_TAIL, PlanSecret
from herder.controllers.planner.operations.engine import AUTOMATIC, OPERATIONS
from herder.controllers.planner.operations.failures import MAX_CAUSE
from herder.controllers.planner.operations.interface import Operation
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from tests.support.builders import new_manifest
from tests.unit.controllers.planner.simulated_cluster import (
    ALL_ROLES,
    NAME,
    NAMESPACE,
    SERVER_ROLES,
    WORKER_ROLES,
    SimulatedCluster,
)

REQUESTS: dict[str, dict[str, Any]] = {
    operations.SNAPSHOT: {"generation": 1},
    operations.CERTIFICATES: {"generation": 1, "services": ["api-server"]},
    operations.ENCRYPTION_KEYS: {"generation": 1},
}
ENDS = {
    (operations.SNAPSHOT, "Finished"),
    (operations.CERTIFICATES, "Finished"),
    (operations.ENCRYPTION_KEYS, "Done"),
}
MACHINES = ("server-0", "server-1", "server-2", "worker-0", "worker-1")


class Agents:
    """Records which tasks agents run, and lets some fail."""

    def __init__(self, fails: Callable[[PlanSecret, int], bool] = lambda _plan, _count: False) -> None:
        self.ran: list[tuple[str, str]] = []  # machine and mark, in order
        self._fails = fails

    def __call__(self, plan: PlanSecret) -> bool:
        mark = plan.annotations.get(names.PLAN_TASK, "")
        if not mark:
            return True
        self.ran.append((plan.labels[names.MACHINE_NAME], mark))
        return not self._fails(plan, len(self.ran))


async def create(cluster: SimulatedCluster) -> dict[str, bytes]:
    """A cluster of three servers and two workers; returns the plan of each machine."""
    await cluster.create()
    for machine in MACHINES:
        await cluster.add(machine, WORKER_ROLES if machine.startswith("worker") else SERVER_ROLES)
    await cluster.world.until(cluster.is_ready)
    return {machine: (await cluster.plan(machine)).plan_bytes for machine in MACHINES}


async def run(cluster: SimulatedCluster, kind: str, request: dict[str, Any], *, ready: bool = True) -> dict[str, Any]:
    """Request an operation and wait until it has ended, and the cluster is ready; returns the status."""
    await cluster.edit(**{kind: request})

    async def has_ended() -> bool:
        found = operations.Run.of(await cluster.control_plane())
        return found is not None and found.generation == request["generation"] and not found.is_active

    await cluster.world.until(has_ended, within=3 * 3600.0)
    if ready:
        await cluster.world.until(cluster.is_ready)
    status: dict[str, Any] = (await cluster.control_plane())["status"]
    return status


async def run_every_operation(seed: int, faults: Faults) -> None:
    agents = Agents()
    async with SimulatedCluster(seed, faults=faults, answer=agents) as cluster:
        before = await create(cluster)
        for kind, request in REQUESTS.items():
            status = await run(cluster, kind, request)
            assert (status["operation"]["kind"], status["operation"]["phase"]) in ENDS
        assert len(agents.ran) == len(set(agents.ran))
        assert before == {machine: (await cluster.plan(machine)).plan_bytes for machine in MACHINES}


@pytest.mark.parametrize(("seed", "faults"), [(1, NONE), (2, ROUGH), (3, ROUGH)])
def test_every_operation_runs_once_and_leaves_the_plans_as_they_were(seed: int, faults: Faults) -> None:
    loop.run(run_every_operation(seed, faults))


def test_snapshots_are_saved_on_all_etcd_machines_at_the_same_time() -> None:
    async def scenario() -> None:
        agents = Agents()
        async with SimulatedCluster(answer=agents) as cluster:
            await create(cluster)
            cluster.max_concurrent = 0
            status = await run(cluster, operations.SNAPSHOT, {"generation": 7})
            assert cluster.max_concurrent == 3
            assert sorted(machine for machine, _ in agents.ran) == ["server-0", "server-1", "server-2"]
            assert status["etcdSnapshotCreate"] == {"generation": 7}
            assert status["etcdSnapshotCreatePhase"] == "Finished"

    loop.run(scenario())


def test_certificates_are_rotated_one_machine_at_a_time_and_workers_last() -> None:
    async def scenario() -> None:
        agents = Agents()
        async with SimulatedCluster(answer=agents) as cluster:
            await create(cluster)
            cluster.max_concurrent = 0
            status = await run(cluster, operations.CERTIFICATES, {"generation": 1})
            assert [machine for machine, _ in agents.ran] == list(MACHINES)
            assert status["certificateRotationGeneration"] == 1

    loop.run(scenario())


def test_keys_are_rotated_by_one_server_and_loaded_by_all_after_each_step() -> None:
    async def scenario() -> None:
        agents = Agents()
        async with SimulatedCluster(answer=agents) as cluster:
            await create(cluster)
            status = await run(cluster, operations.ENCRYPTION_KEYS, {"generation": 1})
            phases = [(mark.split("/")[1], machine) for machine, mark in agents.ran]
            restarts = ["server-0", "server-1", "server-2"]
            assert phases == [
                entry
                for step, restart in (
                    ("Prepare", "PostPrepareRestart"),
                    ("Rotate", "PostRotateRestart"),
                    ("Reencrypt", "PostReencryptRestart"),
                )
                for entry in [(step, "server-0"), *((restart, machine) for machine in restarts)]
            ]
            assert (status["rotateEncryptionKeysPhase"], status["rotateEncryptionKeysLeader"]) == ("Done", "server-0")

    loop.run(scenario())


def test_a_failed_task_is_retried_with_another_plan() -> None:
    async def scenario() -> None:
        agents = Agents(fails=lambda _plan, count: count == 1)
        async with SimulatedCluster(answer=agents) as cluster:
            await create(cluster)
            status = await run(cluster, operations.SNAPSHOT, {"generation": 1})
            assert status["operation"]["phase"] == "Finished"
            attempts = sorted(mark.rpartition("/")[2] for _, mark in agents.ran)
            assert attempts == ["1", "1", "1", "2"]  # machines that have finished do not repeat their task

    loop.run(scenario())


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("cannot join with ", "", "cannot join with ***"),
        ("x" * (MAX_CAUSE - 10) + " ", "", "x ***"),
        ("", " " + "y" * (MAX_TAIL - 10), "y"),
    ],
    ids=["whole", "cut at the end", "cut at the beginning"],
)
def test_a_join_token_in_the_output_of_a_task_is_redacted(before: str, after: str, shown: str) -> None:
    async def scenario() -> None:
        agents = Agents(fails=lambda _plan, _count: True)
        async with SimulatedCluster(answer=agents) as cluster:
            await create(cluster)
            tokens = await cluster.client.get(TOKENS_SECRET.resource, names.tokens_secret(NAME), namespace=NAMESPACE)
            token = base64.b64decode(tokens["data"]["serverToken"]).decode()
            cluster.failure_output = f"{before}{token}{after}"
            status = await run(cluster, operations.SNAPSHOT, {"generation": 1})
            assert shown in status["operation"]["message"]
            visible = str(await cluster.control_plane()) + str(await cluster.machine("server-0"))
            assert not any(part in visible for part in (token[:8], token[-8:]))

    loop.run(scenario())


def test_an_operation_that_fails_says_why_and_gives_the_machines_their_plans_again() -> None:
    async def scenario() -> None:
        agents = Agents(fails=lambda plan, _count: plan.labels[names.MACHINE_NAME] == "server-1")
        async with SimulatedCluster(answer=agents) as cluster:
            before = await create(cluster)
            status = await run(cluster, operations.CERTIFICATES, {"generation": 1})
            assert status["operation"]["phase"] == "Failed"
            assert "machine server-1:" in status["operation"]["message"]
            assert "no space left" in status["operation"]["message"]
            assert "certificateRotationGeneration" not in status
            assert not any(machine == "server-2" for machine, _ in agents.ran)
            assert before == {machine: (await cluster.plan(machine)).plan_bytes for machine in MACHINES}
            tried = len(agents.ran)
            again = await run(cluster, operations.CERTIFICATES, {"generation": 2})
            assert again["operation"]["phase"] == "Failed"
            assert len(agents.ran) > tried

    loop.run(scenario())


# --- snapshots that servers report ------------------------------------------------------------------------------------

QUOTA = Kind("", "v1", "ResourceQuota", "resourcequotas")


async def run_snapshot(*reported: Object, existing: Object | None = None, quota: bool = False) -> tuple[Object, Object]:
    """Take a snapshot on one server, which reports these; returns `status.operation`, and the files by name."""
    async with SimulatedCluster() as cluster:
        await cluster.create()
        await cluster.add("server-0", ALL_ROLES)
        await cluster.world.until(cluster.is_ready)
        if existing is not None:
            await cluster.client.create(ETCD_SNAPSHOT.resource, existing, namespace=NAMESPACE)
        if quota:
            hard = {"hard": {"count/etcdsnapshots.rke.cattle.io": "0"}}
            limited = new_manifest(QUOTA, "none", NAMESPACE, spec=hard, status=hard)
            await cluster.client.create(QUOTA.resource, limited, namespace=NAMESPACE)
        await asyncio.sleep(60)  # until controllers see them
        cluster.outputs = {operations.SAVE_SNAPSHOT: msgspec.json.encode({"snapshots": reported})}
        status = await run(cluster, operations.SNAPSHOT, {"generation": 1})
        found = (await cluster.client.list_all(ETCD_SNAPSHOT.resource, namespace=NAMESPACE)).items
        return status["operation"], {each["metadata"]["name"]: each["snapshotFile"] for each in found}


def test_every_name_of_a_file_can_be_recorded() -> None:
    """The API server would reject the object, in every pass, and the operation would never end."""
    files = ["my_snapshot", "a..b", "a.", "A-.-b", "a" * 200, f"{'a' * 38}..{'b' * 60}"]
    operation, found = loop.run(run_snapshot(*({"name": name} for name in files)))
    assert operation["phase"] == "Finished"
    assert sorted(each["name"] for each in found.values()) == sorted(files)


REPORTED: dict[str, tuple[Object, Object]] = {
    "size": ({"size": 10**30}, {"size": 2**63 - 1}),
    "compact-time": ({"createdAt": "20260101T000000+0100"}, {"createdAt": "2025-12-31T23:00:00Z"}),
    "time-with-space": ({"createdAt": "2026-01-01 00:00:00+00:00"}, {"createdAt": "2026-01-01T00:00:00Z"}),
    "large-metadata": (
        {"metadata": {"a": "x" * 2_500_000}},
        {"message": "its metadata is too large to be recorded"},
    ),
}
"""By file: what a server reports, and what is recorded."""


def test_every_reported_value_can_be_recorded() -> None:
    operation, found = loop.run(run_snapshot(*({"name": name, **values} for name, (values, _) in REPORTED.items())))
    assert operation["phase"] == "Finished"
    common = {"nodeName": "server-0", "size": 0, "status": "successful"}
    assert {each["name"]: each for each in found.values()} == {
        name: {"name": name, **common, **recorded} for name, (_, recorded) in REPORTED.items()
    }


def test_a_snapshot_whose_name_is_taken_does_not_stop_the_operation() -> None:
    """Rancher gives its objects the same names."""
    _, found = loop.run(run_snapshot({"name": "a"}))
    (name,) = found
    taken = new_manifest(ETCD_SNAPSHOT, name, NAMESPACE, spec={"clusterName": NAME}, snapshotFile={"name": "other"})
    operation, found = loop.run(run_snapshot({"name": "a"}, existing=taken))
    assert operation["phase"] == "Finished"
    assert found[name] == {"name": "other"}


def test_an_operation_fails_if_its_snapshots_cannot_be_recorded() -> None:
    operation, found = loop.run(run_snapshot({"name": "a"}, quota=True))
    assert operation["phase"] == "Failed"
    assert "Failed to create ETCDSnapshot fleet-default/demo-local-a-" in operation["message"]
    assert "exceeded quota" in operation["message"]
    assert found == {}


@pytest.mark.parametrize("operation", [*OPERATIONS, *AUTOMATIC], ids=lambda each: each.kind)
def test_progress_counts_the_phases_in_their_order(operation: Operation) -> None:
    phases = [each.name for each in operation.phases if each.name != operations.ABORT_PHASE]
    assert operations.phases_of(operation.kind) == phases
