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
from tests.unit.api.guards.plan_writes import HEALTHY, READER
from tests.unit.controllers.planner.objects import NAMESPACE, machine, plan_secret

POD_P = Ref(POD, "p", "default")


def eviction(uid: str) -> Effect:
    return Effect("evict", (uid, "evict", "pod-uid", "0"), {"namespace": "default", "name": "p"}, "its Node is drained")


def denial_reason(uid: str, name: str, *existing: Object) -> str:
    """The reason of the denial, or "". Where eviction is unsupported pods are deleted, and the same guard applies."""
    view = view_of(READER, f"{NAMESPACE}/{name}", (*HEALTHY, *existing))
    reasons = [
        _denial_reason(action, view)
        for action in (eviction(uid), Delete(POD_P, "pod-uid", "its Node is drained", target="ns/c"))
    ]
    if uid.removeprefix("Machine-").removeprefix("Secret-") == name:
        assert reasons[0] == reasons[1]
    return reasons[0]


def _denial_reason(action: Effect | Delete, view: View) -> str:
    refusals = [refusal for guard in GUARDS if (refusal := guard(action, view, [])) is not None]
    return refusals[0].reason if refusals else ""


def test_pods_are_evicted_only_from_deleting_machines_or_on_request() -> None:
    denied = "Pod default/p: eviction denied; no drain of its Node was requested"
    assert denial_reason("Machine-a", "a", machine("a", deleting=True)) == ""
    assert denial_reason("Machine-a", "a", machine("a")) == denied
    assert denial_reason("Machine-b", "a", machine("a", deleting=True)) == denied
    name = names.plan_secret("a")
    requested = {names.DRAIN_OPTIONS: "{}"}
    assert denial_reason(f"Secret-{name}", name, machine("a"), plan_secret("a", annotations=requested)) == ""
    assert denial_reason(f"Secret-{name}", name, machine("a"), plan_secret("a")) == denied
    done = plan_secret("a", annotations=requested | {names.DRAIN_DONE: "{}"})
    assert denial_reason(f"Secret-{name}", name, machine("a"), done) == denied


def test_pods_of_paused_machines_are_not_evicted() -> None:
    deleting = machine("a", deleting=True)
    deleting["metadata"]["annotations"] = {PAUSED: ""}
    assert denial_reason("Machine-a", "a", deleting) == "Pod default/p: eviction denied; its Machine is paused"
