"""What one pass of a deletion comes to: the acts, and what the Machine's status tells about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from herder.api.capi.conditions import Condition, legacy
from herder.api.writing import PROGRESS_PATIENCE
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Decision, Observe

STARTED = "Deleting", "Deletion started"


@dataclass(frozen=True, slots=True)
class DeletionStep:
    """The caller merges the conditions into the status it computes (these win over its own of the same type), writes
    that status before it carries out `decision`, and joins `decision` to its own. When `finished`, the finalizer goes
    in `decision` and nothing else needs to be written: the Machine is gone then."""

    decision: Decision
    deleting: Condition
    legacy: tuple[Condition, ...] = ()
    status: Object = field(default_factory=dict)  # status.deletion, whole
    node: str = ""  # the Node's name, for status.nodeRef: what it was found by may be gone later
    patience: float = 0.0  # of the status write
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Passed:
    """A stage that is over, or that this Machine does not need. `observe` is what showed that it is over: it must be
    looked at further, or the next pass would not know."""

    legacy: tuple[Condition, ...] = ()
    observe: tuple[Observe, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """A stage that is not over yet. `started` are times in status.deletion that must be kept before they count."""

    reason: str
    message: str
    decision: Decision = DONE
    legacy: tuple[Condition, ...] = ()
    started: Object = field(default_factory=dict)
    patience: float = PROGRESS_PATIENCE


Stage = Passed | Held


def succeeded(type_: str, observe: tuple[Observe, ...] = ()) -> Passed:
    return Passed((legacy(type_, "True"),), observe)
