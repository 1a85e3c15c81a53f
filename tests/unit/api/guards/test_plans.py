"""Decisions and messages of the guards of plans, for the plans of every distribution."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from herder.api.capi.names import PAUSED
from herder.api.machines.archive import CONFIG_MAP
from herder.api.rke import names, operations
from herder.api.rke.kinds import BEACON, PLAN_SECRET
from herder.api.rke.node.agents import ServedAgent
from herder.api.rke.node.plan import Instruction, Plan
from herder.api.rke.node.plan_secret import encoded
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Delete, Patch, Ref, Update
from tests.support.views import NOW
from tests.unit.api.guards.plan_writes import NEW, mark_init, members, workers, write
from tests.unit.api.guards.refusals import refusal
from tests.unit.api.test_guards_by_distribution import JOINED, SAMPLES, Sample, run_of_restore
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import (
    ETCD,
    NAMESPACE,
    PLANE,
    SERVER,
    WORKER,
    machine,
    plan_of,
    plan_secret,
)

PLAN_A = "plan of Machine fleet-default/a: denied"
STATE = f"write-plan-with-state: {PLAN_A}; state and probe statuses must be reset with it, under a resourceVersion"
BY_DISTRIBUTION = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
RETRY = Patch(
    Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"data": {"plan-state": encoded("pending")}}, "once more"
)


def with_cluster(control_plane: Object | None = None, owner: str = "", **cluster: bool) -> tuple[Object, ...]:
    return objects.cluster(**cluster), control_plane or objects.control_plane(), objects.beacon(owner)


# --- the write --------------------------------------------------------------------------------------------------------


@BY_DISTRIBUTION
@pytest.mark.parametrize(
    "data",
    [
        {"plan-state": encoded("succeeded")},
        {"plan-state": None},
        {"plan-state": "not base64"},
        {"probe-statuses": encoded("{}")},
    ],
)
def test_a_new_plan_resets_the_state_and_the_probes(sample: Sample, data: dict[str, Any]) -> None:
    action = sample.write("a", sample.plan(2, joins=JOINED), **data)
    assert refusal(action, *sample.server("a"), cluster=sample.cluster) == STATE
    correct = sample.new()
    assert refusal(correct, *sample.server("a"), cluster=sample.cluster) == ""
    del correct.patch["data"]["probe-statuses"]
    assert refusal(correct, *sample.server("a"), cluster=sample.cluster) == STATE


@BY_DISTRIBUTION
def test_only_a_patch_under_a_resource_version_writes_a_plan(sample: Sample) -> None:
    new, server = sample.new(), sample.server("a")
    written = {**server[1], "data": {**server[1]["data"], **new.patch["data"]}}
    for action in (
        Patch(new.ref, new.patch, "a plan"),
        Update(PLAN_SECRET, written, "a plan"),
        Apply(PLAN_SECRET, written, "a plan"),
    ):
        assert refusal(action, *server, cluster=sample.cluster) == STATE
    elsewhere = Patch(new.ref, new.patch, "a plan", target="downstream")
    assert refusal(elsewhere, *server, cluster=sample.cluster) == ""
    config_map = Patch(Ref(CONFIG_MAP, new.ref.name, NAMESPACE), new.patch, "a log")
    assert refusal(config_map, *server, cluster=sample.cluster) == ""
    assert refusal(new, cluster=sample.cluster) == "", "the Secret does not exist"
    deleted = Delete(new.ref, "uid", "gone")
    assert refusal(deleted, *server, cluster=sample.cluster) == ""


@pytest.mark.parametrize("metadata", [None, {}, {"annotations": {"a": "b"}}])
def test_a_write_that_starts_no_run_is_allowed(metadata: Any) -> None:
    action = Patch(Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"metadata": metadata or {}}, "a mark")
    deleting = machine("a", deleting=True), plan_secret("a", plan=plan_of())
    busy = (objects.cluster(paused=True), objects.control_plane(), objects.beacon("restore"))
    assert refusal(action, *deleting, cluster=busy) == ""


# --- the beacon, pauses and deletions ---------------------------------------------------------------------------------


@BY_DISTRIBUTION
@pytest.mark.parametrize("action", ["a plan", "the same plan again"])
def test_a_plan_needs_the_beacon(sample: Sample, action: str) -> None:
    again = action == "the same plan again"
    failed = machine("a"), plan_secret("a", plan=sample.plan(), state="failed")
    write_, existing = (RETRY, failed) if again else (sample.new(), sample.server("a"))
    cluster, control_plane, _ = sample.cluster
    guard = f"require-beacon-ownership: {PLAN_A}; "
    owned = (cluster, control_plane, objects.beacon("restore"))
    assert refusal(write_, *existing, cluster=owned) == f"{guard}restore owns the Beacon"
    assert refusal(write_, *existing, cluster=(cluster, control_plane)) == f"{guard}the cluster has no Beacon"
    empty = {**objects.beacon(), "status": None}
    for beacon in (objects.beacon("planner"), objects.beacon(), empty):
        assert refusal(write_, *existing, cluster=(cluster, control_plane, beacon)) == ""
    taken = Patch(Ref(BEACON, objects.NAME, NAMESPACE), {"status": {"owner": "planner"}}, "it is free", "status")
    assert refusal(write_, *existing, cluster=owned, before=[taken]) == ""
    for other in (Patch(Ref(CONFIG_MAP, "x"), {}, "a log"), Delete(Ref(BEACON, "x"), "uid", "gone")):
        assert refusal(write_, *existing, cluster=owned, before=[other]) == f"{guard}restore owns the Beacon"


@BY_DISTRIBUTION
def test_no_plan_reaches_a_paused_or_deleting_machine(sample: Sample) -> None:
    paused = f"deny-plan-while-paused: {PLAN_A}; cluster or Machine is paused"
    new, server = sample.new(), sample.server("a")
    cluster, control_plane, beacon = sample.cluster
    assert refusal(new, *server, cluster=(objects.cluster(paused=True), control_plane, beacon)) == paused
    marked = {**control_plane, "metadata": {**control_plane["metadata"], "annotations": {PAUSED: ""}}}
    assert refusal(new, *server, cluster=(cluster, marked, beacon)) == paused
    own = {**server[0], "metadata": {**server[0]["metadata"], "annotations": {PAUSED: ""}}}
    assert refusal(new, own, server[1], cluster=sample.cluster) == paused
    deleted = f"deny-plan-for-deleting-machine: {PLAN_A}; the Machine is deleted or being deleted"
    assert refusal(new, machine("a", deleting=True), server[1], cluster=sample.cluster) == deleted
    assert refusal(new, server[1], cluster=sample.cluster) == deleted
    unnamed = plan_secret("a", SERVER, plan=sample.plan(), labels={names.MACHINE_NAME: ""})
    assert refusal(new, server[0], unnamed, cluster=sample.cluster) == deleted.replace("default/a", "default/")
    again = machine("a", deleting=True), plan_secret("a", plan=sample.plan(), state="failed")
    assert refusal(RETRY, *again, cluster=sample.cluster) == ""


def test_a_machine_without_a_label_is_named_by_its_secret() -> None:
    secret = plan_secret("a", plan=plan_of())
    del secret["metadata"]["labels"][names.MACHINE_NAME]
    name = secret["metadata"]["name"]
    expected = f"plan of Machine {NAMESPACE}/{name}: denied; the Machine is deleted or being deleted"
    assert refusal(write("a", NEW), secret) == f"deny-plan-for-deleting-machine: {expected}"


# --- operations -------------------------------------------------------------------------------------------------------


def operating(sample: Sample, kind: str, phase: str, leader: str = "b") -> tuple[tuple[Object, ...], str]:
    """A cluster with this operation in progress, and the mark of its tasks."""
    run = operations.Run("run-1", kind, phase, 1, started_at=NOW, leader=leader)
    cluster, control_plane, beacon = sample.cluster
    return (cluster, {**control_plane, "status": {"operation": run.to_status()}}, beacon), run.mark


_AGENT = ServedAgent("1.1.0", "a" * 64)
"""Each task that redeploys an agent names it."""


def task(sample: Sample, *instructions: str, mark: str = "") -> Patch:
    plan = sample.plan(joins=JOINED)
    added = tuple(
        Instruction(name=name, command="sh", env=_AGENT.environment if name == operations.REDEPLOY_AGENT else ())
        for name in instructions
    )
    patch = sample.write("a", msgspec.structs.replace(plan, instructions=(*plan.instructions, *added)))
    patch.patch["metadata"]["annotations"][names.PLAN_TASK] = mark
    return patch


@BY_DISTRIBUTION
@pytest.mark.parametrize("instruction", sorted(operations.TASK_INSTRUCTIONS))
def test_tasks_run_only_in_the_phases_of_their_operation(sample: Sample, instruction: str) -> None:
    server = machine("a"), plan_secret("a", SERVER, plan=sample.plan(joins=JOINED))
    denied = f"require-operation: {PLAN_A}; no operation in progress runs {instruction}"
    restored = {(operations.RESTORE, phase) for phase in ("Restore", "InitialRestartCluster", "Abort")}
    for (kind, phase), permission in operations.PERMISSIONS.items():
        cluster, mark = operating(sample, kind, phase, "a" if phase == "Restore" else "b")
        expected = "" if instruction in permission.instructions else denied
        others: tuple[Object, ...] = (machine("b"),)
        if (kind, phase) in restored and instruction == operations.DROP_DATA:
            cluster, mark = run_of_restore(sample, phase, "b", "b")
            others = sample.server("b", annotations={names.PLAN_TASK: mark})
        assert refusal(task(sample, instruction, mark=mark), *server, *others, cluster=cluster) == expected
        stale = task(sample, instruction, mark="run-1/another/1")
        assert refusal(stale, *server, *others, cluster=cluster) == denied


@BY_DISTRIBUTION
def test_unknown_tasks_are_named_in_order(sample: Sample) -> None:
    server = machine("a"), plan_secret("a", SERVER, plan=sample.plan(joins=JOINED))
    tasks = task(sample, "stop-services", "etcd-snapshot-save")
    names_ = "etcd-snapshot-save, stop-services"
    assert refusal(tasks, *server, cluster=sample.cluster) == (
        f"require-operation: {PLAN_A}; no operation in progress runs {names_}"
    )


# --- the init node and joins ------------------------------------------------------------------------------------------


@BY_DISTRIBUTION
def test_messages_about_a_second_init_node(sample: Sample) -> None:
    second = machine("b"), plan_secret("b")
    guard = "deny-second-init-node: plan of Machine fleet-default/b: denied as init node; "

    def found(*others: Object, own: tuple[Object, ...] = second, **spec: Any) -> str:
        cluster = with_cluster(sample.control_plane(**spec))
        return refusal(mark_init("b"), *own, *others, cluster=cluster)

    assert found(*sample.server("a", init=True)) == f"{guard}a is the init node"
    begun = sample.server("a")
    assert found(*begun) == f"{guard}a may have initialized the cluster; delete its Machine first"
    assert found(machine("a", deleting=True), begun[1]) == ""
    assert found(begun[1]) == ""
    assert found(*sample.server("a", annotations={names.JOINED_TO: JOINED})) == ""
    assert found(*sample.worker("a")) == ""
    assert found(machine("a"), plan_secret("a", (PLANE,), plan=sample.plan())) == ""
    assert found(machine("a"), plan_secret("a")) == ""
    no_member = f"{guard}the cluster is initialized, and this machine is not a member"
    assert found(controlPlaneEndpoint={"host": "10.0.0.9"}) == no_member
    assert found(controlPlaneEndpoint={"host": ""}) == found(controlPlaneEndpoint=None) == found() == ""
    member = machine("a"), plan_secret("a", annotations={names.JOIN_URL: JOINED})
    assert found(*member) == no_member
    joinable = machine("b"), plan_secret("b", annotations={names.JOIN_URL: JOINED})
    assert found(*member, own=joinable, controlPlaneEndpoint={"host": "10.0.0.9"}) == ""
    assert found(*begun, own=joinable) == ""
    again = machine("b"), plan_secret("b", init=True)
    assert found(*sample.server("a", init=True), own=again) == "", "it is one already"


@BY_DISTRIBUTION
@pytest.mark.parametrize(
    "phase", sorted({phase for kind, phase in operations.PERMISSIONS if kind == "etcdSnapshotRestore"})
)
@pytest.mark.parametrize("leader", ["b", "a"])
def test_a_restore_begins_the_cluster_on_its_leader_only(sample: Sample, phase: str, leader: str) -> None:
    cluster, _ = operating(sample, operations.RESTORE, phase, leader)
    begins = phase in ("Restore", "InitialRestartCluster") and leader == "b"
    second = machine("b"), plan_secret("b")
    denied = refusal(mark_init("b"), *second, *sample.server("a"), cluster=cluster)
    assert denied.startswith("" if begins else "deny-second-init-node: ")
    assert bool(denied) is not begins
    alone = sample.write("b", sample.plan(2), joins="")
    message = "plan of Machine fleet-default/b: denied; it joins no server and is not the init node"
    assert refusal(alone, *second, cluster=cluster) == ("" if begins else f"require-join-server: {message}")
    initialized = {**cluster[1], "spec": {**cluster[1]["spec"], "controlPlaneEndpoint": {"host": "10.0.0.9"}}}
    denied = refusal(mark_init("b"), *second, cluster=(cluster[0], initialized, cluster[2]))
    assert bool(denied) is not begins


@BY_DISTRIBUTION
def test_a_server_joins_the_one_in_its_plan(sample: Sample) -> None:
    own = machine("a"), plan_secret("a", plan=sample.plan(joins=JOINED), annotations={names.JOINED_TO: JOINED})
    other = "https://10.0.0.77:6443"
    alone = f"require-join-server: {PLAN_A}; it joins no server and is not the init node"
    wrong = f"require-join-server: {PLAN_A}; it does not join {other}"
    nowhere = sample.write("a", sample.plan(2), joins="")
    assert refusal(nowhere, *own, cluster=sample.cluster) == alone
    unmarked = sample.write("a", sample.plan(2), joins="")
    del unmarked.patch["metadata"]
    assert refusal(unmarked, machine("a"), plan_secret("a"), cluster=sample.cluster) == alone
    init = machine("a"), plan_secret("a", init=True)
    assert refusal(nowhere, *init, cluster=sample.cluster) == ""
    elsewhere = sample.write("a", sample.plan(2, joins=JOINED), joins=other)
    for roles in (SERVER, (ETCD,), (PLANE,)):
        assert refusal(elsewhere, machine("a"), plan_secret("a", roles), cluster=sample.cluster) == wrong
    assert refusal(elsewhere, machine("a"), plan_secret("a", (WORKER,)), cluster=sample.cluster) == ""
    unreadable = sample.write("a", Plan(), joins=other)
    unreadable.patch["data"]["plan"] = encoded("no plan")
    assert refusal(unreadable, machine("a"), plan_secret("a"), cluster=sample.cluster) == wrong
    empty = sample.write("a", Plan(), joins=other)
    assert refusal(empty, machine("a"), plan_secret("a"), cluster=sample.cluster) == "", "it starts nothing"


@pytest.mark.parametrize("url", ["https://Server.Example:6443", "server.example"])
def test_hosts_are_compared_in_lower_case(url: str) -> None:
    plan = write("a", NEW, joins="https://SERVER.example:6443")
    plan.patch["metadata"]["annotations"][names.JOINED_TO] = url
    assert refusal(plan, machine("a"), plan_secret("a")) == ""


# --- versions ---------------------------------------------------------------------------------------------------------


@BY_DISTRIBUTION
def test_messages_about_lower_versions(sample: Sample) -> None:
    server = sample.server("a")

    def found(release: str, *existing: Object) -> str:
        return refusal(sample.write("a", sample.plan(release=release, joins=JOINED)), *existing, cluster=sample.cluster)

    lower = f"deny-downgrade: {PLAN_A}; v1.33.3 is lower than the current v1.33.4"
    assert found("v1.33.3", *server) == lower
    assert found("v1.33.4", *server) == found("v1.33.5", *server) == ""
    applied = plan_secret("a", plan=sample.plan(release="v1.33.2"), data={"appliedPlan": ""})
    applied["data"]["appliedPlan"] = encoded(sample.plan().to_json())
    assert found("v1.33.3", machine("a"), applied) == lower
    reported = machine("a", nodeInfo={"kubeletVersion": sample.version_of("v1.33.6")})
    assert found("v1.33.5", reported, server[1]) == lower.replace("33.3", "33.5").replace("33.4", "33.6")
    assert found("v1.33.6", reported, server[1]) == ""
    data = {"plan-revision": "1", "local-plan-revision": "2", "local-applied-checksum": "abc"}
    newer = plan_secret("a", plan=sample.plan(), data=data)
    unknown = (
        f"deny-downgrade: {PLAN_A}; the machine has applied a newer plan, and the version of its Node is not known yet"
    )
    assert found("v1.33.5", machine("a"), newer) == unknown
    assert found("v1.33.6", reported, newer) == ""


@BY_DISTRIBUTION
def test_messages_about_skipped_versions(sample: Sample) -> None:
    server, version = sample.server("a"), sample.version_of("v1.36.3")
    hint = f"to skip them anyway, set annotation {names.ALLOW_VERSION_SKIP} to"

    def found(release: str, *existing: Object, **control_plane: Any) -> str:
        plane = objects.control_plane(**{"kubernetesVersion": version, **control_plane})
        plan = sample.write("a", sample.plan(release=release, joins=JOINED))
        return refusal(plan, *existing, cluster=with_cluster(plane))

    first = "upgrade to v1.34, v1.35 first, one at a time"
    message = (
        f"deny-minor-version-skip: {PLAN_A}; {version} skips minor versions after v1.33.4: {first}; {hint} {version}"
    )
    assert found("v1.36.3", *server) == message
    other = message.replace(version, "v1.36.4")
    assert found("v1.36.4", *server) == other, "the spec has another version"
    assert found("v1.36.3", *server, annotations={names.ALLOW_VERSION_SKIP: version}) == ""
    assert found("v1.34.9", *server) == ""
    for roles, denied in (((ETCD,), True), ((PLANE,), True), ((WORKER,), False)):
        existing = machine("a"), plan_secret("a", roles, plan=sample.plan(joins=JOINED))
        assert bool(found("v1.36.3", *existing)) is denied
    never = machine("a"), plan_secret("a")
    assert found("v1.36.3", *never) == ""
    older = machine("a", nodeInfo={"kubeletVersion": sample.version_of("v1.32.1")})
    assert "after v1.32.1: upgrade to v1.33 first" in found("v1.34.1", older, server[1])


@BY_DISTRIBUTION
@pytest.mark.parametrize(
    ("phase", "request_", "wanted", "allowed"),
    [
        ("Restore", {"generation": 1, "restoreRKEConfig": "all"}, "v1.30.1", True),
        ("Restore", {"generation": 1, "restoreRKEConfig": "all"}, "v1.39.1", True),
        ("Restore", {"generation": 1, "restoreRKEConfig": "none"}, "v1.30.1", False),
        ("Restore", {"generation": 1, "restoreRKEConfig": "none"}, "v1.39.1", False),
        ("Restore", None, "v1.30.1", False),
        ("Shutdown", {"generation": 1, "restoreRKEConfig": "all"}, "v1.30.1", False),
        ("Shutdown", {"generation": 1, "restoreRKEConfig": "all"}, "v1.39.1", False),
        ("InitialRestartCluster", {"generation": 1, "restoreRKEConfig": "kubernetesVersion"}, "v1.30.1", True),
    ],
)
def test_a_restore_may_change_the_version_to_that_of_the_spec(
    sample: Sample, phase: str, request_: Any, wanted: str, allowed: bool
) -> None:
    (cluster, _, beacon), mark = operating(sample, operations.RESTORE, phase)
    run = operations.Run("run-1", operations.RESTORE, phase, 1, started_at=NOW, leader="b")
    status = {"operation": run.to_status(), operations.RESTORE: request_}

    def found(spec_version: str) -> str:
        plane = objects.control_plane(status, kubernetesVersion=sample.version_of(spec_version))
        plan = sample.write("a", sample.plan(release=wanted, joins=JOINED))
        plan.patch["metadata"]["annotations"][names.PLAN_TASK] = mark
        return refusal(plan, *sample.server("a"), machine("b"), cluster=(cluster, plane, beacon))

    guard = "deny-downgrade" if wanted == "v1.30.1" else "deny-minor-version-skip"
    assert found(wanted).partition(":")[0] == ("" if allowed else guard)
    assert found("v1.33.9").partition(":")[0] == guard, "the spec has another version"


# --- disruption -------------------------------------------------------------------------------------------------------


@BY_DISTRIBUTION
def test_messages_about_lost_quorum(sample: Sample) -> None:
    guard = f"keep-etcd-quorum-on-disruption: {PLAN_A}; "
    three = *sample.server("a"), *sample.server("b"), *sample.server("c", unhealthy=True)
    assert (
        refusal(sample.new(), *three, cluster=sample.cluster)
        == f"{guard}1 of 3 etcd members would remain, quorum needs 2"
    )
    two = *sample.server("a"), *sample.server("b", unhealthy=True)
    assert (
        refusal(sample.new(), *two, cluster=sample.cluster)
        == f"{guard}0 of 2 etcd members would remain, quorum needs 2"
    )
    five = *three, *sample.server("d"), *sample.server("e")
    assert refusal(sample.new(), *five, cluster=sample.cluster) == ""


LOST = {"conditions": [{"type": "NodeReady", "status": "Unknown", "reason": "NodeReadyUnknown"}]}


@pytest.mark.parametrize(
    ("other", "denied"),
    [
        ((machine("c"), plan_secret("c", plan=plan_of())), False),
        ((machine("c", **LOST), plan_secret("c", plan=plan_of())), True),
        ((machine("c"), plan_secret("c", plan=plan_of(), annotations={names.DRAIN_OPTIONS: "{}"})), True),
        ((machine("c"), plan_secret("c", plan=plan_of(), annotations={names.PRE_DRAIN: "{}"})), True),
        ((machine("c"), plan_secret("c", plan=plan_of(), annotations={names.POST_DRAIN: "{}"})), True),
        ((machine("c"), plan_secret("c", plan=plan_of(), annotations={names.UNCORDON: "{}"})), True),
        ((machine("c"), plan_secret("c", annotations={names.JOIN_URL: JOINED})), False),
        ((machine("c"), plan_secret("c", unhealthy=True, annotations={names.JOIN_URL: JOINED})), True),
        ((machine("c"), plan_secret("c", (PLANE,), plan=plan_of(), unhealthy=True)), False),
        ((machine("c"), plan_secret("c", (WORKER,), plan=plan_of(), unhealthy=True)), False),
        ((plan_secret("c", plan=plan_of(), unhealthy=True),), False),
        ((machine("c", deleting=True), plan_secret("c", plan=plan_of())), False),
        ((machine("c", deleting=True), plan_secret("c", plan=plan_of(), state="in-progress")), False),
    ],
)
def test_which_members_count_as_serving(other: tuple[Object, ...], denied: bool) -> None:
    found = refusal(write("a", NEW), *members("w", "w"), *other)
    assert found.startswith("keep-etcd-quorum-on-disruption: " if denied else "")
    assert bool(found) is denied


def test_a_broken_member_is_repaired_unless_another_is_disrupted() -> None:
    broken, lost = members("d", "w", "w"), (machine("c", **LOST), plan_secret("c", plan=plan_of()))
    assert refusal(write("a", NEW), *broken[:4], *lost) == ""
    drained = machine("c"), plan_secret("c", plan=plan_of(), annotations={names.DRAIN_OPTIONS: "{}"})
    assert refusal(write("a", NEW), *broken[:4], *drained).startswith("keep-etcd-quorum-on-disruption: ")


@pytest.mark.parametrize(
    ("seconds", "passed", "denied"), [(0, "", True), (299, "", True), (300, "", False), (10, "true", False)]
)
def test_a_deleting_member_counts_while_it_starts(seconds: int, passed: str, denied: bool) -> None:
    at = (NOW - timedelta(seconds=seconds)).isoformat()
    marks = {names.PLAN_UPDATED: at, names.PROBES_PASSED: passed}
    starting = plan_secret("c", plan=plan_of(), unhealthy=True, annotations=marks)
    existing = (*members("w", "w"), machine("c", deleting=True), starting)
    assert bool(refusal(write("a", NEW), *existing)) is denied


@pytest.mark.parametrize("phase", ["Shutdown", "Restore", "InitialRestartCluster", "Abort", "Snapshot"])
def test_only_a_restore_stops_all_members_and_machines(phase: str) -> None:
    run = operations.Run("run-1", operations.RESTORE, phase, 1, started_at=NOW)
    cluster = with_cluster(objects.control_plane({"operation": run.to_status()}))
    plan = write("a", NEW)
    plan.patch["metadata"]["annotations"][names.PLAN_TASK] = run.mark
    denied = phase == "Snapshot"
    assert bool(refusal(plan, *members("w", "d", "d"), cluster=cluster)) is denied
    assert bool(refusal(plan, *workers("w", "d"), cluster=cluster)) is denied
