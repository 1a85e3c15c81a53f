"""The judge itself: a cluster to which something forbidden happens is caught, one to which it does not is let be."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
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
from herder.sim.nodes import Disk, Installed, SimulatedNode
from tests.simulation.plans.judge import GRACE, Judge, Violation

LATER = 10 * GRACE


@dataclass(eq=False)
class Node:
    name: str
    running: bool = True
    destroyed: bool = False
    is_worker: bool = False
    has_etcd: bool = True
    disk: Disk = field(default_factory=Disk)

    @property
    def secret(self) -> str:
        return self.name


@dataclass
class Members:
    members: dict[str, Node]

    @property
    def voters(self) -> list[Node]:
        return [node for node in self.members.values() if node.running]

    @property
    def has_quorum(self) -> bool:
        return len(self.voters) >= len(self.members) // 2 + 1

    def is_member(self, node: Node) -> bool:
        return self.members.get(node.name) is node


class Scene:
    """Machines of the same names as their nodes, in a cluster of three servers and three workers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.judge = Judge(lambda: self.now)
        self.servers = [Node(f"s{number}") for number in range(3)]
        self.workers = [Node(f"w{number}", is_worker=True, has_etcd=False) for number in range(3)]
        self.judge.cluster = cast(Downstream, Members({node.name: node for node in self.servers}))
        self.report_status(CLUSTER, "c", spec={})
        self.strategy(workerConcurrency="1")
        for node in (*self.servers, *self.workers):
            self.machine(node)
            self.plan(node, "first")

    def report_status(
        self, kind: Any, name: str, event: str = "MODIFIED", meta: Object | None = None, **parts: Any
    ) -> None:
        self.judge(kind, event, {"metadata": {"name": name, **(meta or {})}, **parts})

    def strategy(self, **fields: str) -> None:
        self.report_status(CONTROL_PLANE, "c", spec={"upgradeStrategy": fields})

    def machine(self, node: Node, *, lost: bool = False, event: str = "MODIFIED", **meta: Any) -> None:
        said = ("Unknown", "NodeReadyUnknown") if lost else ("True", "NodeReady")
        ready = {"type": "NodeReady", "status": said[0], "reason": said[1]}
        spec = {"infrastructureRef": {"name": node.name}}
        self.report_status(MACHINE, node.name, event, meta, spec=spec, status={"conditions": [ready]})

    def plan(self, node: Node, text: str) -> None:
        role = names.WORKER_ROLE if node.is_worker else names.ETCD_ROLE
        data = {"plan": base64.b64encode(text.encode()).decode()}
        meta = {"labels": {names.MACHINE_NAME: node.name, role: "true"}}
        self.report_status(PLAN_SECRET, node.name, meta=meta, data=data)

    def stop(self, node: Node) -> None:
        node.running = False
        self.judge.stopped(cast(SimulatedNode, node), by_plan=True)

    def come_up(self, node: Node) -> None:
        node.running = True
        self.judge.up(cast(SimulatedNode, node))


def two_workers_at_once(scene: Scene) -> None:
    scene.stop(scene.workers[0])
    scene.stop(scene.workers[1])


def two_members_at_once(scene: Scene) -> None:
    scene.stop(scene.servers[0])
    scene.stop(scene.servers[1])


def a_member_beside_a_lost_one(scene: Scene) -> None:
    scene.servers[0].running = False
    scene.machine(scene.servers[0], lost=True)
    scene.now += LATER
    scene.plan(scene.servers[1], "second")
    scene.stop(scene.servers[1])


def a_second_cluster(scene: Scene) -> None:
    for node in scene.servers[:2]:
        scene.judge.began_cluster(cast(SimulatedNode, node))


def a_lower_version(scene: Scene) -> None:
    for version in ("v1.33.4+k3s1", "v1.33.3+k3s1"):
        scene.judge.installs(cast(SimulatedNode, scene.workers[0]), Installed("k3s", version, version, True))


def a_plan_in_a_paused_cluster(scene: Scene) -> None:
    scene.report_status(CLUSTER, "c", spec={"paused": True})
    scene.now += LATER
    scene.plan(scene.workers[0], "second")


