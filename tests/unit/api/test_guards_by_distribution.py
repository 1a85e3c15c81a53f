"""Every guard holds for every distribution: it denies a violation and allows a correct decision.

The plans are those that each distribution renders, so a guard that knows the images of only one distribution fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from herder.api.capi.names import PAUSED
from herder.api.guards import GUARDS
from herder.api.guards.plans import CHECKS, check_plan_write
from herder.api.management.manifest import Agent
from herder.api.rke import names, operations
from herder.api.rke.distributions import DISTRIBUTIONS, release_in, version_of
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.agents import ServedAgent
from herder.api.rke.node.plan import Instruction, Plan
from herder.api.rke.node.plan_secret import encoded
from herder.controllers.planner.distributions.interface import Authority, ClusterInputs, MachineInputs, Roles
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch, Ref
from tests.support.views import NOW
from tests.unit.api import test_guards, test_machine_guards
from tests.unit.api.guards.plan_writes import RELEASE, deletion, denied_by, mark_init
from tests.unit.api.test_eviction_guards import denial_reason
from tests.unit.controllers.example.objects import flock, member
from tests.unit.controllers.example.objects import view as flock_view
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, SERVER, WORKER, machine, plan_secret

KUBECONFIG = "cluster.x-k8s.io/secret"
JOINED = "https://10.0.0.1:6443"
_AGENT = Agent(server_url="https://manager.example", token="t", ca_checksum="", image="agent")


@dataclass(frozen=True)
class Sample:
    """One distribution, and the objects of a cluster with it."""

    version: str
    removed: str = ""  # the annotation of a Node whose etcd member was removed

    @property
    def cluster(self) -> tuple[Object, ...]:
        return (objects.cluster(), self.control_plane(), objects.beacon())

    def control_plane(self, **spec: Any) -> Object:
        return objects.control_plane(**{"kubernetesVersion": self.version, **spec})

    def version_of(self, release: str) -> str:
        return f"{release}+{self.version.partition('+')[2]}"

    @cache  # noqa: B019 - there are four samples
    def plan(self, stamp: int = 1, *, release: str = "v1.33.4", joins: str = "") -> Plan:
        """The plan of the init server, or of a machine that joins."""
        distribution = distribution_of(self.version)
        inputs = ClusterInputs(
            namespace=NAMESPACE,
            name=NAME,
            management_name="c-m-1",
            version=self.version_of(release),
            spec={"provisionGeneration": stamp},
            server_token="S",
            agent_token="A",
            authorities=dict.fromkeys(distribution.authorities, Authority("certificate", "key")),
            agent=_AGENT,
            installer_image="rancher/system-agent-installer-",
            servers=(joins,) if joins else (),
        )
        one_server = joins and distribution.name == "embedded"  # the embedded distribution has one server
        roles = Roles(worker=True) if one_server else Roles(etcd=True, control_plane=True)
        machine_inputs = MachineInputs(
            "a", "u", roles, is_init=not joins, join_url=joins, internal_addresses=("10.0.0.2",)
        )
        return distribution.render(inputs, machine_inputs)

    def write(self, name: str, plan: Plan, *, joins: str = JOINED, **data: str) -> Patch:
        entries = {"plan": encoded(plan.to_json()), "plan-state": encoded("pending"), "probe-statuses": None, **data}
        patch = {"metadata": {"annotations": {names.JOINED_TO: joins}}, "data": entries}
        return Patch(Ref(PLAN_SECRET, names.plan_secret(name), NAMESPACE), patch, "a plan", "", "1")

    def new(self, name: str = "a") -> Patch:
        """A plan that restarts the machine."""
        return self.write(name, self.plan(2, joins=JOINED))

    def task(self, name: str, *instructions: str, mark: str) -> Patch:
        patch = self.write(name, with_task(self, *instructions))
        patch.patch["metadata"]["annotations"][names.PLAN_TASK] = mark
        return patch

    def server(self, name: str, **more: Any) -> tuple[Object, Object]:
        return machine(name), plan_secret(name, SERVER, plan=self.plan(), **more)

    def worker(self, name: str, **more: Any) -> tuple[Object, Object]:
        return machine(name), plan_secret(name, (WORKER,), plan=self.plan(joins=JOINED), **more)

    def denied_by(self, action: Any, *existing: Object, cluster: tuple[Object, ...] = (), **more: Any) -> str:
        return denied_by(action, *existing, cluster=cluster or self.cluster, **more)


SAMPLES = {
    "k3s": Sample("v1.33.4+k3s1", "etcd.k3s.cattle.io/removed-node-name"),
    "rke2": Sample("v1.33.4+rke2r1", "etcd.rke2.cattle.io/removed-node-name"),
    "kubeadm": Sample("v1.33.4+kubeadm1", "etcd.kubeadm.cattle.io/removed-node-name"),
    "embedded": Sample("v1.33.4+herder1"),
}


def with_task(sample: Sample, *instructions: str) -> Plan:
    plan = sample.plan(joins=JOINED)
    added = tuple(Instruction(name=name, command="sh") for name in instructions)
    return replace_struct(plan, instructions=(*plan.instructions, *added))


def run_of_restore(sample: Sample, phase: str, leader: str = "b", earlier: str = "") -> tuple[tuple[Object, ...], str]:
    """A cluster with a restore in this phase, and the mark of its tasks. `earlier`: the leader of an unfinished one."""
    run = operations.Run("run-1", operations.RESTORE, phase, 1, started_at=NOW, leader=leader)
    cluster, control_plane, beacon = sample.cluster
    timings = {operations.SHUTDOWN_PHASE: 1, operations.REJOIN_PHASE: 1}
    unfinished = {"kind": operations.RESTORE, "phase": operations.FAILED, "leader": earlier, "timings": timings}
    history = {"operationHistory": [unfinished]} if earlier else {}
    return (cluster, {**control_plane, "status": {"operation": run.to_status(), **history}}, beacon), run.mark


def _fenced(sample: Sample) -> tuple[str, str]:
    cluster, mark = run_of_restore(sample, operations.RESTORE_PHASE, "a")
    restore = sample.task("a", operations.RESTORE_SNAPSHOT, mark=mark)
    stopped = {names.PLAN_TASK: f"run-1/{operations.SHUTDOWN_PHASE}/1"}
    plan = with_task(sample, operations.STOP_SERVICES)
    fenced = machine("b"), plan_secret("b", SERVER, plan=plan, annotations=stopped)
    denied = sample.denied_by(restore, *sample.server("a"), *sample.server("b"), cluster=cluster)
    return denied, sample.denied_by(restore, *sample.server("a"), *fenced, cluster=cluster)


def _restored(sample: Sample) -> tuple[str, str]:
    cluster, mark = run_of_restore(sample, operations.REJOIN_PHASE)
    drop = sample.task("a", operations.DROP_DATA, mark=mark)
    restored = sample.server("b", annotations={names.PLAN_TASK: f"run-1/{operations.RESTORE_PHASE}/1"})
    denied = sample.denied_by(drop, *sample.server("a"), *sample.server("b"), cluster=cluster)
    return denied, sample.denied_by(drop, *sample.server("a"), *restored, cluster=cluster)


GuardCase = Callable[[Sample], tuple[str, str]]
"""The guards that deny a violation and a correct decision; "" for none."""


def _state(sample: Sample) -> tuple[str, str]:
    old = sample.write("a", sample.plan(2, joins=JOINED), **{"plan-state": encoded("succeeded")})
    return sample.denied_by(old, *sample.server("a")), sample.denied_by(sample.new(), *sample.server("a"))


def _beacon(sample: Sample) -> tuple[str, str]:
    busy = (*sample.cluster[:2], objects.beacon("restore"))
    return sample.denied_by(sample.new(), *sample.server("a"), cluster=busy), sample.denied_by(
        sample.new(), *sample.server("a")
    )


def _paused(sample: Sample) -> tuple[str, str]:
    paused = (objects.cluster(paused=True), *sample.cluster[1:])
    return sample.denied_by(sample.new(), *sample.server("a"), cluster=paused), sample.denied_by(
        sample.new(), *sample.server("a")
    )


def _deleting(sample: Sample) -> tuple[str, str]:
    deleting = machine("a", deleting=True), plan_secret("a")
    return sample.denied_by(sample.new(), *deleting), sample.denied_by(sample.new(), machine("a"), plan_secret("a"))


def _operation(sample: Sample) -> tuple[str, str]:
    """A task is denied unless the stored operation is in the phase that runs it."""
    current = sample.plan(joins=JOINED)
    task = Instruction(name=operations.SAVE_SNAPSHOT, command="sh")
    patch = sample.write("a", replace_struct(current, instructions=(*current.instructions, task)))
    run = operations.Run("snapshot-1", operations.SNAPSHOT, "Started", 1, started_at=NOW)
    patch.patch["metadata"]["annotations"][names.PLAN_TASK] = run.mark
    cluster, control_plane, beacon = sample.cluster
    operating = {**control_plane, "status": {"operation": run.to_status()}}
    server = machine("a"), plan_secret("a", SERVER, plan=current)
    return sample.denied_by(patch, *server), sample.denied_by(patch, *server, cluster=(cluster, operating, beacon))


def _init(sample: Sample) -> tuple[str, str]:
    second = machine("b"), plan_secret("b")
    denied = sample.denied_by(mark_init("b"), *sample.server("a", init=True), *second)
    return denied, sample.denied_by(mark_init("b"), machine("a"), plan_secret("a"), *second)


def _joins(sample: Sample) -> tuple[str, str]:
    """The server that a machine joins must be in its plan, wherever the distribution writes it."""
    alone = sample.write("a", sample.plan(2), joins="https://10.0.0.77:6443")
    existing = machine("a"), plan_secret("a")
    return sample.denied_by(alone, *existing), sample.denied_by(sample.new(), *existing)


def _downgrade(sample: Sample) -> tuple[str, str]:
    lower, higher = (
        sample.write("a", sample.plan(release=release, joins=JOINED)) for release in ("v1.33.3", "v1.34.1")
    )
    return sample.denied_by(lower, *sample.server("a")), sample.denied_by(higher, *sample.server("a"))


def _skip(sample: Sample) -> tuple[str, str]:
    far, next_minor = (
        sample.write("a", sample.plan(release=release, joins=JOINED)) for release in ("v1.36.3", "v1.34.1")
    )
    return sample.denied_by(far, *sample.server("a")), sample.denied_by(next_minor, *sample.server("a"))


def _quorum(sample: Sample) -> tuple[str, str]:
    two = (*sample.server("a"), *sample.server("b"))
    denied = sample.denied_by(sample.new(), *two, *sample.server("c", unhealthy=True))
    return denied, sample.denied_by(sample.new(), *two, *sample.server("c"))


def _concurrency(sample: Sample) -> tuple[str, str]:
    denied = sample.denied_by(sample.new(), *sample.worker("a"), *sample.worker("b", unhealthy=True))
    return denied, sample.denied_by(sample.new(), *sample.worker("a"), *sample.worker("b"))


SERVED = ServedAgent("1.1.0", "a" * 64)


def _redeployment(sample: Sample, agent: ServedAgent = SERVED) -> tuple[Patch, tuple[Object, ...]]:
    """A task that redeploys the agent of worker a, and a cluster whose operation runs it."""
    current = sample.plan(joins=JOINED)
    task = Instruction(name=operations.REDEPLOY_AGENT, command="sh", env=agent.environment)
    patch = sample.write("a", replace_struct(current, instructions=(*current.instructions, task)))
    run = operations.Run("agents-1", operations.AGENTS, "Workers", 1, started_at=NOW)
    patch.patch["metadata"]["annotations"][names.PLAN_TASK] = run.mark
    cluster, control_plane, beacon = sample.cluster
    return patch, (cluster, {**control_plane, "status": {"operation": run.to_status()}}, beacon)


def _with_agent(sample: Sample, name: str, version: str, mark: str = "") -> tuple[Object, Object]:
    found, secret = sample.worker(name, annotations={names.PLAN_TASK: mark} if mark else {})
    secret["data"] |= {"agent-version": encoded(version), "agent-checksum": encoded("b" * 64)}
    return found, secret


def _agent_downgrade(sample: Sample) -> tuple[str, str]:
    patch, cluster = _redeployment(sample)
    newer, older = (_with_agent(sample, "a", version) for version in ("1.2.0", "1.0.0"))
    return sample.denied_by(patch, *newer, cluster=cluster), sample.denied_by(patch, *older, cluster=cluster)


def _agent_concurrency(sample: Sample) -> tuple[str, str]:
    patch, cluster = _redeployment(sample)
    own = _with_agent(sample, "a", "1.0.0")
    busy, idle = (_with_agent(sample, "b", "1.0.0", mark) for mark in ("agents-1/Workers/1", ""))
    return sample.denied_by(patch, *own, *busy, cluster=cluster), sample.denied_by(patch, *own, *idle, cluster=cluster)


def _member_deletion(sample: Sample) -> tuple[str, str]:
    two = (*sample.server("a"), *sample.server("b"))
    denied = sample.denied_by(deletion("a"), *two, *sample.server("c", unhealthy=True))
    return denied, sample.denied_by(deletion("a"), *two, *sample.server("c"))


def _deleting_server(sample: Sample) -> tuple[Object, ...]:
    secret = plan_secret("a", SERVER, plan=sample.plan(), annotations={names.JOIN_URL: JOINED})
    return machine("a", deleting=True, address="10.0.0.1"), secret, objects.bootstrap("a")


def _join_server_release(sample: Sample) -> tuple[str, str]:
    joined = sample.server("b", annotations={names.JOINED_TO: JOINED})
    elsewhere = sample.server("b", annotations={names.JOINED_TO: "https://10.0.0.9:6443"})
    return sample.denied_by(RELEASE, *_deleting_server(sample), *joined), sample.denied_by(
        RELEASE, *_deleting_server(sample), *elsewhere
    )


def _member_removal(sample: Sample) -> tuple[str, str]:
    cluster = (*sample.cluster, objects.secret(f"{NAME}-kubeconfig", type=KUBECONFIG))
    existing = (*_deleting_server(sample), *sample.server("b"))
    denied = sample.denied_by(RELEASE, *existing, cluster=cluster, nodes=[{"metadata": {"name": "a"}}])
    removed = {"metadata": {"name": "a", "annotations": {sample.removed: "a-1"}}}
    return denied, sample.denied_by(RELEASE, *existing, cluster=cluster, nodes=[removed])


def _eviction(sample: Sample) -> tuple[str, str]:
    denied = denial_reason("Machine-a", "a", *sample.worker("a"))
    allowed = denial_reason("Machine-a", "a", machine("a", deleting=True), sample.worker("a")[1])
    return "deny-unrequested-eviction" if denied else "", allowed


def _machines(actions: list[Any], denied: list[Object], allowed: list[Object]) -> GuardCase:
    """A case of Machines alone, where only the version depends on the distribution."""

    def case(sample: Sample) -> tuple[str, str]:
        for each in (*denied, *allowed):
            each["spec"] = {**each.get("spec", {}), "version": sample.version}
        return test_machine_guards.denied_by(actions, denied), test_machine_guards.denied_by(actions, allowed)

    return case


def _flock(_sample: Sample) -> tuple[str, str]:
    views = [flock_view(flock(minAvailable=2), *map(member, range(count))) for count in (2, 3)]
    refusals = [next(filter(None, (guard(test_guards.DELETE, view, ()) for guard in GUARDS)), None) for view in views]
    return refusals[0].guard if refusals[0] else "", refusals[1].guard if refusals[1] else ""


machine_guards = test_machine_guards
GUARD_CASES: dict[str, GuardCase] = {
    "write-plan-with-state": _state,
    "require-beacon-ownership": _beacon,
    "deny-plan-while-paused": _paused,
    "deny-plan-for-deleting-machine": _deleting,
    "require-operation": _operation,
    "require-fenced-servers": _fenced,
    "require-restored-server": _restored,
    "deny-second-init-node": _init,
    "require-join-server": _joins,
    "deny-downgrade": _downgrade,
    "deny-minor-version-skip": _skip,
    "keep-etcd-quorum-on-disruption": _quorum,
    "limit-upgrade-concurrency": _concurrency,
    "deny-agent-downgrade": _agent_downgrade,
    "limit-agent-redeployment": _agent_concurrency,
    "keep-etcd-quorum": _member_deletion,
    "deny-release-of-join-server": _join_server_release,
    "require-etcd-member-removal": _member_removal,
    "deny-unrequested-eviction": _eviction,
    "deny-machine-in-deleting-cluster": _machines(
        [machine_guards.creates("a")],
        [machine_guards.cluster(deleting=True), machine_guards.machine_set()],
        [machine_guards.cluster(), machine_guards.machine_set()],
    ),
    "deny-machine-above-maximum": _machines(
        [machine_guards.creates("d")],
        [
            machine_guards.cluster(),
            machine_guards.machine("a"),
            machine_guards.machine("b"),
            machine_guards.machine("c"),
            machine_guards.machine_set(),
        ],
        [machine_guards.cluster(), machine_guards.machine("a"), machine_guards.machine_set()],
    ),
    "deny-deleting-paused-machine": _machines(
        [machine_guards.deletes("a")],
        [machine_guards.cluster(), machine_guards.machine("a", annotations={PAUSED: ""})],
        [machine_guards.cluster(), machine_guards.machine("a")],
    ),
    "keep-minimum-available-machines": _machines(
        [machine_guards.deletes("a")],
        [
            machine_guards.cluster(),
            machine_guards.machine_set(),
            machine_guards.machine("a"),
            machine_guards.deployment(1),
        ],
        [
            machine_guards.cluster(),
            machine_guards.machine_set(),
            machine_guards.machine("a"),
            machine_guards.machine("b"),
            machine_guards.deployment(1),
        ],
    ),
    "keep-flock-minimum": _flock,
}
NOT_APPLICABLE = {
    ("require-etcd-member-removal", "embedded"): "its store is on one server, and no annotation reports the removal",
}


def _name(guard: Callable[..., Any]) -> str:
    return guard.__name__.replace("_", "-")


def test_every_distribution_has_a_sample() -> None:
    assert set(SAMPLES) == {facts.name for facts in DISTRIBUTIONS}
    for name, sample in SAMPLES.items():
        distribution, version = distribution_of(sample.version), version_of(sample.version)
        assert version is not None
        assert (distribution.name, version.facts.name) == (name, name)
        assert distribution.member_removal() == version.facts.member_removal == sample.removed.partition("/")[0]
        assert release_in(sample.plan()) == version.release == (1, 33, 4)


def test_a_member_of_an_unknown_distribution_is_not_released() -> None:
    sample = replace(SAMPLES["k3s"], removed="etcd.unknown.cattle.io/removed-node-name")
    unknown = objects.control_plane(kubernetesVersion="v1.33.4+unknown1")
    cluster = (objects.cluster(), unknown, objects.secret(f"{NAME}-kubeconfig", type=KUBECONFIG))
    existing = (*_deleting_server(sample), *sample.server("b"))
    removed = {"metadata": {"name": "a", "annotations": {sample.removed: "a-1"}}}
    assert sample.denied_by(RELEASE, *existing, cluster=cluster, nodes=[removed]) == "require-etcd-member-removal"
    assert sample.denied_by(RELEASE, *existing, cluster=cluster, nodes=[]) == ""


def test_a_report_of_a_node_does_not_release_its_member() -> None:
    """A node can forge the image of its applied plan. The distribution is that of the control plane."""
    sample = SAMPLES["rke2"]
    forged = plan_secret("a", SERVER, plan=SAMPLES["embedded"].plan(), annotations={names.JOIN_URL: JOINED})
    cluster = (*sample.cluster, objects.secret(f"{NAME}-kubeconfig", type=KUBECONFIG))
    deleting, _, bootstrap = _deleting_server(sample)
    existing = (deleting, forged, bootstrap, *sample.server("b"))
    assert (
        sample.denied_by(RELEASE, *existing, cluster=cluster, nodes=[{"metadata": {"name": "a"}}])
        == "require-etcd-member-removal"
    )


def test_every_guard_has_a_case() -> None:
    assert set(GUARD_CASES) == {_name(guard) for guard in (*GUARDS, *CHECKS) if guard is not check_plan_write}


@pytest.mark.parametrize("distribution", SAMPLES)
@pytest.mark.parametrize("guard", GUARD_CASES)
def test_a_guard_denies_a_violation_and_nothing_else(guard: str, distribution: str) -> None:
    denied, allowed = GUARD_CASES[guard](SAMPLES[distribution])
    assert allowed == ""
    assert denied == ("" if (guard, distribution) in NOT_APPLICABLE else guard)
