"""Progress of an operation: percent, and the time that remains, from earlier runs of the cluster. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from herder.api.rke.operations import FAILED, Run, active_run, phases_of
from herder.engine.apiserver.tables.duration import human_duration
from herder.engine.meta.kinds import Object

UNKNOWN = "this cluster has no earlier run"


@dataclass(frozen=True)
class Estimate:
    percent: int
    remaining: int | None  # seconds; None if nothing is known
    basis: str  # what the estimate is based on

    def __str__(self) -> str:
        left = "" if self.remaining is None else f", about {human_duration(self.remaining)} left ({self.basis})"
        return f"{self.percent}%{left}"

    def to_data(self) -> Object:
        known = {} if self.remaining is None else {"remainingSeconds": self.remaining}
        return {"percent": self.percent, **known, "basis": self.basis}


def estimate(control_plane: Object | None, now: datetime) -> Estimate | None:
    """The progress of the operation that runs; None without one."""
    run = active_run(control_plane)
    phases = phases_of(run.kind) if run is not None else []
    if run is None or run.phase not in phases or run.message:
        return None
    position, earlier = phases.index(run.phase), _earlier_timings(control_plane, run)
    if not earlier:
        return Estimate(100 * position // len(phases), None, UNKNOWN)
    expected = [median(each.get(phase, 0) for each in earlier) for phase in phases]
    begun = run.phase_started_at or run.started_at
    elapsed = min(max(((run.suspended_at or now) - begun).total_seconds(), 0), expected[position])
    total, done = max(sum(expected), 1), sum(expected[:position]) + elapsed
    runs = f"from {len(earlier)} earlier run{'s' if len(earlier) > 1 else ''}"
    return Estimate(min(int(100 * done / total), 99), round(total - done), runs)


def _earlier_timings(control_plane: Object | None, run: Run) -> Sequence[Mapping[str, int]]:
    """Seconds by phase, of runs of this kind that succeeded."""
    history = ((control_plane or {}).get("status") or {}).get("operationHistory") or ()
    return [each.get("timings") or {} for each in history if each.get("kind") == run.kind and each["phase"] != FAILED]
