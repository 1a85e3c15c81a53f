"""No plan that could harm a cluster is written, whatever was decided: each guard against a wrong decision."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import PAUSED
from herder.api.guards import GUARDS
from herder.api.rke import names
from herder.api.rke.kinds import BEACON, PLAN_SECRET
from herder.api.rke.node.plan import Plan, file
from herder.api.rke.node.plan_secret import encoded
from herder.controllers.planner.etcd import member as etcd_members
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Delete, Observe, Patch, Ref, Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.handlers import Watches
from herder.engine.runtime.view import Observed, View
from tests.support.views import NOW, view_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import (
    ETCD,
    NAME,
    NAMESPACE,
    PLANE,
    SERVER,
    WORKER,
    machine,
    made,
    plan_of,
    plan_secret,
)

READER = Controller(
    name="reader",
    kind=MACHINE,
    reconcile=etcd_members.reconcile,
    watches=(*etcd_members.CONTROLLER.watches, Watches(BEACON)),
    indexes=etcd_members.CONTROLLER.indexes,
    groupings=etcd_members.CONTROLLER.groupings,
)
SOUND: tuple[Object, ...] = (objects.cluster(), objects.control_plane(), objects.beacon())


def refused(
    act: Action,
    *there: Object,
    before: tuple[Action, ...] = (),
    around: tuple[Object, ...] = SOUND,
    nodes: list[Object] | None = None,
) -> str:
    """The name of the guard that says no; empty where all agree. `nodes` are what is observed of the cluster's own."""

    def observed(_wish: Observe) -> Observed | None:
        return None if nodes is None else Observed(tuple(nodes), NOW)

    view: View = view_of(READER, f"{NAMESPACE}/x", (*around, *there), observed=observed)
    done: list[Action] = list(before)
    refusals = [found for guard in GUARDS if (found := guard(act, view, done)) is not None]
    assert all(isinstance(found, Refusal) and found.reason for found in refusals)
    return refusals[0].guard if refusals else ""


def write(name: str, plan: Plan, *, joins: str = "https://10.0.0.1:6443", **changes: Any) -> Patch:
    """A plan as it should be written, which says whom it joins; `changes` make it wrong."""
    server = file("/server", joins, dynamic=True, minor=True)
    told = msgspec.structs.replace(plan, files=(*plan.files, server))
    data = {"plan": encoded(told.to_json()), "plan-state": encoded("pending"), "probe-statuses": None}
    data |= changes.pop("data", {})
    patch = {"metadata": {"annotations": {names.JOINED_TO: joins}}, "data": data}
    version = changes.pop("version", "1")
    return Patch(Ref(PLAN_SECRET, names.plan_secret(name), NAMESPACE), patch, "a plan", "", version)


def marked(name: str) -> Patch:
    label = {"metadata": {"labels": {names.INIT_NODE: "true"}}}
    return Patch(Ref(PLAN_SECRET, names.plan_secret(name), NAMESPACE), label, "it begins", "", "1")


NEW = plan_of(stamp="2")


# --- how it is written ----------------------------------------------------------------------------------------------


def test_a_plan_as_it_should_be_is_let_through() -> None:
    assert refused(write("a", NEW), machine("a"), plan_secret("a", plan=plan_of())) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": {"plan-state": encoded("succeeded")}},
        {"data": {"probe-statuses": encoded("{}")}},
        {"version": ""},
    ],
    ids=["the state of the last plan", "the probes of the last plan", "over what somebody wrote since"],
)
def test_a_plan_is_not_written_with(wrong: dict[str, Any]) -> None:
    act = write("a", NEW, **wrong)
    assert refused(act, machine("a"), plan_secret("a", plan=plan_of())) == "write-plan-with-state"


def test_no_plan_is_written_out_of_turn() -> None:
    there = machine("a"), plan_secret("a", plan=plan_of())
    around = (objects.cluster(), objects.control_plane(), objects.beacon("restore"))
    assert refused(write("a", NEW), *there, around=around) == "require-beacon-ownership"
    assert refused(write("a", NEW), *there, around=around[:2]) == "require-beacon-ownership"


def _paused_machine() -> Object:
    found = machine("a")
    found["metadata"]["annotations"] = {PAUSED: ""}
    return found


