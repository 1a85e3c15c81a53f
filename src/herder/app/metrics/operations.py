"""Metrics of operations: those in progress, and those that have ended, as the status of control planes records them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import ABORTED, FAILED, TITLES, active_run
from herder.api.times import parse_time
from herder.engine.control.cache import Change
from herder.engine.control.metric_family import counter, gauge, histogram
from herder.engine.meta.histogram import Histogram
from herder.engine.meta.kinds import Object
from herder.engine.runtime.manager import Manager

if TYPE_CHECKING:
    from prometheus_client.core import Metric

INDEX = "metrics-operation"
RESULTS = ("success", "failed", "aborted")
BOUNDS = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0)
_OTHER = "other"
_KINDS = (*TITLES, _OTHER)

RUNNING = gauge("herder_operations_running", "Operations in progress", "kind")
OLDEST = gauge(
    "herder_operation_oldest_start_timestamp_seconds", "When the oldest operation in progress has started", "kind"
)
ENDED = counter(
    "herder_operations_total", "Operations that ended, by result: success, failed or aborted", "kind", "result"
)
DURATION = histogram("herder_operation_duration_seconds", "Duration of operations that ended", "kind")
FAMILIES = (RUNNING, OLDEST, ENDED, DURATION)


def running_operation(control_plane: Object) -> Iterable[str]:
    """Kind and start of the operation in progress."""
    run = active_run(control_plane)
    return (f"{_known(run.kind)}\t{int(run.started_at.timestamp())}",) if run is not None else ()


def _known(kind: object) -> str:
    """Whoever can write the status must not create series."""
    return kind if isinstance(kind, str) and kind in TITLES else _OTHER


def add_operation_metrics(manager: Manager) -> None:
    if CONTROL_PLANE in manager.caches:
        manager.metrics.registry.register(_Collector(manager))


class _Collector:
    def __init__(self, manager: Manager) -> None:
        self._cache = manager.caches[CONTROL_PLANE]
        self._cache.add_indexer(INDEX, running_operation)
        self._ended = {(kind, result): 0 for kind in _KINDS for result in RESULTS}
        self._durations: dict[tuple[str, ...], Histogram] = {(kind,): Histogram(BOUNDS) for kind in _KINDS}
        manager.listen(CONTROL_PLANE, self._count)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        running, oldest, ended = RUNNING.samples(), OLDEST.samples(), ENDED.samples()
        counts: dict[str, int] = dict.fromkeys(_KINDS, 0)
        starts: dict[str, int] = {}
        for value in self._cache.values(INDEX):
            kind, _, started = value.partition("\t")
            counts[kind] += self._cache.count((INDEX, value))
            starts[kind] = min(int(started), starts.get(kind, int(started)))
        for kind, count in counts.items():
            running.add_metric([kind], count)
        for kind, start in starts.items():
            oldest.add_metric([kind], start)
        for labels, count in self._ended.items():
            ended.add_metric(list(labels), count)
        yield from (running, oldest, ended, DURATION.histograms(self._durations))

    def _count(self, change: Change) -> None:
        """Count the entries of the history that are new; those of the first list ended before."""
        if change.old is None or change.new is None:
            return
        known, found = _history(change.old), _history(change.new)
        if known == found:
            return
        before = {each.get("id") for each in known}
        for entry in found:
            if entry.get("id") not in before:
                self._record(entry)

    def _record(self, entry: Object) -> None:
        kind = _known(entry.get("kind"))
        aborted = str(entry.get("message") or "").startswith(ABORTED)
        result = "success" if entry.get("phase") != FAILED else "aborted" if aborted else "failed"
        self._ended[kind, result] += 1
        started, ended = (parse_time(str(entry.get(name) or "")) for name in ("startedAt", "endedAt"))
        if started is not None and ended is not None:
            self._durations[kind,].observe(max((ended - started).total_seconds(), 0.0))


def _history(control_plane: Object) -> list[Object]:
    return (control_plane.get("status") or {}).get("operationHistory") or []
