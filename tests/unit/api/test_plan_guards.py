"""Guards of plans: no plan that could harm a cluster is written, whatever a controller decided."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import PAUSED
from herder.api.guards import GUARDS
from herder.api.rke import names, operations
from herder.api.rke.kinds import BEACON, PLAN_SECRET
from herder.api.rke.node.plan import AGENT_STATUS, SNAPSHOT_HASHES, PeriodicInstruction, Plan, file
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
HEALTHY: tuple[Object, ...] = (objects.cluster(), objects.control_plane(), objects.beacon())


def denied_by(
    action: Action,
    *existing: Object,
    before: tuple[Action, ...] = (),
    cluster: tuple[Object, ...] = HEALTHY,
    nodes: list[Object] | None = None,
) -> str:
    """The name of the guard that denies the action, or "". `nodes` are the observed Nodes of the cluster."""

    def observed(_request: Observe) -> Observed | None:
        return None if nodes is None else Observed(tuple(nodes), NOW)

    view: View = view_of(READER, f"{NAMESPACE}/x", (*cluster, *existing), observed=observed)
    earlier: list[Action] = list(before)
    refusals = [refusal for guard in GUARDS if (refusal := guard(action, view, earlier)) is not None]
    assert all(isinstance(refusal, Refusal) and refusal.reason for refusal in refusals)
    return refusals[0].guard if refusals else ""


def write(name: str, plan: Plan, *, joins: str = "https://10.0.0.1:6443", **changes: Any) -> Patch:
    """A correct plan that names the server it joins; `changes` make it wrong."""
    server = file("/server", joins, dynamic=True, minor=True)
    joined = msgspec.structs.replace(plan, files=(*plan.files, server))
    data = {"plan": encoded(joined.to_json()), "plan-state": encoded("pending"), "probe-statuses": None}
    data |= changes.pop("data", {})
    patch = {"metadata": {"annotations": {names.JOINED_TO: joins}}, "data": data}
    resource_version = changes.pop("version", "1")
    return Patch(Ref(PLAN_SECRET, names.plan_secret(name), NAMESPACE), patch, "a plan", "", resource_version)


def mark_init(name: str) -> Patch:
    label = {"metadata": {"labels": {names.INIT_NODE: "true"}}}
    return Patch(Ref(PLAN_SECRET, names.plan_secret(name), NAMESPACE), label, "it bootstraps the cluster", "", "1")


NEW = plan_of(stamp="2")


# --- the write itself -----------------------------------------------------------------------------------------------


def test_a_correct_plan_is_allowed() -> None:
    assert denied_by(write("a", NEW), machine("a"), plan_secret("a", plan=plan_of())) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": {"plan-state": encoded("succeeded")}},
        {"data": {"probe-statuses": encoded("{}")}},
        {"version": ""},
    ],
    ids=["the state of the last plan", "the probes of the last plan", "without a resource version"],
)
def test_a_plan_is_written_with_a_fresh_state_and_a_resource_version(wrong: dict[str, Any]) -> None:
    action = write("a", NEW, **wrong)
    assert denied_by(action, machine("a"), plan_secret("a", plan=plan_of())) == "write-plan-with-state"


def test_a_plan_needs_ownership_of_the_beacon() -> None:
    existing = machine("a"), plan_secret("a", plan=plan_of())
    cluster = (objects.cluster(), objects.control_plane(), objects.beacon("restore"))
    assert denied_by(write("a", NEW), *existing, cluster=cluster) == "require-beacon-ownership"
    assert denied_by(write("a", NEW), *existing, cluster=cluster[:2]) == "require-beacon-ownership"


def _paused_machine() -> Object:
    obj = machine("a")
    obj["metadata"]["annotations"] = {PAUSED: ""}
    return obj


@pytest.mark.parametrize(
    ("cluster", "target"),
    [
        ((objects.cluster(paused=True), objects.control_plane(), objects.beacon()), machine("a")),
        ((objects.cluster(), objects.control_plane(annotations={PAUSED: ""}), objects.beacon()), machine("a")),
        (HEALTHY, _paused_machine()),
    ],
    ids=["the cluster", "the control plane", "the machine"],
)
def test_no_plan_is_written_while_paused(cluster: tuple[Object, ...], target: Object) -> None:
    existing = target, plan_secret("a", plan=plan_of())
    assert denied_by(write("a", NEW), *existing, cluster=cluster) == "deny-plan-while-paused"
    retry = Patch(
        Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"data": {"plan-state": encoded("pending")}}, "once more"
    )
    failed = plan_secret("a", plan=plan_of(), state="failed")
    assert denied_by(retry, target, failed, cluster=cluster) == "deny-plan-while-paused"


def test_no_plan_is_written_for_a_deleting_machine() -> None:
    assert denied_by(write("a", NEW), machine("a", deleting=True), plan_secret("a")) == "deny-plan-for-deleting-machine"
    assert denied_by(write("a", NEW), plan_secret("a")) == "deny-plan-for-deleting-machine"


# --- bootstrap ------------------------------------------------------------------------------------------------------


def test_a_cluster_has_only_one_init_machine() -> None:
    first, second = plan_secret("a", init=True), plan_secret("b")
    assert denied_by(mark_init("b"), machine("a"), machine("b"), first, second) == "deny-second-init-node"
    unmarked = Patch(
        Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE),
        {"metadata": {"labels": {names.INIT_NODE: None}}},
        "no more",
    )
    assert denied_by(mark_init("b"), machine("a"), machine("b"), first, second, before=(unmarked,)) == ""
    assert (
        denied_by(mark_init("b"), machine("a"), machine("b"), plan_secret("a"), second, before=(mark_init("a"),)) != ""
    )


def test_a_machine_outside_an_initialized_cluster_does_not_become_init() -> None:
    initialized = (
        objects.cluster(),
        objects.control_plane(controlPlaneEndpoint={"host": "10.0.0.1"}),
        objects.beacon(),
    )
    assert denied_by(mark_init("b"), machine("b"), plan_secret("b"), cluster=initialized) == "deny-second-init-node"
    member = plan_secret("b", annotations={names.JOIN_URL: "https://10.0.0.2:6443"})
    assert denied_by(mark_init("b"), machine("b"), member, cluster=initialized) == ""


def test_a_machine_that_is_not_init_joins_a_server() -> None:
    alone = write("a", NEW, joins="")
    assert denied_by(alone, machine("a"), plan_secret("a")) == "require-join-server"
    assert denied_by(alone, machine("a"), plan_secret("a", init=True)) == ""


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "phase", "mode", "guard"),
    [
        ("v1.34.0", "", "", ""),
        ("v1.33.4", "", "", ""),
        ("v1.33.3", "", "all", "deny-downgrade"),
        ("v1.9.9", "", "all", "deny-downgrade"),
        ("v1.32.9", "Finished", "all", "deny-downgrade"),
        ("v1.32.9", "Shutdown", "all", "deny-downgrade"),
        ("v1.32.9", "Restore", "all", ""),
        ("v1.32.9", "InitialRestartCluster", "kubernetesVersion", ""),
        ("v1.32.9", "Restore", "none", "deny-downgrade"),
        ("v1.32.9", "Restore", "", "deny-downgrade"),
        ("v1.32.8", "Restore", "all", "deny-downgrade"),  # not the version of the spec
    ],
)
def test_a_downgrade_needs_a_restore_of_its_version(version: str, phase: str, mode: str, guard: str) -> None:
    run = operations.Run("restore-1", operations.RESTORE, phase, 1, started_at=NOW)
    request = {"generation": 1, "name": "old", "restoreRKEConfig": mode}
    status = {"operation": run.to_status(), operations.RESTORE: request}
    control_plane = objects.control_plane(status, kubernetesVersion="v1.32.9+k3s1")
    cluster = (objects.cluster(), control_plane, objects.beacon())
    existing = machine("a"), plan_secret("a", (WORKER,), plan=plan_of())
    change = write("a", plan_of(version, stamp="2"))
    change.patch["metadata"]["annotations"][names.PLAN_TASK] = run.mark
    assert denied_by(change, *existing, cluster=cluster) == guard
    del change.patch["metadata"]["annotations"][names.PLAN_TASK]
    assert denied_by(change, *existing, cluster=cluster) == (guard or ("deny-downgrade" if phase else ""))


@pytest.mark.parametrize(
    ("version", "kubelet", "newer", "guard"),
    [
        ("v1.33.4", "v1.33.5+k3s1", False, "deny-downgrade"),  # upgraded since the backup of the manager's store
        ("v1.33.5", "v1.33.5+k3s1", True, ""),
        ("v1.33.4", "", True, "deny-downgrade"),  # the Node was not read yet
        ("v1.33.4", "", False, ""),
        ("v1.33.4", "v1.33.4+k3s1", True, ""),
    ],
)
def test_a_plan_is_not_older_than_what_the_node_reports(version: str, kubelet: str, newer: bool, guard: str) -> None:
    data = {"plan-revision": "1", "local-plan-revision": "2", "local-applied-checksum": "abc"} if newer else {}
    node_info = {"nodeInfo": {"kubeletVersion": kubelet}} if kubelet else {}
    existing = machine("a", **node_info), plan_secret("a", (WORKER,), plan=plan_of(), data=data)
    assert denied_by(write("a", plan_of(version, stamp="2")), *existing) == guard


ALLOWED = {names.ALLOW_VERSION_SKIP: "v1.36.3+k3s1"}


@pytest.mark.parametrize(
    ("roles", "version", "annotations", "kubelet", "guard"),
    [
        (SERVER, "v1.34.9", {}, "v1.33.4+k3s1", ""),
        (SERVER, "v1.35.0", {}, "v1.33.4+k3s1", "deny-minor-version-skip"),
        (SERVER, "v1.34.0", {}, "v1.32.4+k3s1", "deny-minor-version-skip"),
        (SERVER, "v1.34.0", {}, "no version", ""),
        (SERVER, "v1.36.3", ALLOWED, "v1.33.4+k3s1", ""),
        (SERVER, "v1.36.2", ALLOWED, "v1.33.4+k3s1", "deny-minor-version-skip"),
        (SERVER, "v2.1.0", {}, "v1.33.4+k3s1", "deny-minor-version-skip"),
        ((WORKER,), "v1.36.3", {}, "v1.33.4+k3s1", ""),  # a worker may skip the versions of its servers
        ((WORKER,), "v1.37.0", {}, "v1.33.4+k3s1", "deny-minor-version-skip"),
        ((WORKER,), "v1.36.3", {}, "v1.0.0", "deny-minor-version-skip"),
    ],
)
def test_minor_versions_are_not_skipped(
    roles: tuple[str, ...], version: str, annotations: dict[str, str], kubelet: str, guard: str
) -> None:
    control_plane = objects.control_plane(annotations=annotations, kubernetesVersion=f"{version}+k3s1")
    cluster = (objects.cluster(), control_plane, objects.beacon())
    existing = machine("a", nodeInfo={"kubeletVersion": kubelet}), plan_secret("a", roles, plan=plan_of())
    assert denied_by(write("a", plan_of(version, stamp="2")), *existing, cluster=cluster) == guard


# --- disruption -----------------------------------------------------------------------------------------------------


def members(*states: str) -> list[Object]:
    """Machines with etcd named a, b, c…: w(ell), d(own), r(unning a plan), f(ailed), s(erving after that), n(ew)."""
    created: list[Object] = []
    for name, state in zip("abcde", states, strict=False):
        created.append(machine(name))
        created.append(
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
    return created


@pytest.mark.parametrize(
    ("states", "guard"),
    [
        ("w", ""),
        ("ww", ""),
        ("wd", "keep-etcd-quorum-on-disruption"),
        ("www", ""),
        ("wwd", "keep-etcd-quorum-on-disruption"),
        ("wwr", "keep-etcd-quorum-on-disruption"),
        ("wwn", ""),  # a machine that has not joined yet is no member
        ("wwwww", ""),
        ("wwwwd", ""),
        ("wwwdd", "keep-etcd-quorum-on-disruption"),
        ("dwd", ""),  # it is down already: the plan can only help
        ("fww", ""),
        ("ffw", "keep-etcd-quorum-on-disruption"),  # a member whose plan failed may still serve
        ("ssw", ""),  # unless it reported that it serves; else both would wait forever
        ("wsd", "keep-etcd-quorum-on-disruption"),
        ("frw", "keep-etcd-quorum-on-disruption"),  # it may still serve while another runs a plan
        ("frwww", ""),
        ("ndd", ""),  # the first plan of a machine
    ],
)
def test_an_etcd_member_is_disrupted_only_if_the_others_keep_quorum(states: str, guard: str) -> None:
    assert denied_by(write("a", NEW), *members(*states)) == guard


def test_instructions_that_report_disrupt_no_member() -> None:
    """Only these instructions are exempt: another one may restart services."""
    for name, guard in ((AGENT_STATUS, ""), (SNAPSHOT_HASHES, ""), ("another", "keep-etcd-quorum-on-disruption")):
        instruction = PeriodicInstruction(name=name, command="kubectl")
        plan = msgspec.structs.replace(plan_of(), periodic_instructions=(instruction,))
        assert denied_by(write("a", plan), *members(*"wwd")) == guard


def test_a_failed_plan_is_not_retried_while_another_member_runs_a_plan() -> None:
    retry = Patch(
        Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"data": {"plan-state": encoded("pending")}}, "once more"
    )
    assert denied_by(retry, *members("f", "r", "w")) == "keep-etcd-quorum-on-disruption"
    assert denied_by(retry, *members("f", "w", "w")) == ""


def test_a_deleting_member_does_not_block_plans_of_the_others() -> None:
    existing = members("w", "w", "d")
    lost = [machine("c", deleting=True) if each["metadata"]["name"] == "c" else each for each in existing]
    assert denied_by(write("a", NEW), *existing) == "keep-etcd-quorum-on-disruption"
    assert denied_by(write("a", NEW), *lost) == ""


def test_a_deleting_member_under_drain_does_not_block_plans_of_the_others() -> None:
    """A deleting machine is never uncordoned, and is not deleted before the others have joined another server."""
    existing = members("w", "w", "w")
    for each in existing:
        if each["metadata"]["name"] == names.plan_secret("c"):
            each["metadata"]["annotations"][names.DRAIN_OPTIONS] = '{"enabled":true}'
    deleting = [machine("c", deleting=True) if each["metadata"]["name"] == "c" else each for each in existing]
    assert denied_by(write("a", NEW), *existing) == "keep-etcd-quorum-on-disruption"
    assert denied_by(write("a", NEW), *deleting) == ""


@pytest.mark.parametrize(
    ("ago", "status", "guard"),
    [
        (10, {}, "keep-etcd-quorum-on-disruption"),
        (600, {}, ""),
        (10, {"conditions": [{"type": "NodeReady", "status": "Unknown", "reason": "NodeReadyUnknown"}]}, ""),
    ],
    ids=["recently restarted", "restarted long ago", "unreachable from its cluster"],
)
@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_a_deleting_member_counts_while_its_plan_restarts_it(
    ago: int, status: dict[str, Any], guard: str, state: str
) -> None:
    report: dict[str, Any] = {"state": state, "data": {"appliedPlan": "{}"}}
    updated_at = (NOW - timedelta(seconds=ago)).isoformat()
    restarted = plan_secret("c", plan=plan_of(), unhealthy=True, annotations={names.PLAN_UPDATED: updated_at}, **report)
    existing = (*members("w", "w"), machine("c", deleting=True, **status), restarted)
    assert denied_by(write("a", NEW), *existing) == guard


def test_two_members_are_not_disrupted_in_one_decision() -> None:
    action, earlier = write("b", NEW), write("a", NEW)
    assert denied_by(action, *members("w", "w", "w"), before=(earlier,)) == "keep-etcd-quorum-on-disruption"


def test_a_machine_counts_as_soon_as_its_agent_reports_success() -> None:
    """The applied plan is recorded a moment later. Until then the machine counts, and is disrupted like others."""
    ran = plan_secret("b", (WORKER,), plan=plan_of(), state="in-progress", data={"success-count": "1"})
    never = plan_secret("b", (WORKER,), plan=plan_of(), state="in-progress")
    other = (machine("a"), plan_secret("a", (WORKER,), plan=plan_of()), machine("b"))
    assert denied_by(write("a", NEW), *other, ran) == "limit-upgrade-concurrency"
    assert denied_by(write("a", NEW), *other, never) == ""
    moving = plan_secret("a", (WORKER,), plan=plan_of(), state="in-progress", data={"appliedPlan": "{}"})
    assert denied_by(write("b", NEW), machine("a"), moving, machine("b"), ran) == "limit-upgrade-concurrency"
    assert denied_by(write("b", NEW), machine("a"), moving, machine("b"), never) == ""


def test_a_plan_without_disruption_is_written_at_any_time() -> None:
    minor = write("a", plan_of(minor="another"))
    assert denied_by(minor, *members("w", "d", "d")) == ""


def workers(*states: str) -> list[Object]:
    created: list[Object] = []
    for name, state in zip("abcde", states, strict=False):
        plan = None if state == "n" else plan_of()
        report: dict[str, Any] = {"state": "pending", "data": {"appliedPlan": "{}"}} if state == "r" else {}
        created += [machine(name), plan_secret(name, (WORKER,), plan=plan, unhealthy=state == "d", **report)]
    return created


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
    cluster = (objects.cluster(), objects.control_plane(upgradeStrategy=strategy), objects.beacon())
    assert denied_by(write("a", NEW), *workers(*states), cluster=cluster) == guard


def test_workers_disrupted_by_the_same_decision_count() -> None:
    earlier = write("b", NEW)
    assert denied_by(write("a", NEW), *workers("w", "w", "w"), before=(earlier,)) == "limit-upgrade-concurrency"


def test_control_planes_without_etcd_have_their_own_limit() -> None:
    existing = [machine("a"), plan_secret("a", (PLANE,), plan=plan_of())]
    existing += [machine("b"), plan_secret("b", (PLANE,), plan=plan_of(), unhealthy=True)]
    assert denied_by(write("a", NEW), *existing) == "limit-upgrade-concurrency"


# --- deletion -------------------------------------------------------------------------------------------------------


def deletion(name: str) -> Delete:
    return Delete(Ref(MACHINE, name, NAMESPACE), f"Machine-{name}", "one too many")


@pytest.mark.parametrize(
    ("states", "guard"),
    [
        ("w", ""),  # the last member: its owner gives up the data of the cluster
        ("ww", ""),
        ("wd", "keep-etcd-quorum"),
        ("www", ""),
        ("wwd", "keep-etcd-quorum"),
        ("dww", ""),
        ("wwwdd", "keep-etcd-quorum"),
        ("nd", ""),
    ],
)
def test_an_etcd_member_is_deleted_only_if_the_others_keep_quorum(states: str, guard: str) -> None:
    assert denied_by(deletion("a"), *members(*states)) == guard


def test_all_members_are_deleted_with_their_cluster() -> None:
    deleting = (objects.cluster(deleting=True), objects.control_plane(), objects.beacon())
    assert denied_by(deletion("a"), *members("w", "w", "d"), cluster=deleting) == ""


RELEASE = Patch(Ref(MACHINE, "a", NAMESPACE), {"metadata": {"annotations": {names.ETCD_HOOK: None}}}, "it may go")
MEMBER = {"metadata": {"name": "a"}}
REMOVED = {"metadata": {"name": "a", "annotations": {"etcd.k3s.cattle.io/removed-node-name": "a-1"}}}
REJOINED = {
    "metadata": {
        "name": "a",
        "annotations": {"etcd.k3s.cattle.io/removed-node-name": "a-1", "etcd.k3s.cattle.io/node-name": "a-2"},
    }
}
"""A server that has joined again after its removal."""


def test_a_deleting_machine_is_kept_while_others_are_joined_to_it() -> None:
    own = plan_secret("a", (ETCD,), plan=plan_of(), annotations={names.JOIN_URL: "https://10.0.0.1:6443"})
    joined = plan_secret("b", SERVER, plan=plan_of(), annotations={names.JOINED_TO: "https://10.0.0.1:6443"})
    existing = (machine("a", deleting=True), machine("b"), own, joined)
    assert denied_by(RELEASE, *existing, objects.bootstrap("a")) == "deny-release-of-join-server"
    assert denied_by(RELEASE, *existing, objects.bootstrap("a"), nodes=[MEMBER]) == "deny-release-of-join-server"
    assert denied_by(RELEASE, *existing, objects.bootstrap("a"), nodes=[REJOINED]) == "deny-release-of-join-server"
    assert denied_by(RELEASE, *existing, objects.bootstrap("a"), nodes=[REMOVED]) == "", (
        "no machine can join it any more"
    )
    forced = objects.bootstrap("a", **{names.ETCD_FORCE_REMOVE: "true"})
    assert denied_by(RELEASE, *existing, forced) == ""
    elsewhere = plan_secret("b", SERVER, plan=plan_of(), annotations={names.JOINED_TO: "https://10.0.0.9:6443"})
    assert denied_by(RELEASE, *existing[:3], elsewhere, objects.bootstrap("a")) == ""


OTHERS: dict[str, tuple[Object, ...]] = {
    "a member": (machine("b"), plan_secret("b", SERVER, plan=plan_of())),
    "a new server": (machine("b"), plan_secret("b", SERVER)),
    "a deleting member": (machine("b", deleting=True), plan_secret("b", SERVER, plan=plan_of())),
    "a worker": (machine("b"), plan_secret("b", (WORKER,), plan=plan_of())),
}


@pytest.mark.parametrize(
    ("other", "nodes", "guard"),
    [
        ("a member", None, "require-etcd-member-removal"),
        ("a member", [MEMBER], "require-etcd-member-removal"),
        ("a member", [REMOVED], ""),
        ("a member", [REJOINED], "require-etcd-member-removal"),
        ("a member", [REMOVED, REJOINED], "require-etcd-member-removal"),
        ("a member", [], ""),
        ("a new server", [MEMBER], "require-etcd-member-removal"),
        ("a deleting member", [MEMBER], ""),
        ("a worker", [MEMBER], ""),
    ],
)
def test_a_deleting_machine_is_kept_while_it_is_a_member_that_others_need(
    other: str, nodes: list[Object] | None, guard: str
) -> None:
    cluster = (*HEALTHY, objects.secret(f"{NAME}-kubeconfig", type="cluster.x-k8s.io/secret"))
    own = (machine("a", deleting=True, address="10.0.0.1"), plan_secret("a", SERVER, plan=plan_of()))
    assert denied_by(RELEASE, *own, objects.bootstrap("a"), *OTHERS[other], cluster=cluster, nodes=nodes) == guard


def test_machines_of_other_clusters_are_not_counted() -> None:
    other = plan_secret("b", (WORKER,), plan=plan_of(), unhealthy=True, labels={names.CLUSTER_NAME: "another"})
    assert denied_by(write("a", NEW), *workers("w"), machine("b"), other) == ""
    assert NAME != "another"