@pytest.mark.parametrize(
    ("around", "of"),
    [
        ((objects.cluster(paused=True), objects.control_plane(), objects.beacon()), machine("a")),
        ((objects.cluster(), objects.control_plane(annotations={PAUSED: ""}), objects.beacon()), machine("a")),
        (SOUND, _paused_machine()),
    ],
    ids=["the cluster", "the control plane", "the machine"],
)
def test_no_plan_is_written_where_paused_is(around: tuple[Object, ...], of: Object) -> None:
    there = of, plan_secret("a", plan=plan_of())
    assert refused(write("a", NEW), *there, around=around) == "deny-plan-while-paused"
    again = Patch(
        Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"data": {"plan-state": encoded("pending")}}, "once more"
    )
    failed = plan_secret("a", plan=plan_of(), state="failed")
    assert refused(again, of, failed, around=around) == "deny-plan-while-paused"


def test_no_plan_is_written_for_a_machine_that_goes() -> None:
    assert refused(write("a", NEW), machine("a", deleting=True), plan_secret("a")) == "deny-plan-for-deleting-machine"
    assert refused(write("a", NEW), plan_secret("a")) == "deny-plan-for-deleting-machine"


# --- who begins -----------------------------------------------------------------------------------------------------


def test_there_are_never_two_machines_that_begin_a_cluster() -> None:
    first, second = plan_secret("a", init=True), plan_secret("b")
    assert refused(marked("b"), machine("a"), machine("b"), first, second) == "deny-second-init-node"
    unmarked = Patch(
        Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE),
        {"metadata": {"labels": {names.INIT_NODE: None}}},
        "no more",
    )
    assert refused(marked("b"), machine("a"), machine("b"), first, second, before=(unmarked,)) == ""
    assert refused(marked("b"), machine("a"), machine("b"), plan_secret("a"), second, before=(marked("a"),)) != ""


def test_who_is_not_in_a_cluster_does_not_begin_it_again() -> None:
    begun = (objects.cluster(), objects.control_plane(controlPlaneEndpoint={"host": "10.0.0.1"}), objects.beacon())
    assert refused(marked("b"), machine("b"), plan_secret("b"), around=begun) == "deny-second-init-node"
    member = plan_secret("b", marks={names.JOIN_URL: "https://10.0.0.2:6443"})
    assert refused(marked("b"), machine("b"), member, around=begun) == ""


def test_a_machine_that_does_not_begin_the_cluster_joins_somebody() -> None:
    alone = write("a", NEW, joins="")
    assert refused(alone, machine("a"), plan_secret("a")) == "require-join-server"
    assert refused(alone, machine("a"), plan_secret("a", init=True)) == ""


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "phase", "guard"),
    [
        ("v1.34.0", "", ""),
        ("v1.33.4", "", ""),
        ("v1.33.3", "", "deny-downgrade"),
        ("v1.9.9", "", "deny-downgrade"),
        ("v1.32.9", "Finished", "deny-downgrade"),
        ("v1.32.9", "Restore", ""),
    ],
)
def test_a_lower_version_comes_by_a_restore_alone(wanted: str, phase: str, guard: str) -> None:
    around = (objects.cluster(), objects.control_plane({"etcdSnapshotRestorePhase": phase}), objects.beacon())
    there = machine("a"), plan_secret("a", (WORKER,), plan=plan_of())
    assert refused(write("a", plan_of(wanted, stamp="2")), *there, around=around) == guard


ALLOWED = {names.ALLOW_VERSION_SKIP: "v1.36.3+k3s1"}


@pytest.mark.parametrize(
    ("roles", "wanted", "marks", "kubelet", "guard"),
    [
        (SERVER, "v1.34.9", {}, "v1.33.4+k3s1", ""),
        (SERVER, "v1.35.0", {}, "v1.33.4+k3s1", "deny-minor-version-skip"),
        (SERVER, "v1.34.0", {}, "v1.32.4+k3s1", "deny-minor-version-skip"),
        (SERVER, "v1.34.0", {}, "no version", ""),
        (SERVER, "v1.36.3", ALLOWED, "v1.33.4+k3s1", ""),
        (SERVER, "v1.36.2", ALLOWED, "v1.33.4+k3s1", "deny-minor-version-skip"),
        (SERVER, "v2.1.0", {}, "v1.33.4+k3s1", "deny-minor-version-skip"),
        ((WORKER,), "v1.36.3", {}, "v1.33.4+k3s1", ""),  # which has missed what its servers went through
        ((WORKER,), "v1.37.0", {}, "v1.33.4+k3s1", "deny-minor-version-skip"),
        ((WORKER,), "v1.36.3", {}, "v1.0.0", "deny-minor-version-skip"),
    ],
)
def test_minor_versions_are_not_skipped(
    roles: tuple[str, ...], wanted: str, marks: dict[str, str], kubelet: str, guard: str
) -> None:
    asked = objects.control_plane(annotations=marks, kubernetesVersion=f"{wanted}+k3s1")
    around = (objects.cluster(), asked, objects.beacon())
    there = machine("a", nodeInfo={"kubeletVersion": kubelet}), plan_secret("a", roles, plan=plan_of())
    assert refused(write("a", plan_of(wanted, stamp="2")), *there, around=around) == guard


