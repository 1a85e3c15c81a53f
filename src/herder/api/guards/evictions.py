"""Evictions, and deletions of Pods in their place: only from the Node of a Machine that goes, or that was asked to be
drained, and of none that is paused."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.capi.kinds import CLUSTER, MACHINE, POD
from herder.api.capi.names import is_deleting, is_paused
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Delete, Effect, Ref, Refusal
from herder.engine.runtime.executor import Act
from herder.engine.runtime.view import UndeclaredKind, View


def no_eviction_that_nobody_asked_for(act: Act, view: View, _before: Sequence[Act]) -> Refusal | None:
    """Whose Node it is is what the decision is about. It stands first in the key of an eviction too."""
    match act:
        case Effect(performer="evict"):
            pod, uid = f"Pod {act.arguments['namespace']}/{act.arguments['name']}", act.key[0]
        case Delete(ref=Ref(kind=kind)) if act.target and kind == POD:
            pod, uid = str(act.ref), ""
        case _:
            return None
    machine = _about(view, MACHINE, uid)
    plan = _about(view, PLAN_SECRET, uid)
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
    """The object of that kind that the decision is about, if it is the one with this uid, where one is told."""
    found = _looked_up(view, kind, view.name)
    return found if found is not None and uid in ("", found["metadata"].get("uid")) else None


def _looked_up(view: View, kind: Kind, name: str) -> Object | None:
    try:
        return view.get(kind, name)
    except UndeclaredKind:
        return None
