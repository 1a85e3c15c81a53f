"""What must never happen to a provisioned cluster, checked by its simulated machines and by what users requested.

Neither the planner's own view nor the guards are used.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from herder.agent.core import events
from herder.agent.core.events import Action
from herder.api.capi.conditions import find
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import PAUSED, annotations_of, is_deleting, labels_of
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.node.plan import AGENT_STATUS, CERTIFICATE_EXPIRY, SNAPSHOT_HASHES
from herder.engine.meta.kinds import Kind, Object
from herder.sim.downstream import Downstream
from herder.sim.host.disk import Snapshot
from herder.sim.host.etcd import EtcdCluster
from herder.sim.judges import OperationJudge
from herder.sim.nodes import Installed, NodeObserver, SimulatedNode

WATCHED = (CLUSTER, CONTROL_PLANE, MACHINE, PLAN_SECRET)

GRACE = 5.0
"""Decisions that a manager made before it knew of a change are carried out within this many seconds."""

PERIODIC = ("capture-address", "etcd-name", AGENT_STATUS, CERTIFICATE_EXPIRY, SNAPSHOT_HASHES)
RESTORE_PHASE = "etcdSnapshotRestorePhase"
ETCD, CONTROL, WORKER = "etcd", "control plane", "worker"


class Violation(AssertionError):
    """Something that must never happen has happened."""


@dataclass
class Delivery:
    """A plan that was written for a machine: when, and which machines were known to be down then."""

    at: float
    known_down: frozenset[str] = frozenset()


@dataclass
class PlanInvariants(NodeObserver):
    clock: Callable[[], float]
    cluster: Downstream = field(init=False)
    objects: dict[Kind, dict[str, Object]] = field(default_factory=lambda: {kind: {} for kind in WATCHED})
    deleted_by_user: set[str] = field(default_factory=set)  # Machines that the user deleted
    violations: list[str] = field(default_factory=list)
    judge: OperationJudge = field(init=False)
    machines_are_stable: bool = False
    """Whether no machine fails by itself. Then a plan that takes quorum is wrong whatever the manager knew."""
    _finished: set[tuple[str, str, str]] = field(default_factory=set)
    _highest: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _initialized_by: list[SimulatedNode] = field(default_factory=list)
    _disturbed: dict[str, SimulatedNode] = field(default_factory=dict)  # stopped by a plan, and not up again
    _served_since: dict[str, float] = field(default_factory=dict)
    _deliveries: dict[str, Delivery] = field(default_factory=dict)  # by Secret
    _down_since: dict[str, float] = field(default_factory=dict)  # Machines, as reported by the manager's API
    _paused_since: dict[str, float] = field(default_factory=dict)
    _last_stop: tuple[str, float] = ("", 0.0)
    _restoring_at: float = -math.inf
    _limits: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.judge = OperationJudge(self.is_restoring)

    def _report_violation(self, rule: str, details: str) -> None:
        """Record a violation for a later check: an exception here would stop a simulated component."""
        self.violations.append(f"{rule}: {details} (at {self.clock():.2f})")

    def check(self) -> None:
        if self.all_violations:
            raise Violation("; ".join(self.all_violations))

    @property
    def all_violations(self) -> list[str]:
        return [*self.violations, *self.judge.violations]

    # --- actions of machines ------------------------------------------------------------------------------------------

    def acts(self, node: SimulatedNode, action: Action) -> None:
        match action:
            case events.Persist(record) if record.result is not None:
                self._finished.add((record.uid, record.revision, record.checksum))
            case events.Run(_, instruction, _) if instruction.name not in PERIODIC:
                known = node.disk.journal.record
                identity = (known.uid, known.revision, known.checksum) if known else ("", "", "")
                if identity in self._finished:
                    self._report_violation(
                        "an applied plan is never run again", f"{node.name} runs revision {identity[1]}"
                    )

    def installs(self, node: SimulatedNode, new: Installed) -> None:
        version = release(new.version)
        if version < self._highest.get(node.name, ()) and not self._is_restored(version, node):
            self._report_violation(
                "never a downgrade", f"{node.name} gets {new.version} after {self._highest[node.name]}"
            )
        self._highest[node.name] = version

    def saved(self, node: SimulatedNode, snapshot: Snapshot) -> None:
        self.judge.saved(node, snapshot)

    def restored(self, node: SimulatedNode, snapshot: Snapshot) -> None:
        self.judge.restored(node, snapshot)

    def replaced_etcd(self, node: SimulatedNode, old: EtcdCluster | None, new: EtcdCluster) -> None:
        self.judge.replaced_etcd(node, old, new)

    def revived_etcd(self, node: SimulatedNode, old: EtcdCluster) -> None:
        self.judge.revived_etcd(node, old)

    def is_restoring(self) -> bool:
        """Whether a restore was requested and is not finished."""
        phases = [(plane.get("status") or {}).get(RESTORE_PHASE) for plane in self.objects[CONTROL_PLANE].values()]
        return any(phase not in (None, "", "Finished", "Failed") for phase in phases)

    def _is_restored(self, version: tuple[int, ...], node: SimulatedNode) -> bool:
        """Whether a restore was requested with this version, and the plan was written before its end.

        A restore does not wait for a worker that is lost: the worker applies its plan when it returns.
        """
        specs = [plane["spec"] for plane in self.objects[CONTROL_PLANE].values()]
        modes = [(spec.get("etcdSnapshotRestore") or {}).get("restoreRKEConfig") for spec in specs]
        restored = [spec for spec, mode in zip(specs, modes, strict=True) if mode in ("kubernetesVersion", "all")]
        wanted = [release(spec["kubernetesVersion"]) for spec in restored]
        delivery = self._deliveries.get(node.secret, Delivery(math.inf))
        return delivery.at <= self._restoring_at and version in wanted

    def began_cluster(self, node: SimulatedNode) -> None:
        """A machine that is being deleted takes its cluster with it."""
        others = [other.name for other in self._initialized_by if not other.destroyed and not self._is_deleting(other)]
        if others:
            self._report_violation("never two clusters", f"{node.name} initializes one after {', '.join(others)}")
        self._initialized_by.append(node)

    def stopped(self, node: SimulatedNode, *, by_plan: bool) -> None:
        self._last_stop = (node.name, self.clock())
        if self.machines_are_stable:
            self.judge.stopped(node, by_plan=by_plan)
        if by_plan:
            self._disturbed[node.name] = node
            self._check_quorum(node)
            self._check_strategy(node)

    def up(self, node: SimulatedNode) -> None:
        self.judge.up(node)
        self._served_since.setdefault(node.name, self.clock())
        self._disturbed.pop(node.name, None)

    def destroyed(self, node: SimulatedNode) -> None:
        """The provider destroyed it because its Machine is being deleted: it must have left etcd by then."""
        self._disturbed.pop(node.name, None)
        ran = self._last_stop == (node.name, self.clock())
        if not ran or not self.cluster.is_member(node) or self._cluster_is_deleting() or not self._others_remain(node):
            return
        members, voters = len(self.cluster.members), len(self.cluster.voters)
        if voters < members // 2 + 1 <= voters + 1:
            message = f"{node.name} is destroyed and still a member: {voters} of {members} are left"
            self._report_violation("never below quorum", message)

    # --- concurrency --------------------------------------------------------------------------------------------------

    def _check_quorum(self, node: SimulatedNode) -> None:
        if not self.cluster.is_member(node) or self.is_restoring():
            return
        delivery = self._deliveries.get(node.secret, Delivery(0.0))
        others = [member for member in self.cluster.members.values() if member is not node]
        down = [member for member in others if not member.running and self._is_known_down_for(member, delivery)]
        healthy, needed = len(others) - len(down), (len(others) + 1) // 2 + 1
        if down and healthy < needed:
            names_ = [member.name for member in down]
            self._report_violation("never below quorum", f"{node.name} was stopped while {names_} were down")

    def _is_known_down_for(self, member: SimulatedNode, delivery: Delivery) -> bool:
        """Whether a plan stopped the member, or it was known to be down when the plan was written."""
        machine = self.machine_of(member)
        return member.name in self._disturbed or machine in delivery.known_down

    def _check_strategy(self, node: SimulatedNode) -> None:
        """Counts machines that remain and had served before they received the plan; others are not disrupted by it."""
        if self.is_restoring():
            return
        tier = tier_of(node)
        down = [
            other for other in self._disturbed.values() if tier_of(other) == tier and self._counts_for_strategy(other)
        ]
        if node not in down:
            return
        oldest = min(self._deliveries.get(other.secret, Delivery(0.0)).at for other in down)
        limit = self._highest_limit_since(tier, oldest - GRACE)
        if len(down) > limit:
            names_ = ", ".join(other.name for other in down)
            self._report_violation(
                "never more down than the strategy allows", f"{names_} of {tier}, the limit is {limit}"
            )

    def _counts_for_strategy(self, node: SimulatedNode) -> bool:
        requested_at = self._deliveries.get(node.secret, Delivery(math.inf)).at
        return not self._is_deleting(node) and self._served_since.get(node.name, 0.0) <= requested_at

    def _highest_limit_since(self, tier: str, since: float) -> float:
        """The highest limit since then."""
        within = [limits[tier] for at, limits in self._limits if at >= since]
        before = [limits[tier] for at, limits in self._limits if at < since][-1:]
        return max([*within, *before], default=1)

    # --- events of objects --------------------------------------------------------------------------------------------

    def __call__(self, kind: Kind, event: str, obj: Object) -> None:
        """Process every event of the watched kinds, in order."""
        name, known = obj["metadata"]["name"], self.objects[kind]
        before = known.get(name)
        if event == "DELETED":
            known.pop(name, None)
        else:
            known[name] = obj
        self._record_pauses(kind, name, None if event == "DELETED" else obj)
        if kind == MACHINE:
            self._record_health(name, None if event == "DELETED" else obj)
            self._check_machine(event, before, obj)
        elif kind == PLAN_SECRET and event != "DELETED":
            self._check_plan(before, obj)
        if self.is_restoring():
            self._restoring_at = self.clock()
        self._limits.append((self.clock(), dict(self._current_limits())))

    def _record_pauses(self, kind: Kind, name: str, obj: Object | None) -> None:
        key = f"{kind.kind}/{name}"
        paused = obj is not None and (PAUSED in annotations_of(obj) or bool((obj.get("spec") or {}).get("paused")))
        if paused:
            self._paused_since.setdefault(key, self.clock())
        else:
            self._paused_since.pop(key, None)

    def _is_paused(self, key: str) -> bool:
        return self._paused_since.get(key, math.inf) < self.clock() - GRACE

    def _cluster_is_paused(self) -> bool:
        return any(self._is_paused(key) for key in self._paused_since if not key.startswith(f"{MACHINE.kind}/"))

    def _record_health(self, name: str, machine: Object | None) -> None:
        ready = find(machine, "NodeReady") if machine else None
        lost = ready is not None and ready["status"] != "True" and ready.get("reason", "").startswith("NodeReady")
        if lost or (ready is not None and ready.get("reason") == "NodeNotReady"):
            self._down_since.setdefault(name, self.clock())
        else:
            self._down_since.pop(name, None)

    def _is_known_down(self, node: str, at: float) -> bool:
        machine = next((self.machine_of(each) for each in self.cluster.members.values() if each.name == node), "")
        return self._down_since.get(machine, math.inf) < at - GRACE

    def _check_machine(self, event: str, before: Object | None, machine: Object) -> None:
        name = machine["metadata"]["name"]
        created = event == "ADDED" and before is None
        deleted = (
            before is not None and not is_deleting(before) and is_deleting(machine) and name not in self.deleted_by_user
        )
        if (created or deleted) and self._cluster_is_paused() and not self._cluster_is_deleting():
            action = "created" if created else "deleted"
            self._report_violation("a paused cluster is never changed", f"Machine {name} was {action}")

    def _check_plan(self, before: Object | None, secret: Object) -> None:
        if not is_new_request(before, secret):
            return
        name, machine = secret["metadata"]["name"], labels_of(secret).get(names.MACHINE_NAME, "")
        now = self.clock()
        known = frozenset(each for each, since in self._down_since.items() if since < now - GRACE)
        self._deliveries[name] = Delivery(now, known)
        if self._cluster_is_paused():
            self._report_violation("a paused cluster is never changed", f"{machine} received a plan")
        if self._is_paused(f"{MACHINE.kind}/{machine}"):
            self._report_violation("no plan reaches a paused machine", f"{machine} received one")

    def _current_limits(self) -> Iterator[tuple[str, float]]:
        """The limits as users understand them: relative to the machines that remain."""
        strategy: Object = {}
        for plane in self.objects[CONTROL_PLANE].values():
            strategy = plane["spec"].get("upgradeStrategy") or {}
        members = dict.fromkeys((ETCD, CONTROL, WORKER), 0)
        for secret in self.objects[PLAN_SECRET].values():
            machine = self.objects[MACHINE].get(labels_of(secret).get(names.MACHINE_NAME, ""))
            if machine is not None and not is_deleting(machine):
                members[_tier(labels_of(secret))] += 1
        yield ETCD, 1
        yield CONTROL, max_concurrent(strategy.get("controlPlaneConcurrency"), members[CONTROL])
        yield WORKER, max_concurrent(strategy.get("workerConcurrency"), members[WORKER])

    # --- helpers ------------------------------------------------------------------------------------------------------

    def machine_of(self, node: SimulatedNode) -> str:
        for name, machine in self.objects[MACHINE].items():
            if machine["spec"]["infrastructureRef"]["name"] == node.name:
                return name
        return ""

    def _is_deleting(self, node: SimulatedNode) -> bool:
        machine = self.objects[MACHINE].get(self.machine_of(node))
        return machine is None or is_deleting(machine)

    def _cluster_is_deleting(self) -> bool:
        return any(is_deleting(cluster) for cluster in self.objects[CLUSTER].values()) or not self.objects[CLUSTER]

    def _others_remain(self, node: SimulatedNode) -> bool:
        return any(not self._is_deleting(member) for member in self.cluster.members.values() if member is not node)


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def max_concurrent(concurrency: object, members: int) -> float:
    text = str(concurrency or "1")
    if text == "0":
        return math.inf
    if text.endswith("%"):
        return max(1, math.ceil(members * float(text[:-1]) / 100))
    return int(text)


def tier_of(node: SimulatedNode) -> str:
    return WORKER if node.is_worker else ETCD if node.has_etcd else CONTROL


def _tier(labels: dict[str, str]) -> str:
    if labels.get(names.ETCD_ROLE) == "true":
        return ETCD
    return CONTROL if labels.get(names.CONTROL_PLANE_ROLE) == "true" else WORKER


def is_new_request(before: Object | None, secret: Object) -> bool:
    """Whether the agent receives a request that it did not have before."""
    old, new = ((each or {}).get("data") or {} for each in (before, secret))
    if not new.get("plan"):
        return False
    pending = base64.b64encode(b"pending").decode()
    return old.get("plan") != new["plan"] or (new.get("plan-state") == pending and old.get("plan-state") != pending)
