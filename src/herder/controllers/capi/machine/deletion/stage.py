"""Results of deletion stages."""

from __future__ import annotations

from dataclasses import dataclass, field

from herder.api.capi.conditions import Condition, legacy
from herder.api.writes import PROGRESS_DEBOUNCE
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Decision, Observe

STARTED = "Deleting", "Deletion started"


@dataclass(frozen=True, slots=True)
class DeletionStep:
    """Actions and status of one pass over a Machine that is being deleted.

    The caller merges the conditions into the status (they override its own of the same type), writes the status before
    it executes `decision`, and adds `decision` to its own. If `finished`, `decision` removes the finalizer and no
    status needs to be written.
    """

    decision: Decision
    deleting: Condition
    legacy: tuple[Condition, ...] = ()
    status: Object = field(default_factory=dict)  # complete status.deletion
    node: str = ""  # for status.nodeRef: the Node may be impossible to find later
    debounce: float = 0.0  # how long the status write may be deferred
    finished: bool = False


@dataclass(frozen=True, slots=True)
class StageDone:
    """A stage that is finished or not needed.

    `observe` lists the subscriptions that prove it: they must stay active, or the next pass could not tell.
    """

    legacy: tuple[Condition, ...] = ()
    observe: tuple[Observe, ...] = ()


@dataclass(frozen=True, slots=True)
class StagePending:
    """A stage that is not finished. `started` are timestamps for status.deletion that must be stored before they
    count."""

    reason: str
    message: str
    decision: Decision = DONE
    legacy: tuple[Condition, ...] = ()
    started: Object = field(default_factory=dict)
    debounce: float = PROGRESS_DEBOUNCE


Stage = StageDone | StagePending


def succeeded(type_: str, observe: tuple[Observe, ...] = ()) -> StageDone:
    return StageDone((legacy(type_, "True"),), observe)
