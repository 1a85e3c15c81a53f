"""Build Events and attach them to writes: a reconciler reports a transition together with the write that makes it.

Reasons that Cluster API records keep its names and messages, because alerts match them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from herder.api.writes import ref
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import WARNING, Apply, Create, Delete, Event, Patch, Update

W = TypeVar("W", Apply, Create, Update, Patch, Delete)


def normal(kind: Kind, obj: Object, reason: str, message: str) -> Event:
    return Event(ref(kind, obj), obj["metadata"].get("uid", ""), reason, message)


def warning(kind: Kind, obj: Object, reason: str, message: str) -> Event:
    return Event(ref(kind, obj), obj["metadata"].get("uid", ""), reason, message, WARNING)


def recording(write: W, *events: Event) -> W:
    """Return the write with these Events, which are recorded when it has changed something."""
    return replace(write, events=(*write.events, *events)) if events else write


def recorded(patches: tuple[Patch, ...], events: Iterable[Event]) -> tuple[Patch, ...]:
    """Attach Events to the first of these patches; without a patch nothing changes, and nothing is recorded."""
    return (recording(patches[0], *events), *patches[1:]) if patches else ()
