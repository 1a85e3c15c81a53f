"""Every guard holds for every distribution: a decision that violates it is refused, and a lawful one passes.

Plans are those that each distribution renders, so a guard that knows one distribution's images alone fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from herder.api.capi.names import PAUSED
from herder.api.guards import GUARDS
from herder.api.guards.plans import CHECKS, check_plan_write
from herder.api.management.manifest import Agent
from herder.api.rke import names
from herder.api.rke.distributions import DISTRIBUTIONS, release_in, version_of
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan import Plan
from herder.api.rke.node.plan_secret import encoded
from herder.controllers.planner.distributions.interface import Authority, ClusterInputs, MachineInputs, Roles
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch, Ref
from tests.unit.api import test_guards, test_machine_guards
from tests.unit.api.test_eviction_guards import judged
from tests.unit.api.test_plan_guards import RELEASE, deletion, marked, refused
from tests.unit.controllers.example.flocks import flock, member
from tests.unit.controllers.example.flocks import view as flock_view
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, SERVER, WORKER, machine, made, plan_secret

KUBECONFIG = "cluster.x-k8s.io/secret"
JOINED = "https://10.0.0.1:6443"
_AGENT = Agent(server_url="https://manager.example", token="t", ca_checksum="", image="agent")


@dataclass(frozen=True)
class Kit:
    """One distribution, and what a cluster of it is made of."""

    version: str
    removed: str = ""  # the annotation of a Node whose etcd member was removed

    @property
    def around(self) -> tuple[Object, ...]:
        return (objects.cluster(), self.control_plane(), objects.beacon())

    def control_plane(self, **spec: Any) -> Object:
        return objects.control_plane(**{"kubernetesVersion": self.version, **spec})

    def of_release(self, release: str) -> str:
        return f"{release}+{self.version.partition('+')[2]}"

    def plan(self, stamp: int = 1, *, release: str = "v1.33.4", joins: str = "") -> Plan:
        """Of a server that begins the cluster, or of a machine that joins."""
        distribution = distribution_of(self.version)
        given = ClusterInputs(
            namespace=NAMESPACE,
            name=NAME,
            management_name="c-m-1",
            version=self.of_release(release),
            spec={"provisionGeneration": stamp},
            server_token="S",
            agent_token="A",
            authorities=dict.fromkeys(distribution.authorities, Authority("certificate", "key")),
            agent=_AGENT,
            installer_image="rancher/system-agent-installer-",
            servers=(joins,) if joins else (),
        )
        one_server = joins and distribution.name == "embedded"  # which has no server that joins
        roles = Roles(worker=True) if one_server else Roles(etcd=True, control_plane=True)
        own = MachineInputs("a", "u", roles, is_init=not joins, join_url=joins, internal_addresses=("10.0.0.2",))
        return distribution.render(given, own)

    def write(self, name: str, plan: Plan, *, joins: str = JOINED, **data: str) -> Patch:
        held = {"plan": encoded(plan.to_json()), "plan-state": encoded("pending"), "probe-statuses": None, **data}
        patch = {"metadata": {"annotations": {names.JOINED_TO: joins}}, "data": held}
        return Patch(Ref(PLAN_SECRET, names.plan_secret(name), NAMESPACE), patch, "a plan", "", "1")

    def new(self, name: str = "a") -> Patch:
        """A plan that restarts a machine."""
        return self.write(name, self.plan(2, joins=JOINED))

    def server(self, name: str, **more: Any) -> tuple[Object, Object]:
        return machine(name), plan_secret(name, SERVER, plan=self.plan(), **more)

    def worker(self, name: str, **more: Any) -> tuple[Object, Object]:
        return machine(name), plan_secret(name, (WORKER,), plan=self.plan(joins=JOINED), **more)

    def judge(self, act: Any, *there: Object, around: tuple[Object, ...] = (), **more: Any) -> str:
        return refused(act, *there, around=around or self.around, **more)


KITS = {
    "k3s": Kit("v1.33.4+k3s1", "etcd.k3s.cattle.io/removed-node-name"),
    "rke2": Kit("v1.33.4+rke2r1", "etcd.rke2.cattle.io/removed-node-name"),
    "kubeadm": Kit("v1.33.4+kubeadm1", "etcd.kubeadm.cattle.io/removed-node-name"),
    "embedded": Kit("v1.33.4+herder1"),
}

Row = Callable[[Kit], tuple[str, str]]
"""What guards say to a decision that violates one of them, and to a lawful one."""


def _state(kit: Kit) -> tuple[str, str]:
    old = kit.write("a", kit.plan(2, joins=JOINED), **{"plan-state": encoded("succeeded")})
    return kit.judge(old, *kit.server("a")), kit.judge(kit.new(), *kit.server("a"))


def _turn(kit: Kit) -> tuple[str, str]:
    busy = (*kit.around[:2], objects.beacon("restore"))
    return kit.judge(kit.new(), *kit.server("a"), around=busy), kit.judge(kit.new(), *kit.server("a"))


def _paused(kit: Kit) -> tuple[str, str]:
    paused = (objects.cluster(paused=True), *kit.around[1:])
    return kit.judge(kit.new(), *kit.server("a"), around=paused), kit.judge(kit.new(), *kit.server("a"))


def _going(kit: Kit) -> tuple[str, str]:
    going = machine("a", deleting=True), plan_secret("a")
    return kit.judge(kit.new(), *going), kit.judge(kit.new(), machine("a"), plan_secret("a"))


def _init(kit: Kit) -> tuple[str, str]:
    second = machine("b"), plan_secret("b")
    wrong = kit.judge(marked("b"), *kit.server("a", init=True), *second)
    return wrong, kit.judge(marked("b"), machine("a"), plan_secret("a"), *second)


def _joins(kit: Kit) -> tuple[str, str]:
    """What a server joins must be in its plan, wherever its distribution writes it."""
    alone = kit.write("a", kit.plan(2), joins="https://10.0.0.77:6443")
    there = machine("a"), plan_secret("a")
    return kit.judge(alone, *there), kit.judge(kit.new(), *there)


def _downgrade(kit: Kit) -> tuple[str, str]:
    lower, higher = (kit.write("a", kit.plan(release=release, joins=JOINED)) for release in ("v1.33.3", "v1.34.1"))
    return kit.judge(lower, *kit.server("a")), kit.judge(higher, *kit.server("a"))


def _skip(kit: Kit) -> tuple[str, str]:
    far, next_minor = (kit.write("a", kit.plan(release=release, joins=JOINED)) for release in ("v1.36.3", "v1.34.1"))
    return kit.judge(far, *kit.server("a")), kit.judge(next_minor, *kit.server("a"))


def _quorum(kit: Kit) -> tuple[str, str]:
    two = (*kit.server("a"), *kit.server("b"))
    wrong = kit.judge(kit.new(), *two, *kit.server("c", unhealthy=True))
    return wrong, kit.judge(kit.new(), *two, *kit.server("c"))


def _down(kit: Kit) -> tuple[str, str]:
    wrong = kit.judge(kit.new(), *kit.worker("a"), *kit.worker("b", unhealthy=True))
    return wrong, kit.judge(kit.new(), *kit.worker("a"), *kit.worker("b"))


def _needed(kit: Kit) -> tuple[str, str]:
    two = (*kit.server("a"), *kit.server("b"))
    wrong = kit.judge(deletion("a"), *two, *kit.server("c", unhealthy=True))
    return wrong, kit.judge(deletion("a"), *two, *kit.server("c"))


def _leaving(kit: Kit) -> tuple[Object, ...]:
    own = plan_secret("a", SERVER, plan=kit.plan(), marks={names.JOIN_URL: JOINED})
    return machine("a", deleting=True, address="10.0.0.1"), own, objects.bootstrap("a")


def _joined(kit: Kit) -> tuple[str, str]:
    joined = kit.server("b", marks={names.JOINED_TO: JOINED})
    elsewhere = kit.server("b", marks={names.JOINED_TO: "https://10.0.0.9:6443"})
    return kit.judge(RELEASE, *_leaving(kit), *joined), kit.judge(RELEASE, *_leaving(kit), *elsewhere)


def _member(kit: Kit) -> tuple[str, str]:
    around = (*kit.around, made("v1", "Secret", f"{NAME}-kubeconfig") | {"type": KUBECONFIG})
    there = (*_leaving(kit), *kit.server("b"))
    wrong = kit.judge(RELEASE, *there, around=around, nodes=[{"metadata": {"name": "a"}}])
    out = {"metadata": {"name": "a", "annotations": {kit.removed: "a-1"}}}
    return wrong, kit.judge(RELEASE, *there, around=around, nodes=[out])


def _evicted(kit: Kit) -> tuple[str, str]:
    wrong = judged("Machine-a", "a", *kit.worker("a"))
    right = judged("Machine-a", "a", machine("a", deleting=True), kit.worker("a")[1])
    return "deny-unrequested-eviction" if wrong else "", right


def _machines(acts: list[Any], wrong: list[Object], right: list[Object]) -> Row:
    """Of Machines alone, whose version is the only thing that tells a distribution."""

    def row(kit: Kit) -> tuple[str, str]:
        for each in (*wrong, *right):
            each["spec"] = {**each.get("spec", {}), "version": kit.version}
        return test_machine_guards.refusal_of(acts, wrong), test_machine_guards.refusal_of(acts, right)

    return row


def _flock(_kit: Kit) -> tuple[str, str]:
    views = [flock_view(flock(minAvailable=2), *map(member, range(count))) for count in (2, 3)]
    found = [next(filter(None, (guard(test_guards.DELETE, view, ()) for guard in GUARDS)), None) for view in views]
    return found[0].guard if found[0] else "", found[1].guard if found[1] else ""


_M = test_machine_guards
ROWS: dict[str, Row] = {
    "write-plan-with-state": _state,
    "require-beacon-ownership": _turn,
    "deny-plan-while-paused": _paused,
    "deny-plan-for-deleting-machine": _going,
    "deny-second-init-node": _init,
    "require-join-server": _joins,
    "deny-downgrade": _downgrade,
    "deny-minor-version-skip": _skip,
    "keep-etcd-quorum-on-disruption": _quorum,
    "limit-upgrade-concurrency": _down,
    "keep-etcd-quorum": _needed,
    "deny-release-of-join-server": _joined,
    "require-etcd-member-removal": _member,
    "deny-unrequested-eviction": _evicted,
    "deny-machine-in-deleting-cluster": _machines(
        [_M.creates("a")], [_M.cluster(deleting=True), _M.machine_set()], [_M.cluster(), _M.machine_set()]
    ),
    "deny-machine-above-maximum": _machines(
        [_M.creates("d")],
        [_M.cluster(), _M.machine("a"), _M.machine("b"), _M.machine("c"), _M.machine_set()],
        [_M.cluster(), _M.machine("a"), _M.machine_set()],
    ),
    "deny-deleting-paused-machine": _machines(
        [_M.deletes("a")],
        [_M.cluster(), _M.machine("a", annotations={PAUSED: ""})],
        [_M.cluster(), _M.machine("a")],
    ),
    "keep-minimum-available-machines": _machines(
        [_M.deletes("a")],
        [_M.cluster(), _M.machine_set(), _M.machine("a"), _M.deployment(1)],
        [_M.cluster(), _M.machine_set(), _M.machine("a"), _M.machine("b"), _M.deployment(1)],
    ),
    "keep-flock-minimum": _flock,
}
NOT_APPLICABLE = {
    ("require-etcd-member-removal", "embedded"): "its store is on one server, and no annotation says that it has left",
}


def _name(guard: Callable[..., Any]) -> str:
    return guard.__name__.replace("_", "-")


def test_every_distribution_has_a_kit() -> None:
    assert set(KITS) == {facts.name for facts in DISTRIBUTIONS}
    for name, kit in KITS.items():
        distribution, version = distribution_of(kit.version), version_of(kit.version)
        assert version is not None
        assert (distribution.name, version.facts.name) == (name, name)
        assert distribution.member_removal() == version.facts.member_removal == kit.removed.partition("/")[0]
        assert release_in(kit.plan()) == version.release == (1, 33, 4)


def test_a_member_of_a_distribution_that_nobody_knows_is_not_released() -> None:
    kit = replace(KITS["k3s"], removed="etcd.unknown.cattle.io/removed-node-name")
    unknown = objects.control_plane(kubernetesVersion="v1.33.4+unknown1")
    around = (objects.cluster(), unknown, made("v1", "Secret", f"{NAME}-kubeconfig") | {"type": KUBECONFIG})
    there = (*_leaving(kit), *kit.server("b"))
    out = {"metadata": {"name": "a", "annotations": {kit.removed: "a-1"}}}
    assert kit.judge(RELEASE, *there, around=around, nodes=[out]) == "require-etcd-member-removal"
    assert kit.judge(RELEASE, *there, around=around, nodes=[]) == ""


def test_what_a_node_reports_does_not_release_its_member() -> None:
    """The image of its applied plan may be forged: the distribution is what the control plane is to run."""
    kit = KITS["rke2"]
    forged = plan_secret("a", SERVER, plan=KITS["embedded"].plan(), marks={names.JOIN_URL: JOINED})
    around = (*kit.around, made("v1", "Secret", f"{NAME}-kubeconfig") | {"type": KUBECONFIG})
    leaving, _, bootstrap = _leaving(kit)
    there = (leaving, forged, bootstrap, *kit.server("b"))
    assert (
        kit.judge(RELEASE, *there, around=around, nodes=[{"metadata": {"name": "a"}}]) == "require-etcd-member-removal"
    )


def test_every_guard_has_a_row() -> None:
    assert set(ROWS) == {_name(guard) for guard in (*GUARDS, *CHECKS) if guard is not check_plan_write}


@pytest.mark.parametrize("distribution", KITS)
@pytest.mark.parametrize("guard", ROWS)
def test_a_guard_refuses_a_violation_and_nothing_else(guard: str, distribution: str) -> None:
    wrong, right = ROWS[guard](KITS[distribution])
    assert right == ""
    assert wrong == ("" if (guard, distribution) in NOT_APPLICABLE else guard)
