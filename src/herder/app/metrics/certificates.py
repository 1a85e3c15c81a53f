"""Metric of certificates on machines: when the first one of each machine expires.

Of each machine only the first certificate is exported, and of each cluster only the machines that come first: alerts
need no more, and the number of series stays bounded in clusters with thousands of machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import CLUSTER_NAME, labels_of
from herder.api.rke.node.certificates import certificates_of
from herder.engine.control.cache import Cache
from herder.engine.control.metric_family import gauge
from herder.engine.meta.kinds import Object
from herder.engine.runtime.manager import Manager

if TYPE_CHECKING:
    from prometheus_client.core import Metric

INDEX = "first-certificate"
MAX_MACHINES = 100
"""Machines of one cluster that are exported."""

EXPIRY = gauge(
    "herder_certificate_expiry_timestamp_seconds",
    f"Earliest expiry of a certificate on the machine; of each cluster, the {MAX_MACHINES} machines that expire first",
    "namespace",
    "cluster",
    "machine",
    "certificate",
)


def first_certificate(machine: Object) -> Iterable[str]:
    """Indexer of Machines: labels and value of the sample, separated by tabs, which none of them contains."""
    cluster, found = labels_of(machine).get(CLUSTER_NAME), certificates_of(machine)
    if not cluster or not found:
        return ()
    meta, first = machine["metadata"], found[0]
    timestamp = int(first.expires.timestamp())
    return ("\t".join((meta["namespace"], cluster, meta["name"], first.path, str(timestamp))),)


def add_certificate_metric(manager: Manager) -> None:
    cache = manager.caches.get(MACHINE)
    if cache is not None:
        cache.add_indexer(INDEX, first_certificate)
        manager.metrics.registry.register(_Collector(cache))


class _Collector:
    """Reads the cache on a scrape, so that series of deleted machines end by themselves."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = EXPIRY.samples()
        clusters: dict[tuple[str, str], list[tuple[int, list[str]]]] = defaultdict(list)
        for value in self._cache.values(INDEX):
            *labels, timestamp = value.split("\t")
            clusters[labels[0], labels[1]].append((int(timestamp), labels))
        for machines in clusters.values():
            for expires, labels in nsmallest(MAX_MACHINES, machines):
                family.add_metric(labels, expires)
        yield family
