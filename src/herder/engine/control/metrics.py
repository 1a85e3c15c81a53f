"""Metrics of control loops under controller-runtime's names, so that its dashboards work.

Loops count in plain integers that a scrape reads, because a labeled counter costs more than many reconciles.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from herder.engine.control.metric_family import counter, gauge, histogram
from herder.engine.control.supervision import FAILURES
from herder.engine.meta.histogram import Histogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from herder.engine.control.queue import WorkQueue

RESULTS = ("success", "requeue", "error")

LEADER = gauge("leader_election_master_status", "1 while this process leads, 0 while another one does", "name")
LISTS = counter("informer_lists_total", "Full lists by informers: at the start, and after history is lost", "kind")
TASK_FAILURES = counter("background_task_failures_total", "Failures of background tasks, which are restarted", "task")
DEPTH = gauge("workqueue_depth", "Keys that wait in the queue of a control loop", "name")
ADDS = counter("workqueue_adds_total", "Keys added to the queue of a control loop", "name")
RETRIES = counter("workqueue_retries_total", "Keys added again after a failure", "name")
ACTIVE = gauge("controller_runtime_active_workers", "Keys that are being reconciled", "controller")
RECONCILES = counter(
    "controller_runtime_reconcile_total", "Reconciles by result: success, requeue or error", "controller", "result"
)
RECONCILE_TIME = histogram(
    "controller_runtime_reconcile_time_seconds", "Duration of a reconcile, writes included", "controller"
)
FAMILIES = (RECONCILES, RECONCILE_TIME, ACTIVE, DEPTH, ADDS, RETRIES, LISTS, LEADER, TASK_FAILURES)


class LoopMetrics:
    """Counters of all control loops with one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.created = time.time()
        self.results = dict.fromkeys(RESULTS, 0)
        self.times = Histogram()
        self.queues: WeakSet[WorkQueue[Any]] = WeakSet()

    def track(self, queue: WorkQueue[Any]) -> None:
        """Include the queue's counters while it exists."""
        self.queues.add(queue)

    def observe(self, result: str, seconds: float) -> None:
        self.results[result] += 1
        self.times.observe(seconds)


_PROCESS_LOOPS: dict[str, LoopMetrics] = {}


def process_loop_metrics(name: str) -> LoopMetrics:
    """Return the metrics of loops outside a manager; servers in the same process share them by name."""
    return _PROCESS_LOOPS.setdefault(name, LoopMetrics(name))


class _LoopCollector:
    """Collects loops and queues on a scrape."""

    def __init__(self, loops: dict[str, LoopMetrics]) -> None:
        self._loops = loops

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        loops = [*self._loops.values(), *(each for name, each in _PROCESS_LOOPS.items() if name not in self._loops)]
        yield _task_failures()
        yield from _queues(loops)
        yield _reconciles(loops)
        yield _reconcile_times(loops)


def _task_failures() -> Metric:
    family = TASK_FAILURES.samples()
    for task, count in FAILURES.items():
        family.add_metric([task], count)
    return cast("Metric", family)


def _queues(loops: Iterable[LoopMetrics]) -> Iterator[Metric]:
    depth, added, retried, active = (each.samples() for each in (DEPTH, ADDS, RETRIES, ACTIVE))
    for loop in loops:
        queues = [queue for queue in loop.queues if not queue.closed]
        depth.add_metric([loop.name], sum(map(len, queues)))
        added.add_metric([loop.name], sum(queue.added for queue in queues))
        retried.add_metric([loop.name], sum(queue.retried for queue in queues))
        active.add_metric([loop.name], sum(queue.in_progress for queue in queues))
    yield from (depth, added, retried, active)


def _reconciles(loops: Iterable[LoopMetrics]) -> Metric:
    family = RECONCILES.samples()
    for loop in loops:
        for result, count in loop.results.items():
            family.add_metric([loop.name, result], count, created=loop.created)
    return cast("Metric", family)


def _reconcile_times(loops: Iterable[LoopMetrics]) -> Metric:
    family: Metric = RECONCILE_TIME.histograms({(loop.name,): loop.times for loop in loops})
    for loop in loops:
        family.add_sample(f"{RECONCILE_TIME.name}_created", {"controller": loop.name}, loop.created)
    return family


class Metrics:
    """Metrics of one process, or of one manager in a test."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import CollectorRegistry

        self.registry = registry or CollectorRegistry()
        self.leader = LEADER.gauge(self.registry)
        self.lists = LISTS.counter(self.registry)
        self._loops: dict[str, LoopMetrics] = {}
        self.registry.register(_LoopCollector(self._loops))

    def of(self, controller: str) -> LoopMetrics:
        return self._loops.setdefault(controller, LoopMetrics(controller))

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
