"""Guard of evictions and Pod deletions: only from Nodes that are drained on request or whose Machine is deleted, and
never if paused.
"""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.capi.kinds import CLUSTER, MACHINE, POD
from herder.api.capi.names import is_deleting, is_paused
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Delete, Effect, Ref, Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.view import UndeclaredKind, View


def deny_unrequested_eviction(act: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
    """Deny evictions unless the Machine is being deleted or a drain was requested.

    The Node belongs to the object that the decision is about, whose UID is also the first part of an eviction's effect
    key.
    """
    match act:
        case Effect(performer="evict"):
            pod, uid = f"Pod {act.arguments['namespace']}/{act.arguments['name']}", act.key[0]
        case Delete(ref=Ref(kind=kind)) if act.target and kind == POD:
            pod, uid = str(act.ref), ""
        case _:
            return None
    machine = _subject(view, MACHINE, uid)
    plan = _subject(view, PLAN_SECRET, uid)
    if plan is not None:
        machine = _get_if_watched(view, MACHINE, (plan["metadata"].get("labels") or {}).get(names.MACHINE_NAME, ""))
    requested = is_deleting(machine) if machine is not None and plan is None else _is_drained(plan)
    if machine is None or not requested:
        return Refusal("deny-unrequested-eviction", f"{pod}: eviction denied; no drain of its Node was requested")
    if is_paused(_get_if_watched(view, CLUSTER, machine["spec"]["clusterName"]), machine):
        return Refusal("deny-unrequested-eviction", f"{pod}: eviction denied; its Machine is paused")
    return None


def _is_drained(plan: Object | None) -> bool:
    marks = ((plan or {}).get("metadata") or {}).get("annotations") or {}
    requested = marks.get(names.DRAIN_OPTIONS)
    return bool(requested) and marks.get(names.DRAIN_DONE) != requested


def _subject(view: View, kind: Kind, uid: str) -> Object | None:
    """Return the object of that kind that the decision is about, if its UID is `uid` or none is given."""
    found = _get_if_watched(view, kind, view.name)
    return found if found is not None and uid in ("", found["metadata"].get("uid")) else None


def _get_if_watched(view: View, kind: Kind, name: str) -> Object | None:
    try:
        return view.get(kind, name)
    except UndeclaredKind:
        return None
