"""Decisions: the values that a reconciler returns instead of performing I/O.

A reconciler is a synchronous function from a `View` to a `Decision`. It performs no I/O and reads no clock, so the same
function runs live, in a simulation on a virtual clock, and on a proposed edit to preview it. The executor checks each
action with the guards, runs the actions in order, and stops at the first failure. The next reconcile sees what
succeeded and decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from herder.engine.control.cache import Indexer
from herder.engine.meta.kinds import Kind, Object

MANAGEMENT = ""
"""Target of a write to the management cluster; any other name is a downstream cluster."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Reference to an object, for waits and deletions."""

    kind: Kind
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"


NORMAL, WARNING = "Normal", "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about an object, for `kubectl describe`. The message must contain no secret, and nothing
    that a reader of the object's namespace may not see."""

    about: Ref
    uid: str
    reason: str  # in CamelCase
    message: str
    type: str = NORMAL


Events = tuple[Event, ...]
"""Events of a write. They are recorded once the write has changed something: a decision that repeats records nothing.
They describe the write and do not take part in comparisons."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of the fields that this controller owns. The usual way to write."""

    kind: Kind
    obj: Object
    reason: str
    subresource: str = ""
    manager: str = ""  # default: the controller's name
    force: bool = True
    target: str = MANAGEMENT
    events: Events = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object that must not exist. AlreadyExists means the cache was stale: decide again."""

    kind: Kind
    obj: Object
    reason: str
    target: str = MANAGEMENT
    events: Events = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Update:
    """Replace an object as it was read; fails with a conflict if it changed since."""

    kind: Kind
    obj: Object
    reason: str
    subresource: str = ""
    target: str = MANAGEMENT
    events: Events = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Patch:
    """JSON merge patch, for finalizers, annotations and other fields with several writers.

    With `resource_version`, the patch fails with a conflict if the object changed since it was read. With `debounce`,
    the write may be deferred by that many seconds, so that status that changes quickly is written once.
    """

    ref: Ref
    patch: Object
    reason: str
    subresource: str = ""
    resource_version: str = ""
    target: str = MANAGEMENT
    debounce: float = 0.0
    events: Events = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object with this `uid`: a successor with the same name is not deleted."""

    ref: Ref
    uid: str
    reason: str
    propagation: str = "Background"
    target: str = MANAGEMENT
    events: Events = field(default=(), compare=False)


Write = Apply | Create | Update | Patch | Delete


@dataclass(frozen=True, slots=True)
class Parallel:
    """Independent writes: executed concurrently, all of them even if one fails."""

    writes: tuple[Write, ...]


Writes = tuple[Write | Parallel, ...]

EffectKey = tuple[str, ...]
"""Identity of an effect, such as (uid, generation, step). An effect that is requested again is performed once, if
possible."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An action that is not a write (evict, request a token, dial), performed at least once by a named performer.

    A later reconcile reads the result with `View.result(key)`; the result is kept while reconciles read it. Set
    `repeat` for effects that create an object and are requested while it is missing: if one is still requested after it
    succeeded, its object was lost, and the effect is performed again with back-off.
    """

    performer: str
    key: EffectKey
    arguments: Mapping[str, Any]
    reason: str
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class EffectResult:
    """Result of an effect: `value` if it succeeded, else the `error` of the last attempt, which is retried with
    back-off."""

    value: Any = None
    error: str = ""
    attempts: int = 0

    @property
    def done(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True)
class Projection:
    """The part of each observed object that is cached, and its indexes. A module constant; compared by name."""

    name: str
    project: Callable[[Object], Object] = field(compare=False)
    indexes: Mapping[str, Indexer] = field(compare=False, default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observe:
    """Subscription to objects of a downstream cluster. Watched if `freshness` is None, else listed when older.

    Subscriptions that differ only in `focus` share one watch. A focus is an index of the projection and a value: it
    selects the objects to return and whose changes wake the subscriber. With `values_of`, the values of that index are
    returned instead of objects: a cluster may have any number of objects.
    """

    cluster: str
    kind: Kind
    namespace: str = ""
    labels: str = ""
    fields: str = ""
    freshness: float | None = None  # seconds
    projection: Projection | None = None
    focus: tuple[str, str] | None = None
    values_of: str = ""


@dataclass(frozen=True, slots=True)
class Connect:
    """Keep a connection to a downstream cluster, and reconcile when its health changes.

    `credential` identifies the version of the credentials, such as the resourceVersion of their Secret. When it
    changes, the cluster is connected again.
    """

    cluster: str
    credential: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why the reconcile stops here, as a message for the user, and the object that it waits for."""

    reason: str
    on: Ref | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do next: writes, then effects; and what to observe, wait for, and when to reconcile again."""

    writes: Writes = ()
    effects: tuple[Effect, ...] = ()
    observe: tuple[Observe | Connect, ...] = ()
    wait: Wait | None = None
    wake_at: datetime | None = None
    events: Events = field(default=(), compare=False)
    """Events about a state that no write records. Recorded once, until a decision for the object lacks them."""

    def __add__(self, other: Decision) -> Decision:
        """Combine two decisions: actions in order, the first wait, the earlier wake time."""
        wakes = [at for at in (self.wake_at, other.wake_at) if at is not None]
        return Decision(
            self.writes + other.writes,
            self.effects + other.effects,
            self.observe + other.observe,
            self.wait or other.wait,
            min(wakes) if wakes else None,
            self.events + other.events,
        )


DONE = Decision()


def requesting(effect: Effect, result: EffectResult | None, reason: str) -> Decision:
    """Request an effect and wait for it; the reason includes the error of its last attempt."""
    return Decision(effects=(effect,), wait=Wait(effect_reason(reason, result)))


def effect_reason(reason: str, *results: EffectResult | None) -> str:
    """Append the first error among the last attempts of effects to the reason for waiting."""
    error = next((result.error for result in results if result is not None and result.error), "")
    return f"{reason}: {error}" if error else reason


def waiting(reason: str, on: Ref | None = None, *, wake_at: datetime | None = None) -> Decision:
    return Decision(wait=Wait(reason, on), wake_at=wake_at)


REFUSED = "refused: "
"""Prefix of a refusal in conditions and logs."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Rejection of an action by a guard, with the reason and what the user can do."""

    guard: str
    reason: str

    def __str__(self) -> str:
        return f"{REFUSED}{self.guard}: {self.reason}"


@dataclass(slots=True)
class Outcome:
    """Result of executing a decision; kept per key, so that a stalled object can be explained."""

    decision: Decision
    at: datetime
    done: int = 0  # executed actions, including no-ops
    skipped: int = 0  # writes that would change nothing
    refusal: Refusal | None = None
    error: str = ""
    deferred_until: datetime | None = None  # debounced writes are deferred until then
    details: list[str] = field(default_factory=list)
