"""Metrics of the informer caches of a manager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from herder.engine.control.metric_family import gauge
from herder.engine.runtime.manager import Manager

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OBJECTS = gauge("herder_cache_objects", "Objects in the informer cache of a kind", "kind")
BYTES = gauge("herder_cache_bytes", "Size of these objects, encoded", "kind")
SYNCED = gauge("herder_cache_synced", "1 once the informer has listed a kind that the API server serves", "kind")
FAILING = gauge("herder_informer_failing", "1 while the list or watch of a served kind fails", "kind")
FAMILIES = (OBJECTS, BYTES, SYNCED, FAILING)


class CacheCollector:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        objects, size, synced, failing = (each.samples() for each in FAMILIES)
        for kind, informer in list(self._manager.informers.items()):
            # Kinds with a field selector are cached apart from the others of the same name.
            name = [f"{kind}[{kind.fields}]" if kind.fields else f"{kind} metadata" if kind.partial else str(kind)]
            objects.add_metric(name, len(informer.cache))
            size.add_metric(name, informer.cache.size)
            synced.add_metric(name, informer.synced.is_set())
            failing.add_metric(name, bool(informer.failure) and informer.cache.served)
        yield from (objects, size, synced, failing)