def a_machine_made_in_a_paused_cluster(scene: Scene) -> None:
    scene.report_status(CLUSTER, "c", spec={"paused": True})
    scene.now += LATER
    scene.machine(Node("w9"), event="ADDED")


def a_plan_for_a_paused_machine(scene: Scene) -> None:
    scene.machine(scene.workers[0], annotations={PAUSED: "true"})
    scene.now += LATER
    scene.plan(scene.workers[0], "second")


def a_plan_that_was_finished(scene: Scene) -> None:
    node = cast(SimulatedNode, scene.workers[0])
    record = Record("uid", "1", "sum", 1, Result(True, 0.0, {}, {}, None))
    node.disk.journal.record = record
    scene.judge.acts(node, Persist(record))
    scene.judge.acts(node, Run("place", Instruction("install", "", "", [], [], False, 0), 1))


def a_member_whose_machine_is_gone(scene: Scene) -> None:
    scene.servers[1].running = False
    scene.servers[0].running = False
    scene.judge.stopped(cast(SimulatedNode, scene.servers[0]), by_plan=False)
    scene.judge.destroyed(cast(SimulatedNode, scene.servers[0]))


FORBIDDEN = {
    two_workers_at_once: "never more down than the strategy allows",
    two_members_at_once: "never below quorum",
    a_member_beside_a_lost_one: "never below quorum",
    a_second_cluster: "never two clusters",
    a_lower_version: "never a downgrade",
    a_plan_in_a_paused_cluster: "a paused cluster is never touched",
    a_machine_made_in_a_paused_cluster: "a paused cluster is never touched",
    a_plan_for_a_paused_machine: "no plan reaches a machine that is paused",
    a_plan_that_was_finished: "an applied plan is never run again",
    a_member_whose_machine_is_gone: "never below quorum",
}


@pytest.mark.parametrize("happens", FORBIDDEN, ids=lambda happens: happens.__name__)
def test_what_is_forbidden_is_caught(happens: Any) -> None:
    scene = Scene()
    scene.judge.check()
    happens(scene)
    with pytest.raises(Violation, match=FORBIDDEN[happens]):
        scene.judge.check()


def one_after_the_other(scene: Scene) -> None:
    for node in (*scene.servers, *scene.workers):
        scene.stop(node)
        scene.come_up(node)


def two_workers_where_two_may(scene: Scene) -> None:
    scene.strategy(workerConcurrency="50%")
    two_workers_at_once(scene)


def two_workers_of_a_strategy_that_has_just_changed(scene: Scene) -> None:
    scene.strategy(workerConcurrency="2")
    scene.now += LATER
    for node in scene.workers[:2]:
        scene.plan(node, "second")
    scene.now += LATER
    scene.strategy(workerConcurrency="1")
    two_workers_at_once(scene)


def a_member_beside_one_that_nobody_knows_to_be_lost(scene: Scene) -> None:
    scene.servers[0].running = False
    scene.stop(scene.servers[1])


def another_cluster_when_the_first_machine_goes(scene: Scene) -> None:
    scene.judge.began_cluster(cast(SimulatedNode, scene.servers[0]))
    scene.machine(scene.servers[0], deletionTimestamp="2026-01-01T00:00:00Z")
    scene.judge.began_cluster(cast(SimulatedNode, scene.servers[1]))


def what_was_on_its_way_when_it_was_paused(scene: Scene) -> None:
    scene.report_status(CLUSTER, "c", spec={"paused": True})
    scene.now += GRACE / 2
    scene.plan(scene.workers[0], "second")


ALLOWED = (
    one_after_the_other,
    two_workers_where_two_may,
    two_workers_of_a_strategy_that_has_just_changed,
    a_member_beside_one_that_nobody_knows_to_be_lost,
    another_cluster_when_the_first_machine_goes,
    what_was_on_its_way_when_it_was_paused,
)


@pytest.mark.parametrize("happens", ALLOWED, ids=lambda happens: happens.__name__)
def test_what_is_allowed_is_let_be(happens: Any) -> None:
    scene = Scene()
    happens(scene)
    scene.judge.check()
