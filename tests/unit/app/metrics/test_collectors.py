"""Metrics of clusters, operations, plans, tunnels and the store follow what happens."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, cast

from herder.api import observe_only
from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, PLAN_SECRET
from herder.app.metrics.clusters import add_cluster_metrics
from herder.app.metrics.gateway import add_tunnel_metrics, agents_that_watch
from herder.app.metrics.operations import add_operation_metrics
from herder.app.metrics.store import add_store_metrics
from herder.engine.control.cache import Cache, Change
from herder.engine.control.metrics import Metrics
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.manager import Manager
from herder.engine.store.records import Key, Put
from herder.engine.store.store import Store
from herder.tunnel import registry
from herder.tunnel.link import Link
from herder.tunnel.registry import Registry

CHECKSUM = "c" * 64


class StandIn:
    """The caches and listeners of a manager."""

    def __init__(self) -> None:
        kinds = (PROVISIONING_CLUSTER, MANAGEMENT_CLUSTER, MACHINE, PLAN_SECRET, CONTROL_PLANE)
        self.caches = {kind: Cache(kind) for kind in kinds}
        self.caches[PROVISIONING_CLUSTER].add_indexer(observe_only.INDEX, lambda _obj: ())
        self.metrics = Metrics()
        self._listeners: dict[Kind, Any] = {}
        self._revision = 0

    def listen(self, kind: Kind, changed: Any) -> None:
        self._listeners[kind] = changed

    def put(self, kind: Kind, name: str, **fields: Any) -> None:
        self._revision += 1
        meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(self._revision)}
        obj: Object = {"apiVersion": kind.api_version, "kind": kind.kind, **fields}
        obj["metadata"] = {**meta, **fields.get("metadata", {})}
        change = self.caches[kind].upsert(obj)
        if kind in self._listeners and change is not None:
            self._listeners[kind](cast(Change, change))

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def prepared() -> StandIn:
    manager = StandIn()
    add_cluster_metrics(cast(Manager, manager), lambda _name: f"0.2.0 {CHECKSUM}")
    add_operation_metrics(cast(Manager, manager))
    return manager


def control_plane(run: Object | None, *ended: Object) -> Object:
    return {"status": {"operation": run, "operationHistory": [*ended]} if run or ended else {}}


def run(number: int, phase: str, kind: str = "etcdSnapshotRestore", **fields: Any) -> Object:
    start = f"2026-11-19T10:00:0{number}Z"
    return {"id": str(number), "kind": kind, "phase": phase, "startedAt": start, **fields}


def test_operations_are_counted_when_they_end() -> None:
    manager, kind = prepared(), "etcdSnapshotRestore"
    before = run(0, "Finished", endedAt="2026-11-19T10:00:09Z")
    manager.put(CONTROL_PLANE, "a", **control_plane(run(1, "Shutdown"), before))
    assert manager.value("herder_operations_running", kind=kind) == 1
    assert manager.value("herder_operation_oldest_start_timestamp_seconds", kind=kind) == 1795082401
    assert manager.value("herder_operations_total", kind=kind, result="success") == 0, "it ended before the start"
    failed = run(1, "Failed", message="no quorum", endedAt="2026-11-19T10:03:21Z")
    manager.put(CONTROL_PLANE, "a", **control_plane(failed, before, failed))
    manager.put(CONTROL_PLANE, "a", **control_plane(failed, before, failed), spec={"other": "change"})
    assert manager.value("herder_operations_running", kind=kind) == 0
    assert manager.value("herder_operations_total", kind=kind, result="failed") == 1
    assert manager.value("herder_operation_duration_seconds_sum", kind=kind) == 200
    aborted = run(2, "Failed", message="aborted on request", endedAt="2026-11-19T10:03:21Z")
    strange = run(3, "Finished", kind="x" * 100, endedAt="not a time")
    manager.put(CONTROL_PLANE, "a", **control_plane(None, failed, aborted, strange))
    assert manager.value("herder_operations_total", kind=kind, result="aborted") == 1
    assert manager.value("herder_operations_total", kind="other", result="success") == 1


def secret(state: str, failures: int = 0, agent: str = CHECKSUM, cluster: str = "meadow") -> Object:
    data = {"plan": "{}", "plan-state": state, "failure-count": str(failures), "agent-checksum": agent}
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}
    return {"metadata": {"labels": {names.CLUSTER_NAME: cluster}}, "data": encoded}


def test_plans_are_counted_by_cluster_and_state() -> None:
    manager = prepared()
    manager.put(PLAN_SECRET, "a", **secret("in-progress"))
    manager.put(PLAN_SECRET, "b", **secret("succeeded", agent=""))
    labels = {"namespace": "default", "cluster": "meadow"}
    assert manager.value("herder_node_plans", **labels, state="in-progress") == 1
    assert manager.value("herder_node_plans", **labels, state="applied") == 1
    assert manager.value("herder_node_agents", state="current") == 1
    assert manager.value("herder_node_agents", state="unreported") == 1
    manager.put(PLAN_SECRET, "a", **secret("in-progress", failures=1))
    manager.put(PLAN_SECRET, "a", **secret("failed", failures=2**62))
    assert manager.value("herder_node_plan_failures_total") == 2, "a node cannot choose the number"
    assert manager.value("herder_node_plans", **labels, state="in-progress") is None
    assert manager.value("herder_node_plans", **labels, state="failed") == 1


def test_clusters_and_machines_are_counted_by_state() -> None:
    manager = prepared()
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    manager.put(PROVISIONING_CLUSTER, "a", status=ready)
    manager.put(PROVISIONING_CLUSTER, "b")
    manager.put(PROVISIONING_CLUSTER, "c", status=ready, metadata={"deletionTimestamp": "2026-11-19T10:00:00Z"})
    manager.put(MANAGEMENT_CLUSTER, "c-m-1", status={"apiEndpoint": "https://10.0.0.1"})
    manager.put(MACHINE, "a", status={"phase": "Running"})
    manager.put(MACHINE, "b", status={"phase": "chosen by a user"})
    counts = [manager.value("herder_clusters", state=state) for state in ("ready", "not-ready", "deleting")]
    assert counts == [1, 1, 1]
    assert manager.value("herder_cluster_agents", state="disconnected") == 1
    assert manager.value("herder_machines", phase="Running") == 1
    assert manager.value("herder_machines", phase="other") == 1


# --- tunnels and the store --------------------------------------------------------------------------------------------


class Upgrade:
    def take(self, protocol: Any, answer: bytes = b"") -> Any:
        return None


def opened(tunnels: Registry, key: str) -> Link:
    return tunnels.accept(key, {"sec-websocket-key": "x"}, cast(Any, Upgrade()))


async def test_reconnects_are_counted() -> None:
    metrics, tunnels = Metrics(), Registry()
    add_tunnel_metrics(metrics, tunnels)

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"herder_tunnel_{name}")

    first, second = opened(tunnels, "a"), opened(tunnels, "a")
    assert (value("connected_clients"), value("sessions"), value("reconnects_total")) == (1, 2, 0)
    tunnels._remove("a", first, False)
    assert value("disconnects_total") == 0
    tunnels._remove("a", second, False)
    assert (value("connected_clients"), value("disconnects_total")) == (0, 1)
    opened(tunnels, "b")
    assert value("reconnects_total") == 0
    opened(tunnels, "a")
    assert (value("reconnects_total"), value("sessions_opened_total")) == (1, 4)


async def test_only_the_last_lost_clients_are_remembered(monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "MAX_LOST", 2)
    tunnels = Registry()
    for key in ("a", "b", "c"):
        tunnels._remove(key, opened(tunnels, key), False)
    assert list(tunnels._lost) == ["b", "c"]


async def test_the_store_reports_objects_commits_and_failures(tmp_path: Path) -> None:
    metrics = Metrics()
    store = Store.open(tmp_path, clock=lambda: 1.0)
    add_store_metrics(metrics, store)
    key = Key("secrets", "default", "a")
    await store.write(Put(key, lambda revision: b"{}", 0))
    await store.write(Put(key, lambda revision: b"[]", None))

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"herder_store_{name}", labels)

    watch = store.watch("secrets", "default", "a", since=store.revision)
    assert value("objects", resource="secrets") == 1
    assert value("commit_duration_seconds_count") == 2
    assert (value("revision"), value("watches"), value("failed"), value("pending_writes")) == (2, 1, 0, 0)
    assert (value("database_bytes") or 0) > 1000
    plans = StandIn()
    assert agents_that_watch(store, cast(Manager, plans)) == 0
    plans.put(PLAN_SECRET, "a")
    assert agents_that_watch(store, cast(Manager, plans)) == 1
    watch.close()
    await store.close()
