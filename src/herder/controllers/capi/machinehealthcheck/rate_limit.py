"""Rate limit of remediations, in addition to the budget.

Per minute at most a tenth of a check's Machines start remediation, but at least three. If a remediated Machine never
got a Node, the interval doubles, up to an hour, and only one remediation may start in it: more replacements do not fix
what keeps new Machines from starting. The rate recovers when a Machine created since then is healthy. Machines that a
user marked for remediation neither wait nor count.

The state is an annotation of the MachineHealthCheck. It is written before the remediations that it counts, because a
replaced Machine leaves no trace.
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
from herder.api.times import parse_time
from herder.engine.meta.kinds import Object

WINDOW = timedelta(minutes=1)
MAX_BACKOFF = timedelta(hours=1)
MIN_BATCH = 3
BATCH_DIVISOR = 10


@dataclass(frozen=True, slots=True)
class RemediationRate:
    """State of the rate limiter."""

    since: datetime | None = None  # start of the window
    begun: int = 0  # remediations started in it
    failed: int = 0  # consecutive windows with a remediation of a Machine without a Node

    @property
    def until(self) -> datetime | None:
        return self.since + min(WINDOW * 2 ** min(self.failed, 10), MAX_BACKOFF) if self.since else None

    def to_json(self) -> str:
        since = timestamp(self.since) if self.since else ""
        return json.dumps({"since": since, "begun": self.begun, "failed": self.failed})


class RemediationBatch(NamedTuple):
    """Machines whose remediation starts now, and when the deferred ones follow."""

    start: Sequence[Object]
    rate: RemediationRate
    deferred: int = 0
    deferred_until: datetime | None = None


def rate_of(check: Object) -> RemediationRate:
    try:
        known = json.loads(annotations_of(check).get(REMEDIATION_PACE, "{}"))
        return RemediationRate(
            parse_time(str(known.get("since"))), int(known.get("begun", 0)), int(known.get("failed", 0))
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return RemediationRate()  # Someone else wrote the annotation; the worst case is one minute without a limit.


def next_batch(
    rate: RemediationRate, waiting: Iterable[Object], healthy: Iterable[Object], total: int, now: datetime
) -> RemediationBatch:
    if rate.failed and any(_created(machine) > rate.since for machine in healthy if rate.since):
        rate = RemediationRate(rate.since, rate.begun, 0)
    window_over = rate.until is None or rate.until <= now
    begun = 0 if window_over else rate.begun
    allowed = 1 if rate.failed else max(MIN_BATCH, math.ceil(total / BATCH_DIVISOR))
    ordered = sorted(waiting, key=lambda machine: (not _has_node(machine), machine["metadata"]["name"]))
    start = ordered[: max(allowed - begun, 0)]
    if start:
        failed = rate.failed
        if window_over and not all(map(_has_node, start)):
            failed += 1
        rate = RemediationRate(now if window_over else rate.since, begun + len(start), failed)
    deferred = len(ordered) - len(start)
    return RemediationBatch(start, rate, deferred, rate.until if deferred else None)


def _has_node(machine: Object) -> bool:
    return bool((machine.get("status") or {}).get("nodeRef"))


def _created(machine: Object) -> datetime:
    return datetime.fromisoformat(machine["metadata"]["creationTimestamp"])
