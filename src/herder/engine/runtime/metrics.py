"""What an operator measures, under the names that controller-runtime taught everyone's dashboards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class ControllerMetrics:
    """Children are made once for each controller: looking them up by label on every pass costs more than the pass."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._results = {
            result: metrics.reconciles.labels(controller=name, result=result)
            for result in ("success", "requeue", "error")
        }
        self._seconds = metrics.seconds.labels(controller=name)
        self._depth = metrics.queue_depth.labels(name=name)

    def reconciled(self, result: str, seconds: float) -> None:
        self._results[result].inc()
        self._seconds.observe(seconds)

    def depth(self, depth: int) -> None:
        self._depth.set(depth)


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
        self.queue_depth = Gauge("workqueue_depth", "Keys waiting", ["name"], registry=self.registry)
        self.leader = Gauge("leader_election_master_status", "1 while leading", ["name"], registry=self.registry)
        self.relists = Counter("informer_relists", "Fresh lists taken", ["kind"], registry=self.registry)
        self._controllers: dict[str, ControllerMetrics] = {}

    def of(self, controller: str) -> ControllerMetrics:
        if controller not in self._controllers:
            self._controllers[controller] = ControllerMetrics(self, controller)
        return self._controllers[controller]

    def render(self) -> bytes:
        """The text that a scrape gets."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
