"""Definition of a metric: its name, type, help text and labels, from which scrapes and the documentation are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge

    from herder.engine.meta.histogram import Histogram


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric as scrapes show it. The name of a counter ends with `_total`."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()

    def samples(self) -> Any:
        """An empty family of the Prometheus client, for a collector to add samples to."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        create = {
            MetricType.COUNTER: CounterMetricFamily,
            MetricType.GAUGE: GaugeMetricFamily,
            MetricType.HISTOGRAM: HistogramMetricFamily,
        }[self.type]
        return create(self.name, self.help, labels=self.labels)

    def sample(self, value: float) -> Any:
        """The family with the only sample of a metric without labels."""
        family = self.samples()
        family.add_metric([], value)
        return family

    def histograms(self, found: Mapping[tuple[str, ...], Histogram]) -> Any:
        """The family with one histogram per tuple of label values."""
        family = self.samples()
        for labels, histogram in found.items():
            family.add_metric(list(labels), histogram.cumulative(), histogram.total)
        return family

    def counter(self, registry: CollectorRegistry) -> Counter:
        """A counter for events that are too rare for a collector of plain integers to pay off."""
        from prometheus_client import Counter

        return Counter(self.name, self.help, self.labels, registry=registry)

    def gauge(self, registry: CollectorRegistry) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(self.name, self.help, self.labels, registry=registry)


def counter(name: str, about: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, MetricType.COUNTER, about, labels)


def gauge(name: str, about: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, MetricType.GAUGE, about, labels)


def histogram(name: str, about: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, MetricType.HISTOGRAM, about, labels)
