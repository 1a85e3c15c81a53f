"""The invariants themselves: violations are detected, and valid behavior is accepted."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from herder.agent.core.events import Persist, Record, Result, Run
from herder.agent.core.plan import Instruction
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import PAUSED
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, PLAN_SECRET
from herder.engine.meta.kinds import Object
from herder.sim.downstream import Downstream
from herder.sim.host.disk import Snapshot
from herder.sim.host.etcd import Bootstrap, Content, EtcdCluster, EtcdData
from herder.sim.nodes import Disk, Installed, SimulatedNode
from tests.simulation.plans.invariants import GRACE, PlanInvariants, Violation

LATER = 10 * GRACE


@dataclass(eq=False)
class FakeNode:
    name: str
    running: bool = True
    destroyed: bool = False
    is_worker: bool = False
    has_etcd: bool = True
    disk: Disk = field(default_factory=Disk)
    cluster: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(nodes={}))
    """Without machines whose trust is judged; tests of the rotation of CAs have real ones."""

    @property
    def secret(self) -> str:
        return self.name


@dataclass
class FakeDownstream:
    members: dict[str, FakeNode]

    @property
    def voters(self) -> list[FakeNode]:
        return [node for node in self.members.values() if node.running]

    @property
    def has_quorum(self) -> bool:
        return len(self.voters) >= len(self.members) // 2 + 1

    def is_member(self, node: FakeNode) -> bool:
        return self.members.get(node.name) is node


class EventSequence:
    """Events of a cluster of three servers and three workers, whose Machines have the names of their nodes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.invariants = PlanInvariants(lambda: self.now)
        self.servers = [FakeNode(f"s{number}") for number in range(3)]
        self.workers = [FakeNode(f"w{number}", is_worker=True, has_etcd=False) for number in range(3)]
        self.invariants.cluster = cast(Downstream, FakeDownstream({node.name: node for node in self.servers}))
        self.send(CLUSTER, "c", spec={})
        self.strategy(workerConcurrency="1")
        for node in (*self.servers, *self.workers):
            self.machine(node)
            self.plan(node, "first")

    def send(self, kind: Any, name: str, event: str = "MODIFIED", meta: Object | None = None, **parts: Any) -> None:
        self.invariants(kind, event, {"metadata": {"name": name, **(meta or {})}, **parts})

    def strategy(self, **fields: str) -> None:
        self.send(CONTROL_PLANE, "c", spec={"upgradeStrategy": fields})

    def machine(self, node: FakeNode, *, lost: bool = False, event: str = "MODIFIED", **meta: Any) -> None:
        condition = ("Unknown", "NodeReadyUnknown") if lost else ("True", "NodeReady")
        ready = {"type": "NodeReady", "status": condition[0], "reason": condition[1]}
        spec = {"infrastructureRef": {"name": node.name}}
        self.send(MACHINE, node.name, event, meta, spec=spec, status={"conditions": [ready]})

    def plan(self, node: FakeNode, text: str) -> None:
        role = names.WORKER_ROLE if node.is_worker else names.ETCD_ROLE
        data = {"plan": base64.b64encode(text.encode()).decode()}
        meta = {"labels": {names.MACHINE_NAME: node.name, role: "true"}}
        self.send(PLAN_SECRET, node.name, meta=meta, data=data)

    def stop(self, node: FakeNode) -> None:
        node.running = False
        self.invariants.stopped(cast(SimulatedNode, node), by_plan=True)

    def come_up(self, node: FakeNode) -> None:
        node.running = True
        self.invariants.up(cast(SimulatedNode, node))


def two_workers_at_once(events: EventSequence) -> None:
    events.stop(events.workers[0])
    events.stop(events.workers[1])


def two_members_at_once(events: EventSequence) -> None:
    events.stop(events.servers[0])
    events.stop(events.servers[1])


def a_member_while_another_is_down(events: EventSequence) -> None:
    events.servers[0].running = False
    events.machine(events.servers[0], lost=True)
    events.now += LATER
    events.plan(events.servers[1], "second")
    events.stop(events.servers[1])


def a_second_cluster(events: EventSequence) -> None:
    for node in events.servers[:2]:
        events.invariants.began_cluster(cast(SimulatedNode, node))


def a_lower_version(events: EventSequence) -> None:
    for version in ("v1.33.4+k3s1", "v1.33.3+k3s1"):
        events.invariants.installs(cast(SimulatedNode, events.workers[0]), Installed("k3s", version, version, True))


def a_plan_in_a_paused_cluster(events: EventSequence) -> None:
    events.send(CLUSTER, "c", spec={"paused": True})
    events.now += LATER
    events.plan(events.workers[0], "second")


def a_machine_created_in_a_paused_cluster(events: EventSequence) -> None:
    events.send(CLUSTER, "c", spec={"paused": True})
    events.now += LATER
    events.machine(FakeNode("w9"), event="ADDED")


