"""Writes of plans, and deletions of machines, with the guard that denies them."""

from __future__ import annotations

from typing import Any

import msgspec

from herder.api.capi.kinds import MACHINE
from herder.api.guards import GUARDS
from herder.api.rke import names
from herder.api.rke.kinds import BEACON, PLAN_SECRET
from herder.api.rke.node.plan import Plan, file
from herder.api.rke.node.plan_secret import encoded
from herder.controllers.planner.etcd import member as etcd_members
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Delete, Observe, Patch, Ref, Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.handlers import Watches
from herder.engine.runtime.view import Observed, View
from tests.support.views import NOW, view_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAMESPACE, WORKER, machine, plan_of, plan_secret

READER = Controller(
    name="reader",
    kind=MACHINE,
    reconcile=etcd_members.reconcile,
    watches=(*etcd_members.CONTROLLER.watches, Watches(BEACON)),
    indexes=etcd_members.CONTROLLER.indexes,
    groupings=etcd_members.CONTROLLER.groupings,
)
HEALTHY: tuple[Object, ...] = (objects.cluster(), objects.control_plane(), objects.beacon())


def denied_by(
    action: Action,
    *existing: Object,
    before: tuple[Action, ...] = (),
    cluster: tuple[Object, ...] = HEALTHY,
    nodes: list[Object] | None = None,
) -> str:
    """The name of the guard that denies the action, or "". `nodes` are the observed Nodes of the cluster."""

    def observed(_request: Observe) -> Observed | None:
        return None if nodes is None else Observed(tuple(nodes), NOW)

    view: View = view_of(READER, f"{NAMESPACE}/x", (*cluster, *existing), observed=observed)
    earlier: list[Action] = list(before)
    refusals = [refusal for guard in GUARDS if (refusal := guard(action, view, earlier)) is not None]
    assert all(isinstance(refusal, Refusal) and refusal.reason for refusal in refusals)
    return refusals[0].guard if refusals else ""


def write(name: str, plan: Plan, *, joins: str = "https://10.0.0.1:6443", **changes: Any) -> Patch:
    """A correct plan that names the server it joins; `changes` make it wrong."""
    server = file("/server", joins, dynamic=True, minor=True)
    joined = msgspec.structs.replace(plan, files=(*plan.files, server))
    data = {"plan": encoded(joined.to_json()), "plan-state": encoded("pending"), "probe-statuses": None}
    data |= changes.pop("data", {})
    patch = {"metadata": {"annotations": {names.JOINED_TO: joins}}, "data": data}
    resource_version = changes.pop("version", "1")
    return Patch(Ref(PLAN_SECRET, names.plan_secret(name), NAMESPACE), patch, "a plan", "", resource_version)


def mark_init(name: str) -> Patch:
    label = {"metadata": {"labels": {names.INIT_NODE: "true"}}}
    return Patch(Ref(PLAN_SECRET, names.plan_secret(name), NAMESPACE), label, "it bootstraps the cluster", "", "1")


NEW = plan_of(stamp="2")


def members(*states: str) -> list[Object]:
    """Machines with etcd named a, b, c…: w(ell), d(own), r(unning a plan), f(ailed), s(erving after that), n(ew)."""
    created: list[Object] = []
    for name, state in zip("abcde", states, strict=False):
        created.append(machine(name))
        created.append(
            {
                "w": lambda name=name: plan_secret(name, plan=plan_of()),
                "d": lambda name=name: plan_secret(name, plan=plan_of(), unhealthy=True),
                "r": lambda name=name: plan_secret(
                    name, plan=plan_of(), state="in-progress", data={"appliedPlan": "{}"}
                ),
                "f": lambda name=name: plan_secret(name, plan=plan_of(), state="failed", data={"appliedPlan": "{}"}),
                "s": lambda name=name: plan_secret(
                    name,
                    plan=plan_of(),
                    state="failed",
                    data={"appliedPlan": "{}", "probe-statuses": '{"etcd":{"healthy":true,"successCount":1}}'},
                ),
                "n": lambda name=name: plan_secret(name),
            }[state]()
        )
    return created


def workers(*states: str) -> list[Object]:
    created: list[Object] = []
    for name, state in zip("abcde", states, strict=False):
        plan = None if state == "n" else plan_of()
        report: dict[str, Any] = {"state": "pending", "data": {"appliedPlan": "{}"}} if state == "r" else {}
        created += [machine(name), plan_secret(name, (WORKER,), plan=plan, unhealthy=state == "d", **report)]
    return created


def deletion(name: str) -> Delete:
    return Delete(Ref(MACHINE, name, NAMESPACE), f"Machine-{name}", "one too many")


RELEASE = Patch(Ref(MACHINE, "a", NAMESPACE), {"metadata": {"annotations": {names.ETCD_HOOK: None}}}, "it may go")
