"""Simulated clusters start, change in place and survive faults, with agents that answer as real ones do."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from herder.api.guards import GUARDS
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.node.plan_secret import PlanSecret
from herder.engine.runtime.decision import Patch, Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.view import View
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from tests.unit.controllers.planner.simulated_cluster import (
    NAME,
    NAMESPACE,
    SERVER_ROLES,
    WORKER_ROLES,
    SimulatedCluster,
)

CONFIG = "/etc/rancher/k3s/config.yaml.d/50-rancher.yaml"


def config_of(plan: PlanSecret) -> dict[str, Any]:
    assert plan.plan is not None
    found: dict[str, Any] = json.loads(next(file for file in plan.plan.files if file.path == CONFIG).decoded)
    return found


# --- bootstrap ------------------------------------------------------------------------------------------------------


async def create_one_server_and_one_worker() -> None:
    async with SimulatedCluster() as cluster:
        await cluster.create()
        await cluster.add("server", SERVER_ROLES)
        await cluster.add("worker", WORKER_ROLES)
        await cluster.world.until(cluster.is_ready)
        assert cluster.delivered == ["server", "worker"]
        server, worker = await cluster.plan("server"), await cluster.plan("worker")
        assert server.is_init
        assert config_of(server)["cluster-init"] is True
        assert config_of(worker)["server"] == "https://10.0.0.11:6443" == worker.annotations[names.JOINED_TO]
        control_plane = await cluster.control_plane()
        assert control_plane["spec"]["controlPlaneEndpoint"] == {"host": "10.0.0.11", "port": 6443}
        assert control_plane["status"]["initialization"]["controlPlaneInitialized"] is True
        for name in ("server", "worker"):
            conditions = {
                each["type"]: each["status"] for each in (await cluster.machine(name))["status"]["conditions"]
            }
            assert (conditions["Reconciled"], conditions["PlanApplied"]) == ("True", "True")


def test_one_server_and_one_worker_become_a_cluster() -> None:
    loop.run(create_one_server_and_one_worker())


async def create_cluster(cluster: SimulatedCluster, servers: int, workers: int, **spec: Any) -> None:
    await cluster.create(**spec)
    for number in range(servers):
        await cluster.add(f"server-{number}", SERVER_ROLES)
    for number in range(workers):
        await cluster.add(f"worker-{number}", WORKER_ROLES)
    await cluster.world.until(cluster.is_ready)


async def create_three_servers_and_two_workers(seed: int, faults: Faults) -> None:
    async with SimulatedCluster(seed, faults=faults) as cluster:
        await create_cluster(cluster, 3, 2)
        assert Counter(cluster.delivered) == Counter(
            [f"server-{n}" for n in range(3)] + [f"worker-{n}" for n in range(2)]
        )
        assert cluster.delivered[0] == "server-0"
        init_nodes = [n for n in range(3) if (await cluster.plan(f"server-{n}")).is_init]
        assert init_nodes == [0]
        for number in (1, 2):
            assert config_of(await cluster.plan(f"server-{number}"))["server"] == "https://10.0.0.11:6443"


def test_three_servers_and_two_workers_become_a_cluster_with_one_plan_each() -> None:
    loop.run(create_three_servers_and_two_workers(0, NONE))


@pytest.mark.parametrize("seed", range(1, 7))
def test_five_machines_become_a_cluster_despite_faults(seed: int) -> None:
    loop.run(create_three_servers_and_two_workers(seed, ROUGH))


# --- changes in place -----------------------------------------------------------------------------------------------


async def edit_a_value() -> None:
    async with SimulatedCluster() as cluster:
        await create_cluster(cluster, 3, 2)
        cluster.delivered.clear()
        cluster.max_concurrent = 0
        await cluster.edit(machineGlobalConfig={"kubelet-arg": ["max-pods=50"]})
        await cluster.world.until(cluster.is_ready)
        assert cluster.delivered[:3] == ["server-0", "server-1", "server-2"]
        assert set(cluster.delivered[3:]) == {"worker-0", "worker-1"}
        assert cluster.max_concurrent == 1
        assert config_of(await cluster.plan("worker-1"))["kubelet-arg"] == ["max-pods=50"]


def test_an_edited_value_reaches_all_machines_one_at_a_time() -> None:
    loop.run(edit_a_value())


async def roll_out_with_percentage() -> None:
    async with SimulatedCluster() as cluster:
        await create_cluster(cluster, 1, 4, upgradeStrategy={"workerConcurrency": "50%"})
        cluster.max_concurrent = 0
        await cluster.edit(provisionGeneration=1)
        await cluster.world.until(cluster.is_ready)
        assert cluster.max_concurrent == 2


def test_the_strategy_limits_how_many_workers_change_at_a_time() -> None:
    loop.run(roll_out_with_percentage())


async def edit_upgrade_strategy() -> None:
    async with SimulatedCluster() as cluster:
        await create_cluster(cluster, 1, 1)
        before = [(await cluster.plan(name)).secret["metadata"]["resourceVersion"] for name in ("server-0", "worker-0")]
        await cluster.edit(upgradeStrategy={"workerConcurrency": "3", "workerDrainOptions": {"enabled": True}})
        await cluster.world.until(cluster.is_ready)
        after = [(await cluster.plan(name)).secret["metadata"]["resourceVersion"] for name in ("server-0", "worker-0")]
        assert before == after


def test_an_edited_upgrade_strategy_changes_no_machine() -> None:
    loop.run(edit_upgrade_strategy())


async def edit_manifest() -> None:
    async with SimulatedCluster() as cluster:
        await create_cluster(cluster, 1, 1)
        before = (await cluster.plan("worker-0")).secret["metadata"]["resourceVersion"]
        await cluster.edit(additionalManifest="apiVersion: v1\nkind: ConfigMap\n")
        await cluster.world.until(cluster.is_ready)
        assert (await cluster.plan("worker-0")).secret["metadata"]["resourceVersion"] == before
        assert cluster.delivered.count("server-0") == 2


def test_configuration_of_servers_changes_no_plan_of_workers() -> None:
    loop.run(edit_manifest())


async def upgrade() -> None:
    async with SimulatedCluster() as cluster:
        await create_cluster(cluster, 1, 1)
        await cluster.edit(kubernetesVersion="v1.34.1+k3s1")
        await cluster.world.until(cluster.is_ready)
        for name in ("server-0", "worker-0"):
            assert (await cluster.machine(name))["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.1+k3s1"


def test_an_upgrade_is_complete_when_the_kubelets_report_the_version() -> None:
    loop.run(upgrade())


async def upgrade_skipping_minor_versions(version: str, first: str) -> None:
    async with SimulatedCluster() as cluster:
        await cluster.create(first)
        await cluster.add("server", SERVER_ROLES)
        await cluster.add("worker", WORKER_ROLES)
        await cluster.world.until(cluster.is_ready)
        await cluster.edit(kubernetesVersion=version)
        await asyncio.sleep(600)
        assert cluster.delivered == ["server", "worker"]
        assert "v1.34, v1.35" in await cluster.message()
        allowed = {"metadata": {"annotations": {"plan.herder.io/allow-version-skip": version}}}
        await cluster.client.patch(CONTROL_PLANE.resource, NAME, allowed, namespace=NAMESPACE)
        await cluster.world.until(cluster.is_ready)
        snapshot = ["server", "server"]  # before the upgrade: its task, then the plan of before
        assert cluster.delivered == ["server", "worker", *snapshot, "server", "worker"]


@pytest.mark.parametrize("build", ["k3s1", "rke2r1"])
def test_an_upgrade_that_skips_minor_versions_is_not_rolled_out(build: str) -> None:
    loop.run(upgrade_skipping_minor_versions(f"v1.36.3+{build}", f"v1.33.4+{build}"))


# --- deleted machines -----------------------------------------------------------------------------------------------


async def delete_init_node(seed: int, faults: Faults) -> None:
    async with SimulatedCluster(seed, faults=faults) as cluster:
        await create_cluster(cluster, 3, 2)
        first = (await cluster.plan("server-0")).annotations[names.JOIN_URL]
        await cluster.start_deletion("server-0")
        others = ("server-1", "server-2", "worker-0", "worker-1")

        async def others_have_left_it() -> bool:
            plans = [await cluster.plan(name) for name in others]
            settled = all(plan.in_sync and plan.healthy for plan in plans)
            return settled and all(plan.annotations[names.JOINED_TO] != first for plan in plans)

        await cluster.world.until(others_have_left_it)
        assert [(await cluster.plan(name)).is_init for name in others] == [True, False, False, False]
        assert cluster.delivered.count("server-0") == 1
        await cluster.finish_deletion("server-0")
        await cluster.world.until(cluster.is_ready)
        assert config_of(await cluster.plan("server-2"))["server"] == "https://10.0.0.12:6443"
        endpoint = (await cluster.control_plane())["spec"]["controlPlaneEndpoint"]
        assert endpoint["host"] == "10.0.0.12"


def test_machines_join_another_server_before_the_init_node_is_removed() -> None:
    loop.run(delete_init_node(0, NONE))


@pytest.mark.parametrize("seed", range(1, 4))
def test_machines_join_another_server_despite_faults(seed: int) -> None:
    loop.run(delete_init_node(seed, ROUGH))


async def replace_only_server() -> None:
    async with SimulatedCluster() as cluster:
        await create_cluster(cluster, 1, 1)
        await cluster.start_deletion("server-0")
        await cluster.add("server-1", SERVER_ROLES)

        async def has_taken_over() -> bool:
            new = await cluster.plan("server-1")
            return new.is_init and new.in_sync and "cluster-init" in config_of(new)

        await cluster.world.until(has_taken_over)
        assert cluster.delivered[:3] == ["server-0", "worker-0", "server-1"]


def test_a_replacement_of_the_only_server_joins_it_first() -> None:
    loop.run(replace_only_server())


async def lose_all_etcd_members() -> None:
    async with SimulatedCluster() as cluster:
        await create_cluster(cluster, 1, 1)
        await cluster.start_deletion("server-0")
        await cluster.finish_deletion("server-0")

        async def reports(text: str) -> bool:
            return text in await cluster.message()

        await cluster.world.until(lambda: reports("waiting for at least one control plane, etcd, and worker node"))
        await cluster.add("server-1", SERVER_ROLES)
        await cluster.world.until(lambda: reports("Restoration from etcd snapshot is required."))
        assert not (await cluster.plan("server-1")).has_plan
        conditions = {each["type"]: each["status"] for each in (await cluster.control_plane())["status"]["conditions"]}
        assert conditions["Stable"] == "False"


def test_no_new_etcd_cluster_is_started_when_all_members_are_lost() -> None:
    loop.run(lose_all_etcd_members())


# --- failures -------------------------------------------------------------------------------------------------------


async def fail_a_plan_twice() -> None:
    tries: list[int] = []

    def answer(plan: PlanSecret) -> bool:
        tries.append(plan.revision)
        return len(tries) > 2

    async with SimulatedCluster(answer=answer) as cluster:
        await cluster.create()
        await cluster.add("server", SERVER_ROLES)
        await cluster.add("worker", WORKER_ROLES)

        async def has_failed() -> bool:
            conditions = (await cluster.machine("server"))["status"]["conditions"]
            return any(each["type"] == "PlanApplied" and each["status"] == "False" for each in conditions)

        await cluster.world.until(has_failed)
        conditions = {each["type"]: each for each in (await cluster.machine("server"))["status"]["conditions"]}
        message = conditions["PlanApplied"]["message"]
        units = "rancher-system-agent.service and k3s.service"
        assert message.startswith(f"error applying plan -- check {units} logs on node for more information; ")
        assert 'instruction "install" failed; exit code 3; attempt 1, the next at ' in message
        assert message.endswith(": no space left")

        async def is_reported() -> bool:
            return await cluster.message() == "configuring bootstrap node(s) server: failure while applying plan"

        await cluster.world.until(is_reported)
        await cluster.world.until(cluster.is_ready)
        assert cluster.delivered.count("server") == 3
        statuses = {each["type"]: each["status"] for each in (await cluster.machine("server"))["status"]["conditions"]}
        assert statuses["PlanApplied"] == "True"


def test_a_failed_plan_is_retried_with_backoff_and_reported() -> None:
    loop.run(fail_a_plan_twice())


async def refuse_by_guard() -> None:
    refusing = [True]

    def refuse_worker(act: Action, _view: View, _before: Sequence[Action]) -> Refusal | None:
        if not refusing[0] or not isinstance(act, Patch) or act.ref.name != names.plan_secret("worker-0"):
            return None
        return Refusal("not-now", "worker-0 stays as it is") if "data" in act.patch else None

    async with SimulatedCluster(guards=(*GUARDS, refuse_worker)) as cluster:
        refusing[0] = False
        await create_cluster(cluster, 1, 1)
        refusing[0] = True
        await cluster.edit(provisionGeneration=1)

        async def is_reported() -> bool:
            return await cluster.message() == "refused: not-now: worker-0 stays as it is"

        await cluster.world.until(is_reported)
        assert not await cluster.is_ready()
        refusing[0] = False
        await cluster.world.until(cluster.is_ready)
        assert await cluster.message() == ""


def test_a_refusal_by_a_guard_is_reported_until_it_is_resolved() -> None:
    loop.run(refuse_by_guard())


async def edit_unknown_argument() -> None:
    async with SimulatedCluster() as cluster:
        await create_cluster(cluster, 1, 1)
        cluster.delivered.clear()
        await cluster.edit(machineGlobalConfig={"max-pods": "50"})

        async def is_reported() -> bool:
            return "max-pods" in await cluster.message()

        await cluster.world.until(is_reported)
        assert await cluster.message() == (
            "machineGlobalConfig.max-pods: k3s takes no such argument from a cluster's configuration; look for a "
            "misspelling, or remove it"
        )
        assert cluster.delivered == []
        await cluster.edit(machineGlobalConfig=None)
        await cluster.world.until(cluster.is_ready)


def test_an_unknown_argument_is_reported_and_changes_no_machine() -> None:
    loop.run(edit_unknown_argument())
