"""Status of a provisioned cluster, and the generation that it is about."""

from __future__ import annotations

import pytest

from herder.api.capi.conditions import find
from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import cluster_spec
from herder.api.rke.kinds import CONTROL_PLANE
from herder.engine.meta.kinds import Object
from herder.sim import loop
from tests.support.builders import new_condition, new_machine
from tests.unit.controllers.provisioning.objects import NAME, WORKSPACE, cluster, pool
from tests.unit.controllers.provisioning.simulated_manager import SimulatedManager


async def report_plan_status(manager: SimulatedManager, *conditions: Object) -> None:
    """Report conditions for the current spec of the control plane, as the planner would."""
    control_plane = await manager.get(CONTROL_PLANE, NAME)
    assert control_plane is not None
    observed = {"observedGeneration": control_plane["metadata"]["generation"]}
    status = {**observed, "conditions": [*conditions]}
    await manager.patch(CONTROL_PLANE, NAME, {"status": status}, subresource="status")


async def edit(manager: SimulatedManager, **rke_config: object) -> int:
    """Edit the spec and return its generation."""
    changed = await manager.patch(PROVISIONING_CLUSTER, NAME, {"spec": {"rkeConfig": rke_config}})
    generation: int = changed["metadata"]["generation"]
    return generation


def current_status(cluster: Object) -> tuple[bool, dict[str, str]]:
    """Whether the status is about the current spec, and the status of each condition."""
    status = cluster["status"]
    statuses = {type_: (find(cluster, type_) or {}).get("status", "") for type_ in ("Ready", "Reconciling", "Stalled")}
    return status.get("observedGeneration") == cluster["metadata"]["generation"], statuses


READY = {"Ready": "True", "Reconciling": "False", "Stalled": "False"}


async def wait_for_status(manager: SimulatedManager, expected: tuple[bool, dict[str, str]]) -> None:
    async def matches() -> bool:
        return current_status(await manager.cluster()) == expected

    await manager.world.until(matches, within=30)


@pytest.mark.parametrize(
    "change", [{"machineGlobalConfig": {"selinux": True}}, {"rotateCertificates": {"generation": 0}}]
)
def test_an_edit_is_observed_when_the_control_plane_has_it(change: Object) -> None:
    """Clients that wait for observedGeneration and Ready must not see success before the change has started."""

    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:
            await manager.create_cluster()
            await report_plan_status(manager, new_condition("Ready"))
            await wait_for_status(manager, (True, READY))
            await edit(manager, **change)
            await wait_for_status(manager, (False, {**READY, "Reconciling": "True"}))
            await world.until(lambda: _has_control_plane_spec(manager), within=30)
            await report_plan_status(
                manager, new_condition("Ready", "Unknown", "Waiting", "configuring worker node(s) meadow-1")
            )
            await wait_for_status(manager, (True, {**READY, "Ready": "Unknown", "Reconciling": "True"}))
            assert (find(await manager.cluster(), "Reconciling") or {})["message"].startswith("configuring worker")
            await report_plan_status(manager, new_condition("Ready"))
            await wait_for_status(manager, (True, READY))

    loop.run(run(SimulatedManager()))


async def _has_control_plane_spec(manager: SimulatedManager) -> bool:
    control_plane = await manager.get(CONTROL_PLANE, NAME)
    return control_plane is not None and cluster_spec.is_control_plane_current(await manager.cluster(), control_plane)


def test_a_rejected_spec_is_observed_and_stalled_but_not_updated() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world:
            await manager.create_cluster()
            await report_plan_status(manager, new_condition("Ready"))
            await wait_for_status(manager, (True, READY))
            await edit(manager, machinePools=[pool("workers", config="barns")])
            await wait_for_status(manager, (True, {**READY, "Ready": "False", "Stalled": "True"}))
            found = await manager.cluster()
            (problem,) = {find(found, type_)["message"] for type_ in ("RKECluster", "Updated", "Stalled", "Ready")}  # type: ignore[index]
            assert "ShedConfig fleet-default/barns does not exist" in problem
            assert (find(found, "Updated") or {})["status"] == "False"
            await edit(manager, machinePools=[pool("workers")])
            await manager.world.until(lambda: _is_true(manager, "Updated"), within=30)

    loop.run(run(SimulatedManager()))


def test_an_unplannable_spec_is_stalled_until_it_changes() -> None:
    problem = "machineGlobalConfig.node-lable: the embedded distribution does not know it"

    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:
            await manager.create_cluster()
            await report_plan_status(manager, new_condition("Ready", "False", "Error", problem))
            await wait_for_status(manager, (True, {"Ready": "False", "Reconciling": "False", "Stalled": "True"}))
            assert (find(await manager.cluster(), "Stalled") or {})["message"] == problem
            await edit(manager, machineGlobalConfig={"selinux": True})
            await world.until(lambda: _has_control_plane_spec(manager), within=30)
            await report_plan_status(
                manager, new_condition("Ready", "Unknown", "Waiting", "configuring worker node(s) meadow-1")
            )
            await wait_for_status(manager, (True, {"Ready": "Unknown", "Reconciling": "True", "Stalled": "False"}))

    loop.run(run(SimulatedManager()))


async def _is_true(manager: SimulatedManager, type_: str) -> bool:
    return (find(await manager.cluster(), type_) or {}).get("status") == "True"


def test_a_missing_autoscaler_is_reported_while_a_pool_needs_it() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:

            async def message() -> str:
                return str((find(await manager.cluster(), "ClusterAutoscalerDeploymentReady") or {}).get("message", ""))

            async def is_reported() -> bool:
                return "cluster-autoscaler is not deployed by Herder" in await message()

            async def is_cleared() -> bool:
                return not await message()

            await manager.prepare()
            sizes = {"autoscalingMinSize": 1, "autoscalingMaxSize": 3}
            await manager.create(PROVISIONING_CLUSTER, cluster(pool("workers", **sizes)))
            await world.until(is_reported, within=30)
            await edit(manager, machinePools=[pool("workers", quantity=1)])
            await world.until(is_cleared, within=30)

    loop.run(run(SimulatedManager()))


def test_the_management_cluster_counts_machines_without_nodes() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:
            await manager.prepare()
            await manager.create(PROVISIONING_CLUSTER, cluster())
            await world.until(lambda: _has_node_count(manager, 0), within=30)
            for name in ("one", "two"):
                await manager.create(MACHINE, _registered_machine(name))
            await world.until(lambda: _has_node_count(manager, 2), within=30)

    loop.run(run(SimulatedManager()))


def _registered_machine(name: str) -> Object:
    reference = {"apiGroup": "rke.cattle.io", "name": name}
    spec = {
        "bootstrap": {"configRef": {**reference, "kind": "RKEBootstrap"}},
        "infrastructureRef": {**reference, "kind": "CustomMachine"},
    }
    return new_machine(name, WORKSPACE, cluster=NAME, spec=spec)


async def _has_node_count(manager: SimulatedManager, machines: int) -> bool:
    found = await manager.all(MANAGEMENT_CLUSTER)
    info = {"machineProvider": "custom", "nodeCount": machines}
    return any(info.items() <= ((each.get("status") or {}).get("info") or {}).items() for each in found)
