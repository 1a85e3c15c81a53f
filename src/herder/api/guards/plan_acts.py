"""Acts on plan Secrets, as guards see them: what an act asks of which machine, and what the others of its cluster do.

Everything is counted here from the Secrets and Machines themselves, and nothing is taken from who decides.
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
from herder.api.rke import plan_secret as secrets
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.plan import Plan
from herder.api.rke.plan_secret import PlanSecret
from herder.engine.control.cache import Indexer
from herder.engine.meta.kinds import Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Apply, Create, Patch, Refusal, Update
from herder.engine.runtime.executor import Act
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
"""Whoever declares that it reads plan Secrets under these guards declares these indexes with them."""


# --- what is asked --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """An act that changes a plan Secret, and the Secret before and after it."""

    act: Act
    before: PlanSecret
    after: PlanSecret

    @property
    def writes_plan(self) -> bool:
        return self.before.plan_bytes != self.after.plan_bytes

    @property
    def begins(self) -> bool:
        """It makes the agent run: another plan, or the same one once more."""
        return self.writes_plan or (self.after.state == secrets.PENDING and self.before.state != secrets.PENDING)

    @property
    def disturbs(self) -> bool:
        """It restarts, or may restart, what runs on the machine: also where the same plan is asked for again."""
        if not self.begins or not self.before.has_run_a_plan:
            return False
        applied, after = self.before.applied_plan, self.after.plan
        return applied is None or after is None or applied.lasting() != after.lasting()

    @property
    def begins_drain(self) -> bool:
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
        return Refusal(guard, f"the plan of Machine {self.namespace}/{machine} {message}")


def asked(act: Act, view: View) -> Asked | None:
    """None for whatever does not touch a plan Secret that is there."""
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
    return Asked(act, PlanSecret(found), PlanSecret(after))


def _secret(act: Act, view: View) -> Object | None:
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
        return None  # nobody here reads plans, so nobody writes them


# --- what the others do ---------------------------------------------------------------------------------------------


def plans_of(view: View, namespace: str, cluster: str, before: Sequence[Act]) -> list[PlanSecret]:
    """All plans of a cluster, with what the same decision has already done to them."""
    there = view.select(PLAN_SECRET, index=(PLANS_OF, f"{namespace}/{cluster}"))
    found = {secret["metadata"]["name"]: PlanSecret(secret) for secret in there}
    for change in _done(view, before):
        if change.before.name in found:
            found[change.before.name] = change.after
    return list(found.values())


def _done(view: View, before: Sequence[Act]) -> Iterator[Asked]:
    return (change for act in before if (change := asked(act, view)) is not None)


@dataclass(frozen=True)
class Trait:
    """What is counted of a plan: of a thousand machines most have the same."""

    is_etcd: bool
    is_control_plane: bool
    is_worker: bool
    is_windows: bool
    stays: bool
    is_away: bool  # it has served, and does not now, or may not

    @staticmethod
    def of(view: View, plan: PlanSecret) -> Trait:
        away = plan.has_run_a_plan and (plan.is_down or in_drain(plan))
        roles = (plan.is_etcd, plan.is_control_plane, plan.is_worker, plan.is_windows)
        return Trait(*roles, stays(view, plan), away)


Chosen = Callable[[Trait], bool]


def plans_among(view: View, change: Asked, before: Sequence[Act], chosen: Chosen) -> list[PlanSecret]:
    """Those plans of the cluster that have such traits, with what the same decision has already done to them."""
    scope = f"{change.namespace}/{change.cluster}"
    keys = [key for trait, some in view.groups(TRAITS, scope).items() if chosen(trait) for key in some]
    secrets_there = [view.get(PLAN_SECRET, key.name, key.namespace) for key in sorted(keys)]
    found = {plan.name: plan for secret in secrets_there if secret is not None for plan in (PlanSecret(secret),)}
    for done in _done(view, before):
        found.pop(done.before.name, None)
        if done.cluster == change.cluster and chosen(Trait.of(view, done.after)):
            found[done.before.name] = done.after
    return list(found.values())


def count_among(view: View, change: Asked, chosen: Chosen) -> int:
    """How many plans of the cluster have such traits, before anything is done."""
    traits = view.groups(TRAITS, f"{change.namespace}/{change.cluster}")
    return sum(len(keys) for trait, keys in traits.items() if chosen(trait))


def _trait(view: View) -> tuple[str, Trait] | None:
    secret = view.get(PLAN_SECRET, view.name)
    scope = next(iter(_plans_of(secret)), "") if secret is not None else ""
    return (scope, Trait.of(view, PlanSecret(secret))) if secret is not None and scope else None


TRAITS: Grouping[Trait] = Grouping("plan-traits", PLAN_SECRET, _trait, (Watches(MACHINE, Indexed(PLAN_OF, _named)),))
"""Whoever declares that it reads plan Secrets under these guards declares this grouping with them."""


def machine_of(view: View, plan: PlanSecret) -> Object | None:
    name = plan.labels.get(names.MACHINE_NAME)
    return view.get(MACHINE, name, plan.secret["metadata"]["namespace"]) if name else None


def stays(view: View, plan: PlanSecret) -> bool:
    """Its Machine is there and is to stay."""
    machine = machine_of(view, plan)
    return machine is not None and not is_deleting(machine)


def in_drain(plan: PlanSecret) -> bool:
    marks = (names.DRAIN_OPTIONS, names.PRE_DRAIN, names.POST_DRAIN, names.UNCORDON)
    return any(plan.annotations.get(mark) for mark in marks)


def is_text(value: object, wanted: str) -> bool:
    """Whether a Secret's value says this."""
    try:
        return base64.b64decode(str(value)).decode(errors="replace") == wanted
    except binascii.Error:
        return False
