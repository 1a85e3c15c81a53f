"""An operation on one cluster leaves the others alone: `make bench` measures the same with up to 1,000 clusters."""

from __future__ import annotations

from bench import operations
from herder.sim import loop


def test_operations_neither_reconcile_nor_write_other_clusters() -> None:
    costs = loop.run(operations.measure(4))
    assert [cost.title for cost in costs] == ["certificate rotation", "etcd snapshot"]
    assert [(cost.other_reconciles, cost.other_writes) for cost in costs] == [(0, 0), (0, 0)]