# --- how many are down ----------------------------------------------------------------------------------------------


def members(*states: str) -> list[Object]:
    """Of etcd, named a, b, c…: w(ell), d(own), r(unning a plan), f(ailed), n(ew)."""
    found: list[Object] = []
    for name, state in zip("abcde", states, strict=False):
        found.append(machine(name))
        found.append(
            {
                "w": lambda name=name: plan_secret(name, plan=plan_of()),
                "d": lambda name=name: plan_secret(name, plan=plan_of(), unhealthy=True),
                "r": lambda name=name: plan_secret(
                    name, plan=plan_of(), state="in-progress", data={"appliedPlan": "{}"}
                ),
                "f": lambda name=name: plan_secret(name, plan=plan_of(), state="failed", data={"appliedPlan": "{}"}),
                "s": lambda name=name: plan_secret(
                    name,
                    plan=plan_of(),
                    state="failed",
                    data={"appliedPlan": "{}", "probe-statuses": '{"etcd":{"healthy":true,"successCount":1}}'},
                ),
                "n": lambda name=name: plan_secret(name),
            }[state]()
        )
    return found


@pytest.mark.parametrize(
    ("states", "guard"),
    [
        ("w", ""),
        ("ww", ""),
        ("wd", "keep-etcd-quorum-on-disruption"),
        ("www", ""),
        ("wwd", "keep-etcd-quorum-on-disruption"),
        ("wwr", "keep-etcd-quorum-on-disruption"),
        ("wwn", ""),  # who has yet to join is no member
        ("wwwww", ""),
        ("wwwwd", ""),
        ("wwwdd", "keep-etcd-quorum-on-disruption"),
        ("dwd", ""),  # it is broken already: the plan can only help
        ("fww", ""),
        ("ffw", "keep-etcd-quorum-on-disruption"),  # one whose plan failed may serve on: it is disturbed as any other
        ("ssw", ""),  # but if it reported since that it serves: else both would wait for ever
        ("wsd", "keep-etcd-quorum-on-disruption"),
        ("frw", "keep-etcd-quorum-on-disruption"),  # unless another moves: it may still serve
        ("frwww", ""),
        ("ndd", ""),  # its first plan
    ],
)
def test_a_member_of_etcd_is_disturbed_only_where_the_others_keep_the_quorum(states: str, guard: str) -> None:
    assert refused(write("a", NEW), *members(*states)) == guard


def test_a_plan_that_failed_is_not_asked_for_again_while_another_member_moves() -> None:
    again = Patch(
        Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"data": {"plan-state": encoded("pending")}}, "once more"
    )
    assert refused(again, *members("f", "r", "w")) == "keep-etcd-quorum-on-disruption"
    assert refused(again, *members("f", "w", "w")) == ""


def test_a_member_that_is_lost_does_not_keep_the_others_from_leaving_it_behind() -> None:
    there = members("w", "w", "d")
    lost = [machine("c", deleting=True) if each["metadata"]["name"] == "c" else each for each in there]
    assert refused(write("a", NEW), *there) == "keep-etcd-quorum-on-disruption"
    assert refused(write("a", NEW), *lost) == ""


def test_a_member_that_goes_while_it_is_drained_does_not_keep_the_others_from_leaving_it_behind() -> None:
    """Nobody ends a drain of what goes, and it cannot go before the others have joined another."""
    there = members("w", "w", "w")
    for each in there:
        if each["metadata"]["name"] == names.plan_secret("c"):
            each["metadata"]["annotations"][names.DRAIN_OPTIONS] = '{"enabled":true}'
    goes = [machine("c", deleting=True) if each["metadata"]["name"] == "c" else each for each in there]
    assert refused(write("a", NEW), *there) == "keep-etcd-quorum-on-disruption"
    assert refused(write("a", NEW), *goes) == ""


