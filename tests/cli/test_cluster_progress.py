"""What is told of a cluster while it is waited for."""

from __future__ import annotations

from herder.api.capi.kinds import MACHINE
from herder.cli.cluster_progress import Scene
from herder.engine.meta.kinds import Object


def machine(status: str, message: str) -> Object:
    return {"status": {"conditions": [{"type": "PlanApplied", "status": status, "message": message}]}}


def test_why_a_plan_failed_is_told_with_its_machine() -> None:
    scene = Scene()
    scene.seen(MACHINE, "new", {})
    scene.seen(MACHINE, "good", machine("True", ""))
    scene.seen(MACHINE, "bad", machine("False", 'instruction "install" failed; exit code 1: k3s does not start'))
    assert scene.why_plans_failed() == {"bad": 'instruction "install" failed; exit code 1: k3s does not start'}
    scene.seen(MACHINE, "bad", machine("True", ""))
    assert scene.why_plans_failed() == {}
