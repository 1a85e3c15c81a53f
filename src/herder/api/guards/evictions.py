"""Evictions: only from the Node of a Machine that goes, or that was asked to be drained, and of none that is paused."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import is_deleting, is_paused
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.carrying import Act
from herder.engine.runtime.decision import Effect, Refusal
from herder.engine.runtime.view import UndeclaredKind, View

EVICT = "evict"


def no_eviction_that_nobody_asked_for(act: Act, view: View, _before: Sequence[Act]) -> Refusal | None:
    """Whose Node it is stands first in the key of the act, and is what the decision is about."""
    if not isinstance(act, Effect) or act.performer != EVICT:
        return None
    pod = f"Pod {act.arguments['namespace']}/{act.arguments['name']}"
    machine = _about(view, MACHINE, act.key[0])
    plan = _about(view, PLAN_SECRET, act.key[0])
    if plan is not None:
        machine = _looked_up(view, MACHINE, (plan["metadata"].get("labels") or {}).get(names.MACHINE_NAME, ""))
    asked = is_deleting(machine) if machine is not None and plan is None else _is_drained(plan)
    if machine is None or not asked:
        return Refusal("no-eviction-that-nobody-asked-for", f"{pod} stays: nobody asked for its Node to be drained")
    if is_paused(_looked_up(view, CLUSTER, machine["spec"]["clusterName"]), machine):
        return Refusal("no-eviction-that-nobody-asked-for", f"{pod} stays: its Machine is paused")
    return None


def _is_drained(plan: Object | None) -> bool:
    marks = ((plan or {}).get("metadata") or {}).get("annotations") or {}
    asked = marks.get(names.DRAIN_OPTIONS)
    return bool(asked) and marks.get(names.DRAIN_DONE) != asked


def _about(view: View, kind: Kind, uid: str) -> Object | None:
    """The object of that kind that the decision is about, if it is the one with this uid."""
    found = _looked_up(view, kind, view.name)
    return found if found is not None and found["metadata"].get("uid") == uid else None


def _looked_up(view: View, kind: Kind, name: str) -> Object | None:
    try:
        return view.get(kind, name)
    except UndeclaredKind:
        return None
