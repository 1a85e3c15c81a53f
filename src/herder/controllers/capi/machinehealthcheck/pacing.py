"""Storms are damped: what the budget allows is not all begun at once.

Within a minute at most a tenth of a check's Machines are handed over for remediation, or three where that is more. A
remediation of a Machine that never came up doubles the time until the next ones, up to an hour, and leaves only one
of them: whatever keeps new Machines from starting is not healed by making more. When one that was created since is
healthy, the usual pace is back. What a person has marked for remediation does not wait and does not count.

The state is an annotation of the MachineHealthCheck, written before the remediations that it counts: a Machine that
is replaced takes all traces of its remediation with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from herder.api.capi.conditions import timestamp
from herder.api.capi.names import REMEDIATION_PACE, annotations_of
from herder.api.moments import moment
from herder.engine.meta.kinds import Object

WINDOW = timedelta(minutes=1)
LONGEST = timedelta(hours=1)
AT_LEAST = 3
SHARE = 10


@dataclass(frozen=True, slots=True)
class Pace:
    since: datetime | None = None  # when the window began
    begun: int = 0  # remediations in it
    failed: int = 0  # windows in a row with a remediation of a Machine that never came up

    @property
    def until(self) -> datetime | None:
        return self.since + min(WINDOW * 2 ** min(self.failed, 10), LONGEST) if self.since else None

    def written(self) -> str:
        since = timestamp(self.since) if self.since else ""
        return json.dumps({"since": since, "begun": self.begun, "failed": self.failed})


class Turn(NamedTuple):
    """Whose turn it is now, and when the others' comes."""

    begin: Sequence[Object]
    pace: Pace
    others: int = 0
    others_at: datetime | None = None


def pace_of(check: Object) -> Pace:
    try:
        known = json.loads(annotations_of(check).get(REMEDIATION_PACE, "{}"))
        return Pace(moment(str(known.get("since"))), int(known.get("begun", 0)), int(known.get("failed", 0)))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return Pace()  # somebody else wrote it: the worst that follows is a minute without a limit


def take_turns(pace: Pace, waiting: Iterable[Object], healthy: Iterable[Object], total: int, now: datetime) -> Turn:
    if pace.failed and any(_created(machine) > pace.since for machine in healthy if pace.since):
        pace = Pace(pace.since, pace.begun, 0)
    over = pace.until is None or pace.until <= now
    begun = 0 if over else pace.begun
    allowed = 1 if pace.failed else max(AT_LEAST, math.ceil(total / SHARE))
    in_order = sorted(waiting, key=lambda machine: (not _came_up(machine), machine["metadata"]["name"]))
    begin = in_order[: max(allowed - begun, 0)]
    if begin:
        failed = pace.failed
        if over and not all(map(_came_up, begin)):
            failed += 1
        pace = Pace(now if over else pace.since, begun + len(begin), failed)
    others = len(in_order) - len(begin)
    return Turn(begin, pace, others, pace.until if others else None)


def _came_up(machine: Object) -> bool:
    return bool((machine.get("status") or {}).get("nodeRef"))


def _created(machine: Object) -> datetime:
    return datetime.fromisoformat(machine["metadata"]["creationTimestamp"])
