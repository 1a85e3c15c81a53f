"""Decisions and messages of the guards of restores, for the plans of every distribution."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from herder.api.rke import names, operations
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan_secret import encoded
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch, Ref
from tests.unit.api.guards.refusals import refusal
from tests.unit.api.test_guards_by_distribution import JOINED, SAMPLES, Sample, run_of_restore, with_task
from tests.unit.controllers.planner.objects import ETCD, PLANE, SERVER, WORKER, machine, plan_secret

BY_DISTRIBUTION = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
STOP, RESTORE, DROP = operations.STOP_SERVICES, operations.RESTORE_SNAPSHOT, operations.DROP_DATA
PLAN_A = "plan of Machine fleet-default/a: denied"
STOPPED = "run-1/Shutdown/1"
NOT_RESTORED = (
    f"require-restored-server: {PLAN_A}; it would drop its data, and no other machine remains that has restored a "
    "snapshot"
)


def member(sample: Sample, name: str, mark: str, *instructions: str, **more: Any) -> Object:
    """The plan Secret of a server, whose last task has this mark."""
    annotations = {names.PLAN_TASK: mark, **more.pop("annotations", {})}
    return plan_secret(name, SERVER, plan=with_task(sample, *instructions), annotations=annotations, **more)


def not_stopped(*machines: str) -> str:
    stopped = f"the operation has not stopped {', '.join(machines)}, which would serve the old data"
    return f"require-fenced-servers: {PLAN_A}; {stopped}"


def restoring(sample: Sample, *others: Object, leader: str = "a") -> str:
    """The refusal of the task that restores on machine `a`."""
    cluster, mark = run_of_restore(sample, "Restore", leader)
    server = machine("a"), member(sample, "a", STOPPED, STOP)
    return refusal(sample.task("a", RESTORE, mark=mark), *server, *others, cluster=cluster)


@BY_DISTRIBUTION
def test_only_the_leader_restores(sample: Sample) -> None:
    assert restoring(sample) == ""
    denied = f"require-fenced-servers: {PLAN_A}; another machine restores the snapshot"
    assert restoring(sample, leader="b") == restoring(sample, leader="") == denied


@BY_DISTRIBUTION
@pytest.mark.parametrize(
    ("mark", "instructions", "more", "allowed"),
    [
        (STOPPED, [STOP], {}, True),
        ("run-1/Shutdown/2", [STOP], {}, True),
        (STOPPED, [STOP], {"unhealthy": True}, True),  # its probes fail: it is stopped
        (STOPPED, [STOP], {"state": "in-progress", "data": {"appliedPlan": "{}"}}, False),
        (STOPPED, [STOP], {"state": "pending", "data": {"appliedPlan": "{}"}}, False),
        (STOPPED, [STOP], {"state": "failed", "data": {"appliedPlan": "{}"}}, False),
        (STOPPED, [], {}, False),
        (STOPPED, [operations.SAVE_SNAPSHOT], {}, False),
        ("run-0/Shutdown/1", [STOP], {}, False),
        ("run-1/Abort/1", [STOP], {}, False),
        ("run-1/Snapshot/1", [operations.SAVE_SNAPSHOT], {}, False),
        ("", [], {}, False),
    ],
)
def test_a_snapshot_is_restored_when_the_operation_has_stopped_all_members(
    sample: Sample, mark: str, instructions: list[str], more: dict[str, Any], allowed: bool
) -> None:
    other = member(sample, "b", mark, *instructions, **more)
    assert restoring(sample, machine("b"), other) == ("" if allowed else not_stopped("b"))
    stopped = member(sample, "c", STOPPED, STOP)
    found = restoring(sample, machine("b"), other, machine("c"), stopped)
    assert found == ("" if allowed else not_stopped("b"))


@BY_DISTRIBUTION
def test_machines_that_serve_no_data_need_not_be_stopped(sample: Sample) -> None:
    running = member(sample, "b", "")
    assert restoring(sample, running) == restoring(sample, machine("b", deleting=True), running) == ""
    for roles in ((WORKER,), (PLANE,)):
        assert restoring(sample, machine("b"), plan_secret("b", roles, plan=sample.plan())) == ""
    assert restoring(sample, machine("b"), plan_secret("b")) == "", "it has not joined"
    etcd = plan_secret("b", (ETCD,), plan=sample.plan())
    assert restoring(sample, machine("b"), etcd) == not_stopped("b")
    joinable = plan_secret("b", annotations={names.JOIN_URL: JOINED})
    assert restoring(sample, machine("b"), joinable) == not_stopped("b")
    other = plan_secret("b", SERVER, plan=sample.plan(), labels={names.CLUSTER_NAME: "other"})
    assert restoring(sample, machine("b"), other) == ""
    both = machine("c"), member(sample, "c", ""), machine("b"), running
    assert restoring(sample, *both) == not_stopped("b", "c")


@BY_DISTRIBUTION
def test_a_member_that_starts_in_the_same_decision_is_not_stopped(sample: Sample) -> None:
    cluster, mark = run_of_restore(sample, "Restore", "a")
    server = machine("a"), member(sample, "a", STOPPED, STOP)
    other = machine("b"), member(sample, "b", STOPPED, STOP)
    restore = sample.task("a", RESTORE, mark=mark)
    assert refusal(restore, *server, *other, cluster=cluster) == ""
    started = refusal(restore, *server, *other, cluster=cluster, before=[sample.new("b")])
    assert started == not_stopped("b")


def test_a_write_that_starts_no_run_needs_no_fence() -> None:
    sample = SAMPLES["k3s"]
    cluster, mark = run_of_restore(sample, "Restore", "b")
    server = machine("a"), member(sample, "a", mark, RESTORE, DROP)
    note = Patch(Ref(PLAN_SECRET, names.plan_secret("a"), "fleet-default"), {"metadata": {}}, "a mark")
    assert refusal(note, *server, machine("b"), member(sample, "b", ""), cluster=cluster) == ""
    again = {"data": {"plan-state": encoded("pending"), "probe-statuses": None}}
    failed = machine("a"), member(sample, "a", mark, RESTORE, state="failed")
    repeated = Patch(note.ref, again, "once more", "", "1")
    assert refusal(repeated, *failed, cluster=cluster).startswith("require-fenced-servers:")


# --- dropped data -----------------------------------------------------------------------------------------------------


def dropping(
    sample: Sample, *others: Object, phase: str = "InitialRestartCluster", leader: str = "b", earlier: str = ""
) -> str:
    """The refusal of the task that drops the data of machine `a`. `earlier`: the leader of an unfinished restore."""
    cluster, mark = run_of_restore(sample, phase, leader, earlier)
    server = machine("a"), member(sample, "a", STOPPED, STOP)
    return refusal(sample.task("a", DROP, mark=mark), *server, *others, cluster=cluster)


@BY_DISTRIBUTION
@pytest.mark.parametrize(
    ("mark", "more", "allowed"),
    [
        ("run-1/Restore/1", {}, True),
        ("run-1/InitialRestartCluster/1", {}, True),
        ("run-1/InitialRestartCluster/3", {"unhealthy": True}, True),
        ("run-1/Restore/1", {"state": "in-progress"}, False),
        ("run-1/Restore/1", {"state": "failed"}, False),
        ("run-1/InitialRestartCluster/1", {"state": "pending"}, False),
        ("run-0/Restore/1", {}, False),
        ("run-1/Shutdown/1", {}, False),
        ("run-1/Abort/1", {}, False),
        ("", {}, False),
    ],
)
def test_data_is_dropped_when_the_leader_has_restored_the_snapshot(
    sample: Sample, mark: str, more: dict[str, Any], allowed: bool
) -> None:
    leader = member(sample, "b", mark, **more)
    assert dropping(sample, machine("b"), leader) == ("" if allowed else NOT_RESTORED)
    assert dropping(sample, leader) == NOT_RESTORED, "its Machine is deleted"
    assert dropping(sample, machine("b", deleting=True), leader) == NOT_RESTORED
    assert dropping(sample, machine("b"), leader, leader="c") == NOT_RESTORED
    assert dropping(sample, machine("b"), leader, leader="") == NOT_RESTORED
    assert dropping(sample, machine("b"), leader, leader="a") == NOT_RESTORED


@BY_DISTRIBUTION
@pytest.mark.parametrize(
    ("earlier", "mark", "more", "allowed"),
    [
        ("b", "run-1/Abort/1", {}, True),
        ("b", "run-1/Abort/1", {"state": "pending"}, False),
        ("b", "run-1/Restore/1", {}, False),
        ("b", "run-0/InitialRestartCluster/1", {}, False),
        ("c", "run-1/Abort/1", {}, False),
        ("", "run-1/Abort/1", {}, False),
    ],
)
def test_an_aborted_restore_drops_data_only_for_the_leader_of_an_earlier_one(
    sample: Sample, earlier: str, mark: str, more: dict[str, Any], allowed: bool
) -> None:
    """Also if the aborted one would have restored on this machine."""
    started = machine("b"), member(sample, "b", mark, operations.START_SERVICES, **more)
    for leader in ("a", "b"):
        found = dropping(sample, *started, phase="Abort", leader=leader, earlier=earlier)
        assert found == ("" if allowed else NOT_RESTORED)


def test_without_an_operation_nothing_is_dropped() -> None:
    sample = SAMPLES["k3s"]
    leader = machine("b"), member(sample, "b", "run-1/Restore/1")
    found = dropping(sample, *leader, phase="Finished")
    assert found == f"require-operation: {PLAN_A}; no operation in progress runs {DROP}"


# --- former init nodes ------------------------------------------------------------------------------------------------


@BY_DISTRIBUTION
@pytest.mark.parametrize(
    ("phase", "instruction", "installs", "allowed"),
    [
        ("Shutdown", STOP, False, True),
        ("Started", operations.CHECK_SNAPSHOT, False, True),
        ("Shutdown", STOP, True, False),
        ("Abort", operations.START_SERVICES, False, False),
    ],
)
def test_a_former_init_node_that_has_not_joined_again_can_be_stopped(
    sample: Sample, phase: str, instruction: str, installs: bool, allowed: bool
) -> None:
    """The restored server is the init node now, and the restore has failed before this one joined it."""
    cluster, mark = run_of_restore(sample, phase)
    plan = with_task(sample, instruction)
    if not installs:
        plan = msgspec.structs.replace(plan, instructions=tuple(each for each in plan.instructions[-1:]))
    patch = sample.write("a", plan, joins="")
    patch.patch["metadata"]["annotations"][names.PLAN_TASK] = mark
    stopped = machine("a"), member(sample, "a", "run-0/RestartCluster/1")
    found = refusal(patch, *stopped, cluster=cluster)
    denied = f"require-join-server: {PLAN_A}; it joins no server and is not the init node"
    assert found == ("" if allowed else denied)
