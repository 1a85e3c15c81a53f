"""Metrics of the store of the embedded server, and of its HTTP listener."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from herder.engine.control.metric_family import counter, gauge, histogram
from herder.engine.store.store import Store

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from herder.engine.control.metrics import Metrics

REVISION = gauge("herder_store_revision", "Last committed revision")
COMPACTED = gauge("herder_store_compacted_revision", "Oldest revision that can be read")
OBJECTS = gauge("herder_store_objects", "Objects by resource", "resource")
SIZE = gauge("herder_store_database_bytes", "Size of the database on disk, with its write-ahead log")
PENDING = gauge("herder_store_pending_writes", "Objects with a write that is not committed yet")
COMMITS = histogram("herder_store_commit_duration_seconds", "Duration of transactions that succeeded, fsync included")
FAILURES = counter("herder_store_commit_failures_total", "Transactions that failed")
FAILED = gauge("herder_store_failed", "1 while the last transaction has failed: all writes are refused or at risk")
WATCHES = gauge("herder_store_watches", "Watches of clients and controllers")
FAMILIES = (REVISION, COMPACTED, OBJECTS, SIZE, PENDING, COMMITS, FAILURES, FAILED, WATCHES)

BACKUPS = counter("herder_store_backups_total", "Scheduled backups of the store by result", "result")
BACKUP_TIME = gauge("herder_store_backup_last_success_timestamp_seconds", "Time of the last scheduled backup")
BACKUP_SIZE = gauge("herder_store_backup_size_bytes", "Size of the last scheduled backup")
BACKUP_FAMILIES = (BACKUPS, BACKUP_TIME, BACKUP_SIZE)


def add_store_metrics(metrics: Metrics, store: Store) -> None:
    metrics.registry.register(_Collector(store))


class _Collector:
    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        store, found = self._store, self._store.statistics()
        objects = OBJECTS.samples()
        for resource, count in found.objects.items():
            objects.add_metric([resource], count)
        yield from (
            REVISION.sample(store.revision),
            COMPACTED.sample(store.compacted),
            objects,
            SIZE.sample(found.database_bytes),
            PENDING.sample(found.pending),
            COMMITS.histograms({(): found.commit_times}),
            FAILURES.sample(found.failed_commits),
            FAILED.sample(store.failure is not None),
            WATCHES.sample(sum(found.watches.values())),
        )
