"""What is told of a cluster while it is waited for."""

from __future__ import annotations

import asyncio

import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.cli.cluster.progress import ClusterProgress, _print_progress, _Stalled
from herder.engine.meta.kinds import Object


def machine(status: str, message: str, type_: str = "PlanApplied") -> Object:
    return {"status": {"conditions": [{"type": type_, "status": status, "message": message}]}}


def test_why_a_plan_failed_is_told_with_its_machine() -> None:
    scene = ClusterProgress()
    scene.observe(MACHINE, "new", {})
    scene.observe(MACHINE, "good", machine("True", ""))
    scene.observe(MACHINE, "bad", machine("False", 'instruction "install" failed; exit code 1: k3s does not start'))
    assert scene.machine_failures() == {"bad": 'instruction "install" failed; exit code 1: k3s does not start'}
    scene.observe(MACHINE, "bad", machine("True", ""))
    assert scene.machine_failures() == {}


def test_why_a_machine_could_not_be_made_is_told() -> None:
    scene = ClusterProgress()
    scene.observe(MACHINE, "waits", machine("False", "waiting for its bootstrap data", "InfrastructureReady"))
    why = 'failed creating server [a/bad] of kind (ProcessMachine): CreateError: --process-memory: "lots" is no number'
    scene.observe(MACHINE, "bad", machine("False", why, "InfrastructureReady"))
    assert scene.machine_failures() == {"bad": 'creation failed: --process-memory: "lots" is no number'}


def stalled(status: str, *, generation: int = 2, observe: int = 2) -> Object:
    why = {"type": "Stalled", "status": status, "message": "spec.kubernetesVersion: v1.35.0 is lower than v1.36.3"}
    return {"metadata": {"generation": generation}, "status": {"observedGeneration": observe, "conditions": [why]}}


@pytest.mark.parametrize(
    ("cluster", "is_known"),
    [(stalled("True"), True), (stalled("False"), False), (stalled("True", observe=1), False)],
    ids=["cannot be carried out", "can", "is not looked at yet"],
)
def test_whether_what_was_asked_for_last_can_be_carried_out(cluster: Object, is_known: bool) -> None:
    scene = ClusterProgress()
    assert scene.stalled_reason == ""
    scene.observe(PROVISIONING_CLUSTER, "meadow", cluster)
    assert scene.stalled_reason == ("spec.kubernetesVersion: v1.35.0 is lower than v1.36.3" if is_known else "")


async def test_what_cannot_be_carried_out_is_not_waited_for_once_nothing_more_happens() -> None:
    scene = ClusterProgress()
    scene.observe(PROVISIONING_CLUSTER, "meadow", stalled("True"))
    with pytest.raises(_Stalled, match="lower than"):
        await asyncio.wait_for(_print_progress(scene, [], lambda _: None, lambda _: False, stall_timeout=0.0), 60)
