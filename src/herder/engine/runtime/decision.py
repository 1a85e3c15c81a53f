"""What a reconciler answers: a value that says what to do, never the doing itself.

A reconciler is a synchronous function from a `View` to a `Decision`. It performs no I/O and reads no clock; so the
same function runs live, in simulation on a virtual clock, and on a proposed edit to preview it. The runtime asks the
guards about each act, carries the acts out in order, and stops at the first that fails: the next pass sees what
became true and decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from herder.engine.control.cache import Indexer
from herder.engine.meta.kinds import Kind, Object

MANAGEMENT = ""
"""The target of a write to the cluster that the manager itself runs on; any other name is a downstream cluster."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Names an object, for waits and deletions."""

    kind: Kind
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply: the fields this controller wants, no more. The usual way to write."""

    kind: Kind
    obj: Object
    reason: str
    subresource: str = ""
    manager: str = ""  # default: the controller's name
    force: bool = True
    target: str = MANAGEMENT


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object that must not exist yet. An existing one means the view was behind: decide again."""

    kind: Kind
    obj: Object
    reason: str
    target: str = MANAGEMENT


@dataclass(frozen=True, slots=True)
class Update:
    """Replace an object as it was read: refused if anyone changed it since."""

    kind: Kind
    obj: Object
    reason: str
    subresource: str = ""
    target: str = MANAGEMENT


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch, for finalizers, annotations and other fields that have several writers.

    With `resource_version` the patch is refused if the object has changed since it was read. With `patience` it may
    wait that many seconds for more news, so that what changes quickly is written once: for reports of progress.
    """

    ref: Ref
    patch: Object
    reason: str
    subresource: str = ""
    resource_version: str = ""
    target: str = MANAGEMENT
    patience: float = 0.0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object that was seen: `uid` keeps a successor of the same name safe."""

    ref: Ref
    uid: str
    reason: str
    propagation: str = "Background"
    target: str = MANAGEMENT


Write = Apply | Create | Update | Patch | Delete


@dataclass(frozen=True, slots=True)
class Parallel:
    """Writes that do not depend on one another: carried out at the same time, all of them even if one fails."""

    writes: tuple[Write, ...]


Writes = tuple[Write | Parallel, ...]

EffectKey = tuple[str, ...]
"""Identity of an effect, such as (uid, generation, step): asked for twice, it is performed once if it can be."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An act that is not a write (evict, request a token, dial). Performed at least once by a named performer;
    its result comes back through `View.result(key)` in a later pass, for as long as passes look at it.

    `repeat` is for effects that create an object, and are requested while that object is missing: one that is still
    requested after it was done is performed again, with back-off, since what it created has been lost.
    """

    performer: str
    key: EffectKey
    arguments: Mapping[str, Any]
    reason: str
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class EffectResult:
    """`value` when done; `error` in words when the last try failed (it is tried again, with backoff)."""

    value: Any = None
    error: str = ""
    attempts: int = 0

    @property
    def done(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True)
class Projection:
    """What is kept of each observed object, and by what it is found again: a module's constant, told by its name."""

    name: str
    project: Callable[[Object], Object] = field(compare=False)
    indexes: Mapping[str, Indexer] = field(compare=False, default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observe:
    """Something needed from a downstream cluster. Watched when `freshness` is None, else listed when older.

    All who wish for the same but for `focus` share one watch. With a focus, an index of the projection and a value,
    only the objects found there are handed over, and only their changes wake who asked.
    """

    cluster: str
    kind: Kind
    namespace: str = ""
    labels: str = ""
    fields: str = ""
    freshness: float | None = None  # seconds
    projection: Projection | None = None
    focus: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Connect:
    """Keep a connection to a downstream cluster, and look again when its health changes.

    `credential` is whatever tells one state of the credentials from another, such as the revision of their Secret:
    when it changes, the connection is made anew.
    """

    cluster: str
    credential: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why nothing more happens now, in words a person can act on, and the object waited for."""

    reason: str
    on: Ref | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    writes: Writes = ()
    effects: tuple[Effect, ...] = ()
    observe: tuple[Observe | Connect, ...] = ()
    wait: Wait | None = None
    wake_at: datetime | None = None

    def __add__(self, other: Decision) -> Decision:
        """Both: acts in order, the first wait, the earlier waking."""
        wakes = [at for at in (self.wake_at, other.wake_at) if at is not None]
        return Decision(
            self.writes + other.writes,
            self.effects + other.effects,
            self.observe + other.observe,
            self.wait or other.wait,
            min(wakes) if wakes else None,
        )


DONE = Decision()


def requesting(effect: Effect, result: EffectResult | None, reason: str) -> Decision:
    """Request an effect and wait for it; why its last attempt failed is part of the reason."""
    return Decision(effects=(effect,), wait=Wait(effect_reason(reason, result)))


def effect_reason(reason: str, *results: EffectResult | None) -> str:
    """Why nothing more happens until effects are done, with the first error among their last attempts."""
    error = next((result.error for result in results if result is not None and result.error), "")
    return f"{reason}: {error}" if error else reason


def waiting(reason: str, on: Ref | None = None, *, wake_at: datetime | None = None) -> Decision:
    return Decision(wait=Wait(reason, on), wake_at=wake_at)


REFUSED = "refused: "
"""How a refusal begins, wherever it is told."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A guard's no, with the reason and what a person can do."""

    guard: str
    reason: str

    def __str__(self) -> str:
        return f"{REFUSED}{self.guard}: {self.reason}"


@dataclass(slots=True)
class Outcome:
    """What became of a decision; kept per key, so that any stall can be explained."""

    decision: Decision
    at: datetime
    done: int = 0  # acts carried out, no-ops included
    skipped: int = 0  # writes that would have changed nothing
    refusal: Refusal | None = None
    error: str = ""
    put_off_until: datetime | None = None  # patient writes wait for more news until then
    details: list[str] = field(default_factory=list)
