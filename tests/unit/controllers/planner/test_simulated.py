"""Clusters come up, change in place and survive faults, with agents that answer as real ones do."""

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
from tests.unit.controllers.planner.simulated import NAME, NAMESPACE, SERVER_ROLES, WORKER_ROLES, SimulatedCluster

CONFIG = "/etc/rancher/k3s/config.yaml.d/50-rancher.yaml"


def config_of(plan: PlanSecret) -> dict[str, Any]:
    assert plan.plan is not None
    found: dict[str, Any] = json.loads(next(file for file in plan.plan.files if file.path == CONFIG).decoded)
    return found


# --- coming up ------------------------------------------------------------------------------------------------------


async def one_server_and_one_worker() -> None:
    async with SimulatedCluster() as cluster:
        await cluster.make()
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
            told = {each["type"]: each["status"] for each in (await cluster.machine(name))["status"]["conditions"]}
            assert (told["Reconciled"], told["PlanApplied"]) == ("True", "True")


def test_one_server_and_one_worker_become_a_cluster() -> None:
    loop.run(one_server_and_one_worker())


async def brought_up(cluster: SimulatedCluster, servers: int, workers: int, **spec: Any) -> None:
    await cluster.make(**spec)
    for number in range(servers):
        await cluster.add(f"server-{number}", SERVER_ROLES)
    for number in range(workers):
        await cluster.add(f"worker-{number}", WORKER_ROLES)
    await cluster.world.until(cluster.is_ready)


async def three_servers_and_two_workers(seed: int, faults: Faults) -> None:
    async with SimulatedCluster(seed, faults=faults) as cluster:
        await brought_up(cluster, 3, 2)
        assert Counter(cluster.delivered) == Counter(
            [f"server-{n}" for n in range(3)] + [f"worker-{n}" for n in range(2)]
        )
        assert cluster.delivered[0] == "server-0"
        marked = [n for n in range(3) if (await cluster.plan(f"server-{n}")).is_init]
        assert marked == [0]
        for number in (1, 2):
            assert config_of(await cluster.plan(f"server-{number}"))["server"] == "https://10.0.0.11:6443"


def test_three_servers_and_two_workers_become_a_cluster_and_each_gets_one_plan() -> None:
    loop.run(three_servers_and_two_workers(0, NONE))


@pytest.mark.parametrize("seed", range(1, 7))
def test_they_do_so_whatever_goes_wrong_on_the_way(seed: int) -> None:
    loop.run(three_servers_and_two_workers(seed, ROUGH))


# --- changing in place ----------------------------------------------------------------------------------------------


async def an_edited_value() -> None:
    async with SimulatedCluster() as cluster:
        await brought_up(cluster, 3, 2)
        cluster.delivered.clear()
        cluster.at_once = 0
        await cluster.edit(machineGlobalConfig={"kubelet-arg": ["max-pods=50"]})
        await cluster.world.until(cluster.is_ready)
        assert cluster.delivered[:3] == ["server-0", "server-1", "server-2"]
        assert set(cluster.delivered[3:]) == {"worker-0", "worker-1"}
        assert cluster.at_once == 1
        assert config_of(await cluster.plan("worker-1"))["kubelet-arg"] == ["max-pods=50"]


def test_an_edited_value_reaches_all_machines_one_after_the_other() -> None:
    loop.run(an_edited_value())


async def workers_by_share() -> None:
    async with SimulatedCluster() as cluster:
        await brought_up(cluster, 1, 4, upgradeStrategy={"workerConcurrency": "50%"})
        cluster.at_once = 0
        await cluster.edit(provisionGeneration=1)
        await cluster.world.until(cluster.is_ready)
        assert cluster.at_once == 2


def test_workers_change_as_many_at_a_time_as_the_strategy_allows() -> None:
    loop.run(workers_by_share())


