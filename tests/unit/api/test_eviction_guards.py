"""Pods are evicted only from Nodes whose Machine is deleted or whose drain was requested."""

from __future__ import annotations

from herder.api.capi.kinds import POD
from herder.api.capi.names import PAUSED
from herder.api.guards import GUARDS
from herder.api.rke import names
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Delete, Effect, Ref
from herder.engine.runtime.view import View
from tests.support.views import view_of
from tests.unit.api.test_plan_guards import READER, SOUND
from tests.unit.controllers.planner.objects import NAMESPACE, machine, plan_secret

POD_P = Ref(POD, "p", "default")


def eviction(uid: str) -> Effect:
    return Effect("evict", (uid, "evict", "pod-uid", "0"), {"namespace": "default", "name": "p"}, "it must leave")


def judged(uid: str, about: str, *there: Object) -> str:
    """Where no budget is asked Pods are deleted, and the same holds for that."""
    view = view_of(READER, f"{NAMESPACE}/{about}", (*SOUND, *there))
    told = [_judged(act, view) for act in (eviction(uid), Delete(POD_P, "pod-uid", "it must leave", target="ns/c"))]
    if uid.removeprefix("Machine-").removeprefix("Secret-") == about:
        assert told[0] == told[1]
    return told[0]


def _judged(act: Effect | Delete, view: View) -> str:
    refusals = [found for guard in GUARDS if (found := guard(act, view, [])) is not None]
    return refusals[0].reason if refusals else ""


def test_pods_leave_machines_that_go_or_were_asked_to_be_drained_and_no_others() -> None:
    nobody = "Pod default/p: eviction denied; no drain of its Node was requested"
    assert judged("Machine-a", "a", machine("a", deleting=True)) == ""
    assert judged("Machine-a", "a", machine("a")) == nobody
    assert judged("Machine-b", "a", machine("a", deleting=True)) == nobody
    name = names.plan_secret("a")
    asked = {names.DRAIN_OPTIONS: "{}"}
    assert judged(f"Secret-{name}", name, machine("a"), plan_secret("a", marks=asked)) == ""
    assert judged(f"Secret-{name}", name, machine("a"), plan_secret("a")) == nobody
    done = plan_secret("a", marks=asked | {names.DRAIN_DONE: "{}"})
    assert judged(f"Secret-{name}", name, machine("a"), done) == nobody


def test_pods_of_paused_machines_stay() -> None:
    going = machine("a", deleting=True)
    going["metadata"]["annotations"] = {PAUSED: ""}
    assert judged("Machine-a", "a", going) == "Pod default/p: eviction denied; its Machine is paused"
