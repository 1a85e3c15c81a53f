"""Metrics of control loops under controller-runtime's names, so that its dashboards work.

Loops count in plain integers that a scrape reads, because a labeled counter costs more than many reconciles.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from herder.engine.control.supervision import FAILURES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from herder.engine.control.queue import WorkQueue

RESULTS = ("success", "requeue", "error")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Histogram bounds in seconds, the defaults of the Prometheus client."""


class LoopMetrics:
    """Counters of all control loops with one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.created = time.time()
        self.results = dict.fromkeys(RESULTS, 0)
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.queues: WeakSet[WorkQueue[Any]] = WeakSet()

    def track(self, queue: WorkQueue[Any]) -> None:
        """Include the queue's counters while it exists."""
        self.queues.add(queue)

    def observe(self, result: str, seconds: float) -> None:
        self.results[result] += 1
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS, seconds)] += 1


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
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily("background_task_failures", "Failures of background tasks", labels=["task"])
    for task, count in FAILURES.items():
        family.add_metric([task], count)
    return family


def _queues(loops: Iterable[LoopMetrics]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    depth = GaugeMetricFamily("workqueue_depth", "Keys waiting", labels=["name"])
    added = CounterMetricFamily("workqueue_adds", "Keys added", labels=["name"])
    retried = CounterMetricFamily("workqueue_retries", "Keys retried after a failure", labels=["name"])
    for loop in loops:
        queues = [queue for queue in loop.queues if not queue.closed]
        depth.add_metric([loop.name], sum(map(len, queues)))
        added.add_metric([loop.name], sum(queue.added for queue in queues))
        retried.add_metric([loop.name], sum(queue.retried for queue in queues))
    yield from (depth, added, retried)


def _reconciles(loops: Iterable[LoopMetrics]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    labels = ["controller", "result"]
    family = CounterMetricFamily("controller_runtime_reconcile", "Reconciles by controller and result", labels=labels)
    for loop in loops:
        for result, count in loop.results.items():
            family.add_metric([loop.name, result], count, created=loop.created)
    return family


def _reconcile_times(loops: Iterable[LoopMetrics]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    name = "controller_runtime_reconcile_time_seconds"
    family = HistogramMetricFamily(name, "Duration of a reconcile, writes included", labels=["controller"])
    for loop in loops:
        total, buckets = 0, []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), loop.buckets, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([loop.name], buckets, loop.seconds)
        family.add_sample(f"{name}_created", {"controller": loop.name}, loop.created)
    return family


class Metrics:
    """Metrics of one process, or of one manager in a test."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self.registry = registry or CollectorRegistry()
        self.leader = Gauge("leader_election_master_status", "1 while leading", ["name"], registry=self.registry)
        self.lists = Counter("informer_lists", "Full lists by informers", ["kind"], registry=self.registry)
        self._loops: dict[str, LoopMetrics] = {}
        self.registry.register(_LoopCollector(self._loops))

    def of(self, controller: str) -> LoopMetrics:
        return self._loops.setdefault(controller, LoopMetrics(controller))

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
