"""What an operator measures, under the names that controller-runtime taught everyone's dashboards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from herder.engine.supervision import FAILURES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from herder.engine.runtime.queue import WorkQueue


class ControllerMetrics:
    """Children are made once for each controller: looking them up by label on every pass costs more than the pass."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._results = {
            result: metrics.reconciles.labels(controller=name, result=result)
            for result in ("success", "requeue", "error")
        }
        self._seconds = metrics.seconds.labels(controller=name)
        self._metrics = metrics
        self._name = name

    def reconciled(self, result: str, seconds: float) -> None:
        self._results[result].inc()
        self._seconds.observe(seconds)

    def follow(self, queue: WorkQueue[Any]) -> None:
        """The queue's own counts, read when somebody scrapes."""
        self._metrics.queues[self._name] = queue


class _Queues:
    """Collects from the work queues at the moment of a scrape: keeping gauges up to date would cost every pass."""

    def __init__(self, queues: Mapping[str, WorkQueue[Any]]) -> None:
        self._queues = queues

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        depth = GaugeMetricFamily("workqueue_depth", "Keys waiting", labels=["name"])
        added = CounterMetricFamily("workqueue_adds", "Keys added", labels=["name"])
        retried = CounterMetricFamily("workqueue_retries", "Keys tried again after a failure", labels=["name"])
        failures = CounterMetricFamily("background_task_failures", "Failures that were retried", labels=["task"])
        for task, count in FAILURES.items():
            failures.add_metric([task], count)
        yield failures
        for name, queue in self._queues.items():
            depth.add_metric([name], len(queue))
            added.add_metric([name], queue.added)
            retried.add_metric([name], queue.retried)
        yield from (depth, added, retried)


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = registry or CollectorRegistry()
        self.reconciles = Counter(
            "controller_runtime_reconcile",
            "Passes by controller and result",
            ["controller", "result"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Time of a pass, writes included",
            ["controller"],
            registry=self.registry,
        )
        self.leader = Gauge("leader_election_master_status", "1 while leading", ["name"], registry=self.registry)
        self.lists = Counter("informer_lists", "Whole lists taken", ["kind"], registry=self.registry)
        self.queues: dict[str, WorkQueue[Any]] = {}
        self.registry.register(_Queues(self.queues))
        self._controllers: dict[str, ControllerMetrics] = {}

    def of(self, controller: str) -> ControllerMetrics:
        if controller not in self._controllers:
            self._controllers[controller] = ControllerMetrics(self, controller)
        return self._controllers[controller]

    def render(self) -> bytes:
        """The text that a scrape gets."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