async def what_no_plan_depends_on() -> None:
    async with SimulatedCluster() as cluster:
        await brought_up(cluster, 1, 1)
        before = [(await cluster.plan(name)).secret["metadata"]["resourceVersion"] for name in ("server-0", "worker-0")]
        await cluster.edit(upgradeStrategy={"workerConcurrency": "3", "workerDrainOptions": {"enabled": True}})
        await cluster.world.until(cluster.is_ready)
        after = [(await cluster.plan(name)).secret["metadata"]["resourceVersion"] for name in ("server-0", "worker-0")]
        assert before == after


def test_an_edited_strategy_touches_no_machine() -> None:
    loop.run(what_no_plan_depends_on())


async def a_manifest() -> None:
    async with SimulatedCluster() as cluster:
        await brought_up(cluster, 1, 1)
        before = (await cluster.plan("worker-0")).secret["metadata"]["resourceVersion"]
        await cluster.edit(additionalManifest="apiVersion: v1\nkind: ConfigMap\n")
        await cluster.world.until(cluster.is_ready)
        assert (await cluster.plan("worker-0")).secret["metadata"]["resourceVersion"] == before
        assert cluster.delivered.count("server-0") == 2


def test_what_servers_alone_are_told_writes_to_no_worker() -> None:
    loop.run(a_manifest())


