"""Progress that is reported while a command waits for a cluster."""

from __future__ import annotations

import asyncio

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.cli.cluster.progress import ClusterProgress, _print_progress, _Stalled
from herder.engine.meta.kinds import Object
from tests.support.builders import new_condition, new_object


def machine(status: str, message: str, type_: str = "PlanApplied") -> Object:
    return new_object(MACHINE, "m", status={"conditions": [new_condition(type_, status, message=message)]})


def test_a_failed_plan_is_reported_with_its_machine() -> None:
    progress = ClusterProgress()
    progress.observe(MACHINE, "new", new_object(MACHINE, "new"))
    progress.observe(MACHINE, "good", machine("True", ""))
    progress.observe(MACHINE, "bad", machine("False", 'instruction "install" failed; exit code 1: k3s does not start'))
    assert progress.machine_failures() == {"bad": 'instruction "install" failed; exit code 1: k3s does not start'}
    progress.observe(MACHINE, "bad", machine("True", ""))
    assert progress.machine_failures() == {}


def test_a_failed_machine_creation_is_reported() -> None:
    progress = ClusterProgress()
    progress.observe(MACHINE, "waiting", machine("False", "waiting for its bootstrap data", "InfrastructureReady"))
    message = (
        'failed creating server [a/bad] of kind (ProcessMachine): CreateError: --process-memory: "lots" is no number'
    )
    progress.observe(MACHINE, "bad", machine("False", message, "InfrastructureReady"))
    assert progress.machine_failures() == {"bad": 'creation failed: --process-memory: "lots" is no number'}


def stalled(status: str, *, generation: int = 2, observed: int = 2) -> Object:
    condition = new_condition("Stalled", status, message="spec.kubernetesVersion: v1.35.0 is lower than v1.36.3")
    fields = {"observedGeneration": observed, "conditions": [condition]}
    return new_object(PROVISIONING_CLUSTER, "meadow", metadata={"generation": generation}, status=fields)


@pytest.mark.parametrize(
    ("cluster", "is_stalled"),
    [(stalled("True"), True), (stalled("False"), False), (stalled("True", observed=1), False)],
    ids=["stalled", "not stalled", "not observed yet"],
)
def test_the_stalled_reason_is_that_of_the_latest_generation(cluster: Object, is_stalled: bool) -> None:
    progress = ClusterProgress()
    assert progress.stalled_reason == ""
    progress.observe(PROVISIONING_CLUSTER, "meadow", cluster)
    assert progress.stalled_reason == ("spec.kubernetesVersion: v1.35.0 is lower than v1.36.3" if is_stalled else "")


async def test_waiting_ends_if_the_cluster_is_stalled_and_idle() -> None:
    progress = ClusterProgress()
    progress.observe(PROVISIONING_CLUSTER, "meadow", stalled("True"))
    with pytest.raises(_Stalled, match="lower than"):
        await asyncio.wait_for(_print_progress(progress, [], lambda _: None, lambda _: False, stall_timeout=0.0), 60)