@pytest.mark.parametrize(
    ("ago", "status", "guard"),
    [
        (10, {}, "keep-etcd-quorum-on-disruption"),
        (600, {}, ""),
        (10, {"conditions": [{"type": "NodeReady", "status": "Unknown", "reason": "NodeReadyUnknown"}]}, ""),
    ],
    ids=["it will be well in a moment", "it should have been by now", "its cluster does not hear of it"],
)
@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_a_member_that_goes_counts_while_what_its_plan_restarted_comes_up(
    ago: int, status: dict[str, Any], guard: str, state: str
) -> None:
    given: dict[str, Any] = {"state": state, "data": {"appliedPlan": "{}"}}
    asked_at = (NOW - timedelta(seconds=ago)).isoformat()
    restarted = plan_secret("c", plan=plan_of(), unhealthy=True, marks={names.PLAN_UPDATED: asked_at}, **given)
    there = (*members("w", "w"), machine("c", deleting=True, **status), restarted)
    assert refused(write("a", NEW), *there) == guard


def test_two_members_are_not_disturbed_in_one_decision() -> None:
    act, earlier = write("b", NEW), write("a", NEW)
    assert refused(act, *members("w", "w", "w"), before=(earlier,)) == "keep-etcd-quorum-on-disruption"


def test_a_machine_has_served_as_soon_as_its_agent_says_so() -> None:
    """Before it is written down what was applied, which takes a moment: it counts, and is disturbed as any other."""
    ran = plan_secret("b", (WORKER,), plan=plan_of(), state="in-progress", data={"success-count": "1"})
    never = plan_secret("b", (WORKER,), plan=plan_of(), state="in-progress")
    other = (machine("a"), plan_secret("a", (WORKER,), plan=plan_of()), machine("b"))
    assert refused(write("a", NEW), *other, ran) == "limit-upgrade-concurrency"
    assert refused(write("a", NEW), *other, never) == ""
    moving = plan_secret("a", (WORKER,), plan=plan_of(), state="in-progress", data={"appliedPlan": "{}"})
    assert refused(write("b", NEW), machine("a"), moving, machine("b"), ran) == "limit-upgrade-concurrency"
    assert refused(write("b", NEW), machine("a"), moving, machine("b"), never) == ""


def test_what_disturbs_nothing_is_written_at_any_time() -> None:
    minor = write("a", plan_of(minor="another"))
    assert refused(minor, *members("w", "d", "d")) == ""


def workers(*states: str) -> list[Object]:
    found: list[Object] = []
    for name, state in zip("abcde", states, strict=False):
        plan = None if state == "n" else plan_of()
        given: dict[str, Any] = {"state": "pending", "data": {"appliedPlan": "{}"}} if state == "r" else {}
        found += [machine(name), plan_secret(name, (WORKER,), plan=plan, unhealthy=state == "d", **given)]
    return found


@pytest.mark.parametrize(
    ("states", "concurrency", "guard"),
    [
        ("ww", None, ""),
        ("wd", None, "limit-upgrade-concurrency"),
        ("wd", "2", ""),
        ("wdd", "2", "limit-upgrade-concurrency"),
        ("wddd", "0", ""),
        ("wdww", "50%", ""),
        ("wddw", "50%", "limit-upgrade-concurrency"),
        ("wn", None, ""),
        ("dd", None, ""),
        ("dr", None, "limit-upgrade-concurrency"),
        ("nd", None, ""),
        ("wd", "many", "limit-upgrade-concurrency"),
    ],
)
def test_no_more_workers_are_down_than_the_strategy_allows(states: str, concurrency: str | None, guard: str) -> None:
    strategy = {"workerConcurrency": concurrency} if concurrency else {}
    around = (objects.cluster(), objects.control_plane(upgradeStrategy=strategy), objects.beacon())
    assert refused(write("a", NEW), *workers(*states), around=around) == guard


def test_workers_that_the_same_decision_disturbs_count() -> None:
    earlier = write("b", NEW)
    assert refused(write("a", NEW), *workers("w", "w", "w"), before=(earlier,)) == "limit-upgrade-concurrency"


def test_control_planes_without_etcd_have_their_own_limit() -> None:
    there = [machine("a"), plan_secret("a", (PLANE,), plan=plan_of())]
    there += [machine("b"), plan_secret("b", (PLANE,), plan=plan_of(), unhealthy=True)]
    assert refused(write("a", NEW), *there) == "limit-upgrade-concurrency"


