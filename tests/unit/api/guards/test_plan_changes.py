"""What a write of a plan Secret changes, and which plans and machines of its cluster count."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from herder.api.capi.kinds import MACHINE
from herder.api.guards import plan_changes
from herder.api.guards.plan_changes import PlanChange, PlanTraits
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan import Instruction, Plan
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Create, Delete, Patch, Ref, Update
from herder.engine.runtime.handlers import Indexed, Watches
from tests.support.views import view_of
from tests.unit.api.guards.plan_writes import HEALTHY, READER, mark_init
from tests.unit.controllers.planner.objects import (
    ETCD,
    NAME,
    NAMESPACE,
    PLANE,
    SERVER,
    WORKER,
    machine,
    plan_of,
    plan_secret,
)

REF = Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE)


def change(before: Object, after: Object) -> PlanChange:
    return PlanChange(mark_init("a"), PlanSecret(before), PlanSecret(after))


def with_tasks(*tasks: str) -> Plan:
    added = tuple(Instruction(name=name, command="sh") for name in tasks)
    return replace(plan_of(), instructions=(*plan_of().instructions, *added))


RAN = plan_secret("a", plan=plan_of())
_APPLIED = {"appliedPlan": plan_of().to_json().decode()}
PENDING = plan_secret("a", plan=plan_of(stamp="2"), state="pending", data=_APPLIED)
RUNNING = plan_secret("a", plan=plan_of(stamp="2"), state="in-progress", data=_APPLIED)


@pytest.mark.parametrize(
    ("before", "after", "writes", "starts", "disrupts"),
    [
        (RAN, RAN, False, False, False),
        (RAN, plan_secret("a", plan=plan_of(stamp="2")), True, True, True),
        (RAN, plan_secret("a", plan=plan_of(minor="x")), True, True, False),
        (RAN, plan_secret("a", plan=plan_of(), state="pending"), False, True, False),
        (RAN, plan_secret("a", plan=plan_of(), state="in-progress"), False, False, False),
        (plan_secret("a", plan=plan_of(), state="pending"), RAN, False, False, False),
        (PENDING, PENDING, False, False, False),
        (RUNNING, RUNNING, False, False, False),
        (RUNNING, {**RUNNING, "metadata": {**RUNNING["metadata"], "labels": {}}}, False, False, False),
        (plan_secret("a"), RAN, True, True, False),
        (RAN, plan_secret("a", data={"plan": "no plan"}), True, True, True),
        (plan_secret("a", data={"appliedPlan": "no plan"}), RAN, True, True, True),
        (plan_secret("a", data={"success-count": "1"}), RAN, True, True, True),
        (RAN, plan_secret("a", plan=with_tasks("etcd-snapshot-save")), True, True, False),
        (RAN, plan_secret("a", plan=with_tasks("stop-services")), True, True, True),
        (plan_secret("a", plan=with_tasks("stop-services")), RAN, True, True, False),
    ],
)
def test_which_writes_start_and_disrupt(
    before: Object, after: Object, writes: bool, starts: bool, disrupts: bool
) -> None:
    found = change(before, after)
    assert (found.writes_plan, found.starts_run, found.is_disruptive) == (writes, starts, disrupts)


@pytest.mark.parametrize("mark", [names.DRAIN_OPTIONS, names.PRE_DRAIN, names.POST_DRAIN, names.UNCORDON])
def test_drains(mark: str) -> None:
    drained = plan_secret("a", annotations={mark: "{}"})
    assert plan_changes.in_drain(PlanSecret(drained))
    assert change(RAN, drained).starts_drain
    assert not change(drained, drained).starts_drain
    assert not change(drained, RAN).starts_drain
    assert not plan_changes.in_drain(PlanSecret(plan_secret("a", annotations={mark: ""})))


def test_facts_of_a_change() -> None:
    found = change(RAN, plan_secret("a", plan=plan_of(stamp="2")))
    assert (found.cluster, found.namespace, found.plan) == (NAME, NAMESPACE, plan_of(stamp="2"))
    bare: Object = {"metadata": {"name": "x", "namespace": "ns"}}
    assert change(bare, bare).cluster == ""
    assert change(bare, bare).refuse("guard", "reason").reason == "plan of Machine ns/x: reason"
    refusal = found.refuse("guard", "reason")
    assert (refusal.guard, refusal.reason) == ("guard", f"plan of Machine {NAMESPACE}/a: reason")


def view(*existing: Object, reader: Controller = READER, namespace: str = NAMESPACE) -> Any:
    return view_of(reader, f"{namespace}/{names.plan_secret('a')}", (*HEALTHY, *existing))


PATCH: Object = {"metadata": {"labels": {"x": "y", names.WORKER_ROLE: None}}, "data": {"plan": encoded("p")}}


@pytest.mark.parametrize("kind", ["patch", "apply", "create", "update"])
def test_the_secret_after_a_write(kind: str) -> None:
    written: Object = {**RAN, "metadata": {**RAN["metadata"], "labels": {"x": "y"}}, "data": {"plan": encoded("p")}}
    actions = {
        "patch": Patch(REF, PATCH, "a plan"),
        "apply": Apply(PLAN_SECRET, {**PATCH, "metadata": {**RAN["metadata"], "labels": {"x": "y"}}}, "a plan"),
        "create": Create(PLAN_SECRET, written, "a plan"),
        "update": Update(PLAN_SECRET, written, "a plan"),
    }
    found = plan_changes.plan_change(actions[kind], view(RAN))
    assert found is not None
    assert found.act is actions[kind]
    assert found.before.plan == plan_of()
    assert (found.after.plan_bytes, found.after.labels["x"]) == (b"p", "y")
    assert (names.ETCD_ROLE in found.after.labels) is (kind != "update"), "an Update replaces the object"
    assert found.after.has_applied_plan is (kind != "update")


def test_other_writes_change_no_plan() -> None:
    other: Object = {"metadata": {"name": REF.name, "namespace": NAMESPACE}}
    actions: list[Any] = [
        Delete(REF, "uid", "gone"),
        Patch(REF, PATCH, "a plan", target="downstream"),
        Patch(Ref(MACHINE, "a", NAMESPACE), PATCH, "a plan"),
        Apply(MACHINE, other, "a plan"),
        Apply(PLAN_SECRET, {"metadata": {"name": REF.name}}, "a plan"),
        Apply(PLAN_SECRET, {"metadata": {"namespace": NAMESPACE}}, "a plan"),
    ]
    assert [plan_changes.plan_change(action, view(RAN)) for action in actions] == [None] * len(actions)
    unwatched = Controller("reader", MACHINE, lambda _view: DONE)
    assert plan_changes.plan_change(Patch(REF, PATCH, "a plan"), view(reader=unwatched)) is None


# --- other plans ------------------------------------------------------------------------------------------------------


def test_plans_of_a_cluster_include_earlier_changes() -> None:
    foreign = plan_secret("z", labels={names.CLUSTER_NAME: "another"})
    existing = view(RAN, plan_secret("b"), foreign, plan_secret("c", init=True))
    named = {
        plan.name: plan for plan in plan_changes.plans_of(existing, NAMESPACE, NAME, [mark_init("a"), mark_init("z")])
    }
    assert set(named) == {names.plan_secret(name) for name in "abc"}
    assert [plan.is_init for _, plan in sorted(named.items())] == [True, False, True]
    assert plan_changes.plans_of(existing, "elsewhere", NAME, []) == []
    unlabelled = plan_secret("d")
    del unlabelled["metadata"]["labels"]
    assert list(plan_changes._plans_of(unlabelled)) == list(plan_changes._plan_of(unlabelled)) == []
    assert list(plan_changes._plans_of(RAN)) == [f"{NAMESPACE}/{NAME}"]
    assert list(plan_changes._plan_of(RAN)) == [f"{NAMESPACE}/a"] == list(plan_changes._named(machine("a")))
    assert set(plan_changes.INDEXES) == {"plans-of", "plan-of"}


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        ((machine("a"), RAN), PlanTraits(True, True, False, False, True, False)),
        ((RAN,), PlanTraits(True, True, False, False, False, False)),
        ((machine("a", deleting=True), RAN), PlanTraits(True, True, False, False, False, False)),
        ((machine("a"), plan_secret("a", (WORKER,))), PlanTraits(False, False, True, False, True, False)),
        ((machine("a"), plan_secret("a", (ETCD,))), PlanTraits(True, False, False, False, True, False)),
        ((machine("a"), plan_secret("a", (PLANE,))), PlanTraits(False, True, False, False, True, False)),
        (
            (machine("a"), plan_secret("a", (WORKER,), labels={names.OPERATING_SYSTEM: "windows"})),
            PlanTraits(False, False, True, True, True, False),
        ),
        (
            (machine("a"), plan_secret("a", SERVER, plan=plan_of(), unhealthy=True)),
            PlanTraits(True, True, False, False, True, True),
        ),
        (
            (machine("a"), plan_secret("a", SERVER, plan=plan_of(), annotations={names.UNCORDON: "true"})),
            PlanTraits(True, True, False, False, True, True),
        ),
        (
            (machine("a"), plan_secret("a", SERVER, unhealthy=True, annotations={names.UNCORDON: "true"})),
            PlanTraits(True, True, False, False, True, False),
        ),
    ],
)
def test_traits_of_a_plan(existing: tuple[Object, ...], expected: PlanTraits) -> None:
    secret = existing[-1]
    assert PlanTraits.of(view(*existing), PlanSecret(secret)) == expected
    assert plan_changes._trait(view(*existing)) == (f"{NAMESPACE}/{NAME}", expected)


def test_secrets_without_a_cluster_are_in_no_group() -> None:
    unlabelled = plan_secret("a", labels={names.CLUSTER_NAME: ""})
    assert plan_changes._trait(view(unlabelled)) is None
    assert plan_changes._trait(view()) is None


def test_a_change_of_a_machine_changes_the_group_of_its_plan() -> None:
    traits = plan_changes.TRAITS
    assert (traits.name, traits.kind) == ("plan-traits", PLAN_SECRET)
    assert traits.watches == (Watches(MACHINE, Indexed("plan-of", plan_changes._named)),)


def test_plans_among_those_with_some_traits() -> None:
    own = change(RAN, RAN)
    foreign = plan_secret("z", labels={names.CLUSTER_NAME: "another"})
    workers = plan_secret("w", (WORKER,)), plan_secret("v", (WORKER,))
    existing = view(RAN, plan_secret("b"), foreign, *workers, *(machine(name) for name in "abwvz"))

    def found(*before: Any, chosen: Any = lambda trait: trait.is_etcd) -> list[str]:
        plans = plan_changes.plans_among(existing, own, before, chosen)
        return [plan.name.removesuffix("-machine-plan").rpartition("-")[2] for plan in plans]

    a, b, w = (found(chosen=lambda trait: trait.is_etcd), found(), found(chosen=lambda trait: trait.is_worker))
    assert (len(a), a == b, len(w)) == (2, True, 2)
    no_etcd = Patch(REF, {"metadata": {"labels": {names.ETCD_ROLE: None}}}, "another role")
    assert len(found(no_etcd)) == 1
    etcd = Patch(
        Ref(PLAN_SECRET, names.plan_secret("w"), NAMESPACE), {"metadata": {"labels": {names.ETCD_ROLE: "true"}}}, "x"
    )
    assert len(found(etcd)) == 3
    elsewhere = Patch(Ref(PLAN_SECRET, names.plan_secret("z"), NAMESPACE), {"metadata": {"labels": {"x": "y"}}}, "x")
    assert len(found(elsewhere)) == 2, "another cluster"
    assert plan_changes.count_among(existing, own, lambda trait: trait.is_etcd) == 2
    assert plan_changes.count_among(existing, own, lambda trait: trait.is_worker) == 2
    assert plan_changes.count_among(existing, own, lambda trait: trait.is_windows) == 0


def test_the_namespace_is_that_of_the_plan_wherever_the_decision_is_made() -> None:
    own, elsewhere = change(RAN, RAN), view(RAN, machine("a"), namespace="elsewhere")
    assert [plan.name for plan in plan_changes.plans_among(elsewhere, own, (), lambda _trait: True)] == [REF.name]
    assert plan_changes.count_among(elsewhere, own, lambda trait: trait.machine_remains) == 1
    assert plan_changes.machine_remains(elsewhere, PlanSecret(RAN))
    assert plan_changes.plan_change(Patch(REF, PATCH, "a plan"), elsewhere) is not None


def test_the_machine_of_a_plan() -> None:
    existing = view(machine("a"), machine("d", deleting=True))
    assert (plan_changes.machine_of(existing, PlanSecret(RAN)) or {})["metadata"]["name"] == "a"
    assert plan_changes.machine_remains(existing, PlanSecret(RAN))
    for name in ("b", "d", ""):
        plan = PlanSecret(plan_secret("a", labels={names.MACHINE_NAME: name}))
        assert not plan_changes.machine_remains(existing, plan)
    assert plan_changes.machine_of(existing, PlanSecret(plan_secret("a", labels={names.MACHINE_NAME: ""}))) is None


@pytest.mark.parametrize(
    ("value", "equal"),
    [
        (encoded("pending"), True),
        (encoded("failed"), False),
        ("pendin", False),
        ("x", False),
        (None, False),
        (encoded(b"\xff"), False),
    ],
)
def test_values_of_secrets_are_compared_as_text(value: Any, equal: bool) -> None:
    assert plan_changes.is_text(value, "pending") is equal
