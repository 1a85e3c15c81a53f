"""Writes of plan Secrets as guards see them: what a write changes for which machine, and the state of the cluster's
other plans.

Everything is derived from the Secrets and Machines; nothing is taken from the planner.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import is_deleting
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node import plan_secret as secrets
from herder.api.rke.node.plan import Plan
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.rke.operations import without_harmless_tasks, without_tasks
from herder.engine.control.cache import Indexer
from herder.engine.meta.kinds import Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Apply, Create, Patch, Refusal, Update
from herder.engine.runtime.executor import Action
from herder.engine.runtime.groups import Grouping
from herder.engine.runtime.handlers import Indexed, Watches
from herder.engine.runtime.view import UndeclaredKind, View

PLANS_OF, PLAN_OF = "plans-of", "plan-of"


def _plans_of(secret: Object) -> Iterable[str]:
    return _labelled(secret, names.CLUSTER_NAME)


def _plan_of(secret: Object) -> Iterable[str]:
    return _labelled(secret, names.MACHINE_NAME)


def _labelled(secret: Object, label: str) -> Iterable[str]:
    name = (secret["metadata"].get("labels") or {}).get(label)
    return (f"{secret['metadata']['namespace']}/{name}",) if name else ()


def _named(machine: Object) -> Iterable[str]:
    return (f"{machine['metadata']['namespace']}/{machine['metadata']['name']}",)


INDEXES: Mapping[str, Indexer] = {PLANS_OF: _plans_of, PLAN_OF: _plan_of}
"""Indexes that every controller reading plan Secrets under these guards must declare."""


# --- the change -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanChange:
    """A write of a plan Secret, with the Secret before and after it."""

    act: Action
    before: PlanSecret
    after: PlanSecret

    @property
    def writes_plan(self) -> bool:
        return self.before.plan_bytes != self.after.plan_bytes

    @property
    def starts_run(self) -> bool:
        """Whether the agent runs the plan: a new one, or the same one again."""
        return self.writes_plan or (self.after.state == secrets.PENDING and self.before.state != secrets.PENDING)

    @property
    def is_disruptive(self) -> bool:
        """Whether it may restart what runs on the machine; also true if the same plan is issued again."""
        if not self.starts_run or not self.before.has_run_a_plan:
            return False
        applied, after = self.before.applied_plan, self.after.plan
        if applied is None or after is None:
            return True
        return without_tasks(applied).disruptive_parts() != without_harmless_tasks(after).disruptive_parts()

    @property
    def starts_drain(self) -> bool:
        return in_drain(self.after) and not in_drain(self.before)

    @property
    def cluster(self) -> str:
        return self.before.labels.get(names.CLUSTER_NAME, "")

    @property
    def namespace(self) -> str:
        return str(self.before.secret["metadata"]["namespace"])

    @property
    def plan(self) -> Plan | None:
        return self.after.plan

    def refuse(self, guard: str, message: str) -> Refusal:
        machine = self.before.labels.get(names.MACHINE_NAME, self.before.name)
        return Refusal(guard, f"plan of Machine {self.namespace}/{machine}: {message}")


def plan_change(act: Action, view: View) -> PlanChange | None:
    """Return the change of an existing plan Secret; None for any other write."""
    found = _secret(act, view)
    if found is None:
        return None
    match act:
        case Patch():
            after: Any = apply_merge_patch(found, act.patch)
        case Update():
            after = act.obj
        case Apply() | Create():
            after = apply_merge_patch(found, act.obj)
        case _:
            return None
    return PlanChange(act, PlanSecret(found), PlanSecret(after))


def _secret(act: Action, view: View) -> Object | None:
    match act:
        case Patch():
            kind, name, namespace = act.ref.kind, act.ref.name, act.ref.namespace
        case Apply() | Create() | Update():
            meta = act.obj["metadata"]
            kind, name, namespace = act.kind, meta.get("name", ""), meta.get("namespace", "")
        case _:
            return None
    if kind.group_kind != PLAN_SECRET.group_kind or act.target:
        return None
    try:
        return view.get(PLAN_SECRET, name, namespace)
    except UndeclaredKind:
        return None  # plans are not watched here, so this process writes none


# --- other plans of the cluster -------------------------------------------------------------------------------------


def plans_of(view: View, namespace: str, cluster: str, before: Sequence[Action]) -> list[PlanSecret]:
    """Return all plans of a cluster, including the changes made earlier in the same decision."""
    stored = view.select(PLAN_SECRET, index=(PLANS_OF, f"{namespace}/{cluster}"))
    found = {secret["metadata"]["name"]: PlanSecret(secret) for secret in stored}
    for change in _changes_before(view, before):
        if change.before.name in found:
            found[change.before.name] = change.after
    return list(found.values())


def _changes_before(view: View, before: Sequence[Action]) -> Iterator[PlanChange]:
    return (change for act in before if (change := plan_change(act, view)) is not None)


@dataclass(frozen=True)
class PlanTraits:
    """Properties that are counted; most of a thousand machines share the same ones."""

    is_etcd: bool
    is_control_plane: bool
    is_worker: bool
    is_windows: bool
    machine_remains: bool
    is_down: bool  # it has served before, and is down or being drained

    @staticmethod
    def of(view: View, plan: PlanSecret) -> PlanTraits:
        away = plan.has_run_a_plan and (plan.is_down or in_drain(plan))
        roles = (plan.is_etcd, plan.is_control_plane, plan.is_worker, plan.is_windows)
        return PlanTraits(*roles, machine_remains(view, plan), away)


TraitFilter = Callable[[PlanTraits], bool]


def plans_among(view: View, change: PlanChange, before: Sequence[Action], chosen: TraitFilter) -> list[PlanSecret]:
    """Return the plans of the cluster with such traits, including the changes made earlier in the same decision."""
    scope = f"{change.namespace}/{change.cluster}"
    keys = [key for trait, some in view.groups(TRAITS, scope).items() if chosen(trait) for key in some]
    stored = [view.get(PLAN_SECRET, key.name, key.namespace) for key in sorted(keys)]
    found = {plan.name: plan for secret in stored if secret is not None for plan in (PlanSecret(secret),)}
    for done in _changes_before(view, before):
        found.pop(done.before.name, None)
        if done.cluster == change.cluster and chosen(PlanTraits.of(view, done.after)):
            found[done.before.name] = done.after
    return list(found.values())


def count_among(view: View, change: PlanChange, chosen: TraitFilter) -> int:
    """Count the plans of the cluster with such traits, before any change."""
    traits = view.groups(TRAITS, f"{change.namespace}/{change.cluster}")
    return sum(len(keys) for trait, keys in traits.items() if chosen(trait))


def _trait(view: View) -> tuple[str, PlanTraits] | None:
    secret = view.get(PLAN_SECRET, view.name)
    scope = next(iter(_plans_of(secret)), "") if secret is not None else ""
    return (scope, PlanTraits.of(view, PlanSecret(secret))) if secret is not None and scope else None


TRAITS: Grouping[PlanTraits] = Grouping(
    "plan-traits", PLAN_SECRET, _trait, (Watches(MACHINE, Indexed(PLAN_OF, _named)),)
)
"""The grouping that every controller reading plan Secrets under these guards must declare."""


def machine_of(view: View, plan: PlanSecret) -> Object | None:
    name = plan.labels.get(names.MACHINE_NAME)
    return view.get(MACHINE, name, plan.secret["metadata"]["namespace"]) if name else None


def machine_remains(view: View, plan: PlanSecret) -> bool:
    """Whether its Machine exists and is not being deleted."""
    machine = machine_of(view, plan)
    return machine is not None and not is_deleting(machine)


def is_member(plan: PlanSecret) -> bool:
    """Whether the machine is an etcd member: it has run a plan, or others can join through it."""
    return plan.is_etcd and (plan.has_run_a_plan or bool(plan.annotations.get(names.JOIN_URL)))


def in_drain(plan: PlanSecret) -> bool:
    marks = (names.DRAIN_OPTIONS, names.PRE_DRAIN, names.POST_DRAIN, names.UNCORDON)
    return any(plan.annotations.get(mark) for mark in marks)


def is_text(value: object, wanted: str) -> bool:
    """Whether a Secret's value decodes to this text."""
    try:
        return base64.b64decode(str(value)).decode(errors="replace") == wanted
    except binascii.Error:
        return False
