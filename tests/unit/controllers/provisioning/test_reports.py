"""What is told of a cluster that is built here, and of which state of what was asked for."""

from __future__ import annotations

import pytest

from herder.api.capi.conditions import find
from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import cluster_spec
from herder.api.rke.kinds import CONTROL_PLANE
from herder.engine.meta.kinds import Object
from herder.sim import loop
from tests.unit.controllers.provisioning.provisioned import NAME, WORKSPACE, Pasture, cluster, new, pool
from tests.unit.controllers.provisioning.test_provisioned_lives import condition, made


async def planned(pasture: Pasture, *conditions: Object) -> None:
    """In the planner's place: it has seen the spec of the control plane as it is now, and says this of it."""
    plane = await pasture.get(CONTROL_PLANE, NAME)
    assert plane is not None
    seen = {"observedGeneration": plane["metadata"]["generation"]}
    status = {**seen, "conditions": [*conditions]}
    await pasture.patch(CONTROL_PLANE, NAME, {"status": status}, subresource="status")


async def edit(pasture: Pasture, **rke_config: object) -> int:
    """Another spec; its generation."""
    changed = await pasture.patch(PROVISIONING_CLUSTER, NAME, {"spec": {"rkeConfig": rke_config}})
    generation: int = changed["metadata"]["generation"]
    return generation


def standing(cluster: Object) -> tuple[bool, dict[str, str]]:
    """Whether what is told is told of the spec as it is, and what is."""
    status = cluster["status"]
    told = {type_: (find(cluster, type_) or {}).get("status", "") for type_ in ("Ready", "Reconciling", "Stalled")}
    return status.get("observedGeneration") == cluster["metadata"]["generation"], told


READY = {"Ready": "True", "Reconciling": "False", "Stalled": "False"}


async def becomes(pasture: Pasture, wanted: tuple[bool, dict[str, str]]) -> None:
    async def is_so() -> bool:
        return standing(await pasture.cluster()) == wanted

    await pasture.world.until(is_so, within=30)


@pytest.mark.parametrize(
    "change", [{"machineGlobalConfig": {"node-label": ["a=b"]}}, {"rotateCertificates": {"generation": 1}}]
)
def test_an_edit_counts_as_seen_when_the_control_plane_has_begun_with_it(change: Object) -> None:
    """Who waits for observedGeneration and Ready is not told that all is done before anything is."""

    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:
            await made(pasture)
            await planned(pasture, condition("Ready", "True"))
            await becomes(pasture, (True, READY))
            await edit(pasture, **change)
            await becomes(pasture, (False, {**READY, "Reconciling": "True"}))
            await world.until(lambda: _is_handed_over(pasture), within=30)
            await planned(pasture, condition("Ready", "Unknown", "configuring worker node(s) meadow-1"))
            await becomes(pasture, (True, {**READY, "Ready": "Unknown", "Reconciling": "True"}))
            assert (find(await pasture.cluster(), "Reconciling") or {})["message"].startswith("configuring worker")
            await planned(pasture, condition("Ready", "True"))
            await becomes(pasture, (True, READY))

    loop.run(run(Pasture()))


async def _is_handed_over(pasture: Pasture) -> bool:
    plane = await pasture.get(CONTROL_PLANE, NAME)
    return plane is not None and cluster_spec.is_control_plane_current(await pasture.cluster(), plane)


def test_a_spec_that_is_refused_counts_as_seen_and_stalled_and_not_as_updated() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world:
            await made(pasture)
            await planned(pasture, condition("Ready", "True"))
            await becomes(pasture, (True, READY))
            await edit(pasture, machinePools=[pool("workers", config="barns")])
            await becomes(pasture, (True, {**READY, "Stalled": "True"}))
            found = await pasture.cluster()
            (problem,) = {find(found, type_)["message"] for type_ in ("RKECluster", "Updated", "Stalled")}  # type: ignore[index]
            assert "ShedConfig fleet-default/barns does not exist" in problem
            assert (find(found, "Updated") or {})["status"] == "False"
            await edit(pasture, machinePools=[pool("workers")])
            await pasture.world.until(lambda: _is_true(pasture, "Updated"), within=30)

    loop.run(run(Pasture()))


def test_a_spec_that_nothing_can_be_planned_from_is_stalled_until_it_is_another() -> None:
    problem = "machineGlobalConfig.node-lable: the embedded distribution does not know it"

    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:
            await made(pasture)
            await planned(pasture, {**condition("Ready", "False", problem), "reason": "Error"})
            await becomes(pasture, (True, {"Ready": "False", "Reconciling": "False", "Stalled": "True"}))
            assert (find(await pasture.cluster(), "Stalled") or {})["message"] == problem
            await edit(pasture, machineGlobalConfig={"node-label": ["a=b"]})
            await world.until(lambda: _is_handed_over(pasture), within=30)
            await planned(pasture, condition("Ready", "Unknown", "configuring worker node(s) meadow-1"))
            await becomes(pasture, (True, {"Ready": "Unknown", "Reconciling": "True", "Stalled": "False"}))

    loop.run(run(Pasture()))


async def _is_true(pasture: Pasture, type_: str) -> bool:
    return (find(await pasture.cluster(), type_) or {}).get("status") == "True"


def test_that_nothing_scales_a_pool_is_told_while_one_is_to_be_scaled() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:

            async def told() -> str:
                return str((find(await pasture.cluster(), "ClusterAutoscalerDeploymentReady") or {}).get("message", ""))

            async def is_reported() -> bool:
                return "cluster-autoscaler is not deployed by Herder" in await told()

            async def is_not_told() -> bool:
                return not await told()

            await pasture.prepare()
            sizes = {"autoscalingMinSize": 1, "autoscalingMaxSize": 3}
            await pasture.create(PROVISIONING_CLUSTER, cluster(pool("workers", **sizes)))
            await world.until(is_reported, within=30)
            await edit(pasture, machinePools=[pool("workers", quantity=1)])
            await world.until(is_not_told, within=30)

    loop.run(run(Pasture()))


def test_the_management_cluster_counts_machines_that_are_no_nodes_yet_too() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:
            await pasture.prepare()
            await pasture.create(PROVISIONING_CLUSTER, cluster())
            await world.until(lambda: _counts(pasture, 0), within=30)
            for name in ("one", "two"):
                await pasture.create(MACHINE, _registered(name))
            await world.until(lambda: _counts(pasture, 2), within=30)

    loop.run(run(Pasture()))


def _registered(name: str) -> Object:
    reference = {"apiGroup": "rke.cattle.io", "name": name}
    spec = {
        "clusterName": NAME,
        "bootstrap": {"configRef": {**reference, "kind": "RKEBootstrap"}},
        "infrastructureRef": {**reference, "kind": "CustomMachine"},
    }
    return new(MACHINE, name, WORKSPACE, labels={"cluster.x-k8s.io/cluster-name": NAME}) | {"spec": spec}


async def _counts(pasture: Pasture, machines: int) -> bool:
    found = await pasture.all(MANAGEMENT_CLUSTER)
    info = {"machineProvider": "custom", "nodeCount": machines}
    return any(info.items() <= ((each.get("status") or {}).get("info") or {}).items() for each in found)
