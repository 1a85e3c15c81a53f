"""Never fewer members of a Flock than its owner said must stay."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.example import CONFIG_MAP, FLOCK, FLOCK_LABEL
from herder.engine.runtime.decision import Delete, Refusal
from herder.engine.runtime.executor import Act
from herder.engine.runtime.view import View


def flock_keeps_its_minimum(act: Act, view: View, before: Sequence[Act]) -> Refusal | None:
    if not isinstance(act, Delete) or act.ref.kind != CONFIG_MAP:
        return None
    member = view.get(CONFIG_MAP, act.ref.name, act.ref.namespace)
    flock_name = ((member or {}).get("metadata", {}).get("labels") or {}).get(FLOCK_LABEL)
    flock = view.get(FLOCK, flock_name, act.ref.namespace) if flock_name else None
    if flock is None or flock["metadata"].get("deletionTimestamp"):
        return None
    leaving = 1 + sum(isinstance(other, Delete) and other.ref.kind == CONFIG_MAP for other in before)
    left = len(view.owned(CONFIG_MAP, flock["metadata"]["uid"])) - leaving
    minimum = flock["spec"].get("minAvailable", 1)
    if left < minimum:
        return Refusal("flock-keeps-its-minimum", f"{act.ref} stays: {left} would be left, minAvailable is {minimum}")
    return None
