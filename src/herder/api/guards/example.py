"""Guard of the Flock example: keep minAvailable members."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.example import CONFIG_MAP, FLOCK, FLOCK_LABEL
from herder.engine.runtime.decision import Delete, Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.view import View


def keep_flock_minimum(act: Action, view: View, before: Sequence[Action]) -> Refusal | None:
    if not isinstance(act, Delete) or act.ref.kind != CONFIG_MAP:
        return None
    member = view.get(CONFIG_MAP, act.ref.name, act.ref.namespace)
    flock_name = ((member or {}).get("metadata", {}).get("labels") or {}).get(FLOCK_LABEL)
    flock = view.get(FLOCK, flock_name, act.ref.namespace) if flock_name else None
    if flock is None or flock["metadata"].get("deletionTimestamp"):
        return None
    deleted = 1 + sum(isinstance(other, Delete) and other.ref.kind == CONFIG_MAP for other in before)
    remaining = len(view.owned(CONFIG_MAP, flock["metadata"]["uid"])) - deleted
    minimum = flock["spec"].get("minAvailable", 1)
    if remaining < minimum:
        return Refusal(
            "keep-flock-minimum", f"{act.ref}: deletion denied; {remaining} would remain, minAvailable is {minimum}"
        )
    return None
