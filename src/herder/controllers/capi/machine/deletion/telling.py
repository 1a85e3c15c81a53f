"""What one pass of a deletion comes to: the acts, and what the Machine's status tells about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from herder.api.capi.conditions import Condition
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision


@dataclass(frozen=True, slots=True)
class DeletionStep:
    """The caller merges the conditions into the status it computes, writes that status before it carries out
    `decision`, and joins `decision` to its own. When `finished`, the finalizer goes in `decision` and nothing else
    needs to be written: the Machine is gone then."""

    decision: Decision
    deleting: Condition
    legacy: tuple[Condition, ...] = ()
    status: Object = field(default_factory=dict)  # status.deletion, whole
    patience: float = 0.0  # of the status write: steps that pass quickly need not all be told
    finished: bool = False