def a_plan_for_a_paused_machine(events: EventSequence) -> None:
    events.machine(events.workers[0], annotations={PAUSED: "true"})
    events.now += LATER
    events.plan(events.workers[0], "second")


def an_applied_plan(events: EventSequence) -> None:
    node = cast(SimulatedNode, events.workers[0])
    record = Record("uid", "1", "sum", 1, Result(True, 0.0, {}, {}, None))
    node.disk.journal.record = record
    events.invariants.acts(node, Persist(record))
    events.invariants.acts(node, Run("place", Instruction("install", "", "", [], [], False, 0), 1))


def a_destroyed_member(events: EventSequence) -> None:
    events.servers[1].running = False
    events.servers[0].running = False
    events.invariants.stopped(cast(SimulatedNode, events.servers[0]), by_plan=False)
    events.invariants.destroyed(cast(SimulatedNode, events.servers[0]))


def a_second_cluster_beside_running_members(events: EventSequence) -> None:
    old, new = EtcdCluster("1"), EtcdCluster("2")
    old.members = cast(dict[str, SimulatedNode], {node.name: node for node in events.servers})
    for node in events.servers:
        node.disk.files[node.disk.layout.etcd] = EtcdData(old, node.name)
    events.invariants.replaced_etcd(cast(SimulatedNode, events.servers[0]), old, new)


def old_data_served_again(events: EventSequence) -> None:
    events.invariants.revived_etcd(cast(SimulatedNode, events.servers[1]), EtcdCluster("1"))


def a_restore_without_a_request(events: EventSequence) -> None:
    snapshot = Snapshot("daily", "s0", 1, Content(1, ()), Bootstrap())
    events.invariants.restored(cast(SimulatedNode, events.servers[0]), snapshot)


FORBIDDEN = {
    two_workers_at_once: "never more down than the strategy allows",
    two_members_at_once: "never below quorum",
    a_member_while_another_is_down: "never below quorum",
    a_second_cluster: "never two clusters",
    a_lower_version: "never a downgrade",
    a_plan_in_a_paused_cluster: "a paused cluster is never changed",
    a_machine_created_in_a_paused_cluster: "a paused cluster is never changed",
    a_plan_for_a_paused_machine: "no plan reaches a paused machine",
    an_applied_plan: "an applied plan is never run again",
    a_destroyed_member: "never below quorum",
    a_second_cluster_beside_running_members: "never two clusters",
    old_data_served_again: "a fenced member never rejoins",
    a_restore_without_a_request: "no restore without a request",
}


@pytest.mark.parametrize("sequence", FORBIDDEN, ids=lambda sequence: sequence.__name__)
def test_violations_are_detected(sequence: Any) -> None:
    events = EventSequence()
    events.invariants.check()
    sequence(events)
    with pytest.raises(Violation, match=FORBIDDEN[sequence]):
        events.invariants.check()


def one_after_the_other(events: EventSequence) -> None:
    for node in (*events.servers, *events.workers):
        events.stop(node)
        events.come_up(node)


def two_workers_within_the_limit(events: EventSequence) -> None:
    events.strategy(workerConcurrency="50%")
    two_workers_at_once(events)


def two_workers_of_the_previous_strategy(events: EventSequence) -> None:
    events.strategy(workerConcurrency="2")
    events.now += LATER
    for node in events.workers[:2]:
        events.plan(node, "second")
    events.now += LATER
    events.strategy(workerConcurrency="1")
    two_workers_at_once(events)


def a_member_while_another_is_unknowingly_down(events: EventSequence) -> None:
    events.servers[0].running = False
    events.stop(events.servers[1])


def another_cluster_after_the_first_machine_is_deleted(events: EventSequence) -> None:
    events.invariants.began_cluster(cast(SimulatedNode, events.servers[0]))
    events.machine(events.servers[0], deletionTimestamp="2026-01-01T00:00:00Z")
    events.invariants.began_cluster(cast(SimulatedNode, events.servers[1]))


def a_plan_in_flight_during_a_pause(events: EventSequence) -> None:
    events.send(CLUSTER, "c", spec={"paused": True})
    events.now += GRACE / 2
    events.plan(events.workers[0], "second")


def all_members_during_a_requested_restore(events: EventSequence) -> None:
    events.send(CONTROL_PLANE, "c", spec={}, status={"etcdSnapshotRestorePhase": "Shutdown"})
    for node in events.servers:
        events.stop(node)
    a_restore_without_a_request(events)


ALLOWED = (
    one_after_the_other,
    two_workers_within_the_limit,
    two_workers_of_the_previous_strategy,
    a_member_while_another_is_unknowingly_down,
    another_cluster_after_the_first_machine_is_deleted,
    a_plan_in_flight_during_a_pause,
    all_members_during_a_requested_restore,
)


@pytest.mark.parametrize("sequence", ALLOWED, ids=lambda sequence: sequence.__name__)
def test_valid_behavior_is_accepted(sequence: Any) -> None:
    events = EventSequence()
    sequence(events)
    events.invariants.check()