# --- machines that go -----------------------------------------------------------------------------------------------


def deletion(name: str) -> Delete:
    return Delete(Ref(MACHINE, name, NAMESPACE), f"Machine-{name}", "one too many")


@pytest.mark.parametrize(
    ("states", "guard"),
    [
        ("w", ""),  # the last one: its owner gives the cluster's data up
        ("ww", ""),
        ("wd", "keep-etcd-quorum"),
        ("www", ""),
        ("wwd", "keep-etcd-quorum"),
        ("dww", ""),
        ("wwwdd", "keep-etcd-quorum"),
        ("nd", ""),
    ],
)
def test_a_member_of_etcd_goes_only_where_those_that_stay_keep_the_quorum(states: str, guard: str) -> None:
    assert refused(deletion("a"), *members(*states)) == guard


def test_all_members_go_with_their_cluster() -> None:
    going = (objects.cluster(deleting=True), objects.control_plane(), objects.beacon())
    assert refused(deletion("a"), *members("w", "w", "d"), around=going) == ""


RELEASE = Patch(Ref(MACHINE, "a", NAMESPACE), {"metadata": {"annotations": {names.ETCD_HOOK: None}}}, "it may go")
A_MEMBER = {"metadata": {"name": "a"}}
TAKEN_OUT = {"metadata": {"name": "a", "annotations": {"etcd.k3s.cattle.io/removed-node-name": "a-1"}}}


def test_a_machine_that_goes_is_held_while_others_have_joined_it() -> None:
    own = plan_secret("a", (ETCD,), plan=plan_of(), marks={names.JOIN_URL: "https://10.0.0.1:6443"})
    joined = plan_secret("b", SERVER, plan=plan_of(), marks={names.JOINED_TO: "https://10.0.0.1:6443"})
    there = (machine("a", deleting=True), machine("b"), own, joined)
    assert refused(RELEASE, *there, objects.bootstrap("a")) == "deny-release-of-join-server"
    assert refused(RELEASE, *there, objects.bootstrap("a"), nodes=[A_MEMBER]) == "deny-release-of-join-server"
    assert refused(RELEASE, *there, objects.bootstrap("a"), nodes=[TAKEN_OUT]) == "", "nobody can join it any more"
    forced = objects.bootstrap("a", **{names.ETCD_FORCE_REMOVE: "true"})
    assert refused(RELEASE, *there, forced) == ""
    elsewhere = plan_secret("b", SERVER, plan=plan_of(), marks={names.JOINED_TO: "https://10.0.0.9:6443"})
    assert refused(RELEASE, *there[:3], elsewhere, objects.bootstrap("a")) == ""


OTHERS: dict[str, tuple[Object, ...]] = {
    "one that stays": (machine("b"), plan_secret("b", SERVER, plan=plan_of())),
    "one that comes": (machine("b"), plan_secret("b", SERVER)),
    "one that goes": (machine("b", deleting=True), plan_secret("b", SERVER, plan=plan_of())),
    "a worker": (machine("b"), plan_secret("b", (WORKER,), plan=plan_of())),
}


@pytest.mark.parametrize(
    ("other", "nodes", "guard"),
    [
        ("one that stays", None, "require-etcd-member-removal"),
        ("one that stays", [A_MEMBER], "require-etcd-member-removal"),
        ("one that stays", [TAKEN_OUT], ""),
        ("one that stays", [], ""),
        ("one that comes", [A_MEMBER], "require-etcd-member-removal"),
        ("one that goes", [A_MEMBER], ""),
        ("a worker", [A_MEMBER], ""),
    ],
)
def test_a_machine_that_goes_is_held_while_it_is_a_member_that_another_needs(
    other: str, nodes: list[Object] | None, guard: str
) -> None:
    around = (*SOUND, made("v1", "Secret", f"{NAME}-kubeconfig") | {"type": "cluster.x-k8s.io/secret"})
    own = (machine("a", deleting=True, address="10.0.0.1"), plan_secret("a", SERVER, plan=plan_of()))
    assert refused(RELEASE, *own, objects.bootstrap("a"), *OTHERS[other], around=around, nodes=nodes) == guard


def test_the_name_of_the_cluster_is_what_is_counted_by() -> None:
    other = plan_secret("b", (WORKER,), plan=plan_of(), unhealthy=True, labels={names.CLUSTER_NAME: "another"})
    assert refused(write("a", NEW), *workers("w"), machine("b"), other) == ""
    assert NAME != "another"
