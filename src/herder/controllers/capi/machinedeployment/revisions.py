"""Current and old MachineSets of a MachineDeployment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from herder.api.capi.names import REVISION, ROLLOUT_AFTER, annotations_of, is_deleting
from herder.api.capi.templates import needs_rollout
from herder.api.numbers import parse_int64
from herder.controllers.capi.set_members import moment
from herder.engine.meta.kinds import Object


@dataclass(frozen=True, slots=True)
class Revisions:
    """The MachineSets of a deployment by revision."""

    current: Object | None  # None if it must be created
    old: Sequence[Object]
    rollout_at: datetime | None = None  # when spec.rollout.after makes the current set old
    rollout_after: str = ""  # spec.rollout.after that a new set is created for


def find_revisions(deployment: Object, sets: Iterable[Object], now: datetime) -> Revisions:
    """Find the current set. If several match, the one with the most replicas wins, to replace the fewest Machines."""
    sets = sorted(sets, key=_most_replicas_then_oldest)
    template = deployment["spec"]["template"]
    matching = [
        each for each in sets if not is_deleting(each) and not needs_rollout(each["spec"]["template"], template)
    ]
    after: str = (deployment["spec"].get("rollout") or {}).get("after") or ""
    due = bool(after) and moment(after) <= now
    if due:
        matching = [each for each in matching if _created_since(each, after)]
    current = matching[0] if matching else None
    old = [each for each in sets if each is not current]
    return Revisions(current, old, moment(after) if after and not due else None, after if due else "")


def next_revision(revisions: Revisions) -> int:
    """Revision of the current set, which is always the highest; a set that becomes current again gets a new one."""
    newest = max((revision_of(each) for each in revisions.old), default=0) + 1
    return max(newest, revision_of(revisions.current)) if revisions.current else newest


def revision_of(obj: Object) -> int:
    return max(parse_int64(annotations_of(obj).get(REVISION, "")), 0)


def _created_since(machine_set: Object, after: str) -> bool:
    """Whether the set was created after this time, or for it.

    Clocks differ: without the annotation, one set after the other would be created until the API server's clock catches
    up.
    """
    created = machine_set["metadata"].get("creationTimestamp")
    in_time = bool(created) and moment(created) >= moment(after)
    return in_time or annotations_of(machine_set).get(ROLLOUT_AFTER) == after


def _most_replicas_then_oldest(machine_set: Object) -> tuple[int, str, str]:
    meta = machine_set["metadata"]
    return -(machine_set["spec"].get("replicas") or 0), meta.get("creationTimestamp", ""), meta["name"]