async def a_new_version() -> None:
    async with SimulatedCluster() as cluster:
        await brought_up(cluster, 1, 1)
        await cluster.edit(kubernetesVersion="v1.34.1+k3s1")
        await cluster.world.until(cluster.is_ready)
        for name in ("server-0", "worker-0"):
            assert (await cluster.machine(name))["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.1+k3s1"


def test_a_new_version_is_there_when_the_kubelets_say_so() -> None:
    loop.run(a_new_version())


async def a_version_that_skips_minors(version: str, first: str) -> None:
    async with SimulatedCluster() as cluster:
        await cluster.make(first)
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
        assert cluster.delivered == ["server", "worker"] * 2


@pytest.mark.parametrize("build", ["k3s1", "rke2r1"])
def test_a_version_that_skips_minors_is_not_rolled_out(build: str) -> None:
    loop.run(a_version_that_skips_minors(f"v1.36.3+{build}", f"v1.33.4+{build}"))


# --- machines that go -----------------------------------------------------------------------------------------------


async def the_first_server_goes(seed: int, faults: Faults) -> None:
    async with SimulatedCluster(seed, faults=faults) as cluster:
        await brought_up(cluster, 3, 2)
        first = (await cluster.plan("server-0")).annotations[names.JOIN_URL]
        await cluster.let_go("server-0")
        others = ("server-1", "server-2", "worker-0", "worker-1")

        async def nobody_has_joined_it() -> bool:
            plans = [await cluster.plan(name) for name in others]
            settled = all(plan.in_sync and plan.healthy for plan in plans)
            return settled and all(plan.annotations[names.JOINED_TO] != first for plan in plans)

        await cluster.world.until(nobody_has_joined_it)
        assert [(await cluster.plan(name)).is_init for name in others] == [True, False, False, False]
        assert cluster.delivered.count("server-0") == 1
        await cluster.remove("server-0")
        await cluster.world.until(cluster.is_ready)
        assert config_of(await cluster.plan("server-2"))["server"] == "https://10.0.0.12:6443"
        endpoint = (await cluster.control_plane())["spec"]["controlPlaneEndpoint"]
        assert endpoint["host"] == "10.0.0.12"


def test_when_the_first_server_goes_the_others_join_another_before() -> None:
    loop.run(the_first_server_goes(0, NONE))


@pytest.mark.parametrize("seed", range(1, 4))
def test_they_do_so_too_whatever_goes_wrong(seed: int) -> None:
    loop.run(the_first_server_goes(seed, ROUGH))


async def the_only_server_is_replaced() -> None:
    async with SimulatedCluster() as cluster:
        await brought_up(cluster, 1, 1)
        await cluster.let_go("server-0")
        await cluster.add("server-1", SERVER_ROLES)

        async def has_taken_over() -> bool:
            new = await cluster.plan("server-1")
            return new.is_init and new.in_sync and "cluster-init" in config_of(new)

        await cluster.world.until(has_taken_over)
        assert cluster.delivered[:3] == ["server-0", "worker-0", "server-1"]


def test_who_replaces_the_only_server_joins_it_first() -> None:
    loop.run(the_only_server_is_replaced())


async def all_of_etcd_is_lost() -> None:
    async with SimulatedCluster() as cluster:
        await brought_up(cluster, 1, 1)
        await cluster.let_go("server-0")
        await cluster.remove("server-0")

        async def says(text: str) -> bool:
            return text in await cluster.message()

        await cluster.world.until(lambda: says("waiting for at least one control plane, etcd, and worker node"))
        await cluster.add("server-1", SERVER_ROLES)
        await cluster.world.until(lambda: says("Restoration from etcd snapshot is required."))
        assert not (await cluster.plan("server-1")).has_plan
        told = {each["type"]: each["status"] for each in (await cluster.control_plane())["status"]["conditions"]}
        assert told["Stable"] == "False"


def test_nobody_begins_another_cluster_when_all_of_etcd_is_lost() -> None:
    loop.run(all_of_etcd_is_lost())


# --- what fails -----------------------------------------------------------------------------------------------------


async def an_agent_that_fails_twice() -> None:
    tries: list[int] = []

    def answer(plan: PlanSecret) -> bool:
        tries.append(plan.revision)
        return len(tries) > 2

    async with SimulatedCluster(answer=answer) as cluster:
        await cluster.make()
        await cluster.add("server", SERVER_ROLES)
        await cluster.add("worker", WORKER_ROLES)

        async def has_failed() -> bool:
            conditions = (await cluster.machine("server"))["status"]["conditions"]
            return any(each["type"] == "PlanApplied" and each["status"] == "False" for each in conditions)

        await cluster.world.until(has_failed)
        conditions = {each["type"]: each for each in (await cluster.machine("server"))["status"]["conditions"]}
        told = conditions["PlanApplied"]["message"]
        units = "rancher-system-agent.service and k3s.service"
        assert told.startswith(f"error applying plan -- check {units} logs on node for more information; ")
        assert 'instruction "install" failed; exit code 3; attempt 1, the next at ' in told
        assert told.endswith(": no space left")

        async def is_reported() -> bool:
            return await cluster.message() == "configuring bootstrap node(s) server: failure while applying plan"

        await cluster.world.until(is_reported)
        await cluster.world.until(cluster.is_ready)
        assert cluster.delivered.count("server") == 3
        told = {each["type"]: each["status"] for each in (await cluster.machine("server"))["status"]["conditions"]}
        assert told["PlanApplied"] == "True"


def test_a_plan_that_fails_is_tried_again_after_a_pause_and_its_failure_told() -> None:
    loop.run(an_agent_that_fails_twice())


async def what_a_guard_refuses() -> None:
    careful = [True]

    def not_now(act: Action, _view: View, _before: Sequence[Action]) -> Refusal | None:
        if not careful[0] or not isinstance(act, Patch) or act.ref.name != names.plan_secret("worker-0"):
            return None
        return Refusal("not-now", "worker-0 stays as it is") if "data" in act.patch else None

    async with SimulatedCluster(guards=(*GUARDS, not_now)) as cluster:
        careful[0] = False
        await brought_up(cluster, 1, 1)
        careful[0] = True
        await cluster.edit(provisionGeneration=1)

        async def is_reported() -> bool:
            return await cluster.message() == "refused: not-now: worker-0 stays as it is"

        await cluster.world.until(is_reported)
        assert not await cluster.is_ready()
        careful[0] = False
        await cluster.world.until(cluster.is_ready)
        assert await cluster.message() == ""


def test_what_a_guard_refuses_is_told_until_it_is_carried_out() -> None:
    loop.run(what_a_guard_refuses())


async def a_wrong_value() -> None:
    async with SimulatedCluster() as cluster:
        await brought_up(cluster, 1, 1)
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


def test_a_value_that_nothing_knows_is_told_and_changes_no_machine() -> None:
    loop.run(a_wrong_value())
