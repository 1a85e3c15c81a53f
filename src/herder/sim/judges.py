"""Judges of operations on simulated clusters: data, members and clusters.

They observe machines, and use neither the planner's view nor its guards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from herder.engine.store import Key
from herder.sim.host.disk import Snapshot
from herder.sim.host.etcd import Content, EtcdCluster
from herder.sim.host.trust import trust_problems
from herder.sim.nodes import NodeObserver, SimulatedNode

VOLATILE = ("nodes", "leases.coordination.k8s.io", "events", "etcdsnapshotfiles.k3s.cattle.io", "pods")
"""Resources that a cluster changes by itself."""


@dataclass
class OperationJudge(NodeObserver):
    """Records violations. `is_restoring`: whether the user has requested a restore that is not finished."""

    is_restoring: Callable[[], bool] = lambda: True
    violations: list[str] = field(default_factory=list)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)  # by name
    restored_from: Snapshot | None = None  # the last restore
    _current: EtcdCluster | None = None

    def saved(self, node: SimulatedNode, snapshot: Snapshot) -> None:
        self.snapshots[snapshot.name] = snapshot

    def restored(self, node: SimulatedNode, snapshot: Snapshot) -> None:
        self.restored_from = snapshot
        if not self.is_restoring():
            self._report("no restore without a request", f"{node.name} restored {snapshot.name}")

    def replaced_etcd(self, node: SimulatedNode, old: EtcdCluster | None, new: EtcdCluster) -> None:
        """While members of the old cluster serve, clients would write to both."""
        self._current = new
        if old is not None and old.serves:
            running = ", ".join(member.name for member in old.voters)
            self._report("never two clusters", f"{node.name} serves another one while {running} serve")

    def revived_etcd(self, node: SimulatedNode, old: EtcdCluster) -> None:
        self._report("a fenced member never rejoins", f"{node.name} serves the data of before the restore again")

    def up(self, node: SimulatedNode) -> None:
        """Machines load CAs and certificates when they start."""
        for problem in trust_problems(node.cluster.nodes.values()):
            self._report("no machine loses trust", problem)

    def stopped(self, node: SimulatedNode, *, by_plan: bool) -> None:
        """Quorum is lost only while a restore is requested."""
        etcd = self._current
        if not by_plan or etcd is None or etcd.members.get(node.name) is not node or len(etcd.members) == 1:
            return
        if not etcd.has_quorum and not self.is_restoring():
            self._report(
                "never below quorum", f"{node.name} was stopped, {len(etcd.voters)} of {len(etcd.members)} run"
            )

    def missing_after_restore(self, content: Content) -> list[str]:
        """Objects of the restored snapshot that do not exist in the content."""
        if self.restored_from is None:
            return []
        known = {record.key for record in content.records}
        return [str(key) for key in _stable(self.restored_from.content) if key not in known]

    def _report(self, rule: str, details: str) -> None:
        self.violations.append(f"{rule}: {details}")

    def check(self) -> None:
        if self.violations:
            raise AssertionError("; ".join(self.violations))


def _stable(content: Content) -> list[Key]:
    return [record.key for record in content.records if record.key.resource not in VOLATILE]
