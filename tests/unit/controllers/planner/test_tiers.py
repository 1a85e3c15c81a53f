"""A tier is brought to its plans: who may be disturbed, in which order, and what is said meanwhile."""

from __future__ import annotations

import base64
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan import DELETE, File, Plan, checksum, file
from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, MachineInputs
from herder.controllers.planner.drain.request import encode_options
from herder.controllers.planner.plan.render import MAX_PLAN_BYTES, Desired, PlanRecord, Request
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.tier import RolloutContext, Tier, TierProgress, roll_out
from tests.support.views import NOW
from tests.unit.controllers.planner.objects import ALL, SERVER, WORKER, entry, plan_of

OLD, NEW = plan_of(stamp="1"), plan_of(stamp="2")


class Fixed:
    """A distribution whose plan is what a test says."""

    name = "fixed"
    revision = 1

    def __init__(self, plan: Plan, unplannable: Collection[str] = ()) -> None:
        self.plan = plan
        self.unplannable = unplannable

    def render(self, _cluster: ClusterInputs, machine: MachineInputs) -> Plan:
        if machine.name in self.unplannable:
            raise ConfigError(f"machine {machine.name}: has no address")
        return self.plan

    def owns_file(self, _cluster: ClusterInputs, path: str) -> bool:
        return path.startswith("/ours")

    def drain_hash(self, plan: Plan) -> str:
        return plan.instructions[0].env[1] if plan.instructions else ""


def brought(
    *entries: PlanEntry,
    wanted: Plan = NEW,
    concurrency: str = "1",
    drain: dict[str, Any] | None = None,
    connected: bool = True,
    machines: int = 5,
    up_to_date: int = 0,
    unplannable: Collection[str] = (),
    name: str = "worker",
) -> TierProgress:
    distribution: Any = Fixed(wanted, unplannable)
    spec = {"plan": wanted.to_json().decode(), "unplannable": [*unplannable]}
    cluster = ClusterInputs("fleet-default", "demo", "", "v1.33.4+k3s1", spec)

    def desired(of: PlanEntry) -> Desired:
        inputs = MachineInputs(of.name, of.uid, of.roles, join_url="https://10.0.0.1:6443")
        return Desired(of, Request.of(distribution, cluster, inputs))

    tier = Tier(name, entries, entries, concurrency, drain or {}, up_to_date=up_to_date)
    return roll_out(tier, RolloutContext(desired, "v1.33.4+k3s1", connected, machines, NOW))


def written(progress: TierProgress) -> list[str]:
    """Whose plan is written."""
    plans = [write for write in progress.writes if "data" in write.patch and "plan" in write.patch["data"]]
    return [write.ref.name.removesuffix("-machine-plan") for write in plans]


def worker(name: str, plan: Plan | None = OLD, **changes: Any) -> PlanEntry:
    return entry(name, (WORKER,), plan=plan, address=f"10.0.0.{ord(name)}", **changes)


# --- first plans and small changes ----------------------------------------------------------------------------------


def test_first_plans_are_not_limited() -> None:
    progress = brought(worker("a", None), worker("b", None), worker("c", None))
    assert written(progress) == ["a", "b", "c"]
    assert progress.waiting("worker") == "configuring worker node(s) a,b,c"


def test_a_plan_is_written_whole() -> None:
    (write,) = brought(worker("a", None)).writes
    assert write.ref.kind == PLAN_SECRET
    assert write.resource_version
    assert set(write.patch["data"]) == {
        "plan", "plan-state", "max-failures", "failure-threshold", "applied-checksum", "probe-statuses",
    }  # fmt: skip
    assert write.patch["data"]["probe-statuses"] is None
    assert write.patch["data"]["applied-checksum"] is None
    marks = write.patch["metadata"]["annotations"]
    assert marks[names.JOINED_TO] == "https://10.0.0.1:6443"
    assert marks[names.PROBES_PASSED] == ""
    assert marks[names.PLAN_UPDATED] == "2026-01-01T12:00:00Z"


def test_what_disturbs_nothing_waits_for_no_turn() -> None:
    minor = plan_of(stamp="1", minor="another")
    drain = {"enabled": True}
    assert written(brought(worker("a"), worker("b"), wanted=minor, drain=drain)) == ["a", "b"]


def test_a_plan_that_is_there_is_not_written_again() -> None:
    assert brought(worker("a"), wanted=OLD).writes == []


# --- one that nothing can be planned for ----------------------------------------------------------------------------


@pytest.mark.parametrize("first", [None, OLD], ids=["first plan", "another plan"])
def test_a_worker_that_nothing_can_be_planned_for_keeps_no_other_from_its_plan(first: Plan | None) -> None:
    """Registered with labels, or without an address, that its distribution can make nothing of."""
    progress = brought(worker("a", first), worker("b", first), unplannable=["a"])
    assert written(progress) == ["b"]
    assert progress.ignored("worker") == "failing worker machine(s) a: machine a: has no address"
    assert not progress.error


def test_what_is_wrong_for_all_workers_is_an_error_of_the_cluster() -> None:
    progress = brought(worker("a"), worker("b"), unplannable=["a", "b"])
    assert progress.error == "machine a: has no address"


def test_no_server_is_planned_before_one_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="machine a"):
        brought(worker("a"), worker("b"), unplannable=["a"], name="etcd")


# --- as many at a time as may be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("concurrency", "whose"),
    [("1", ["a"]), ("2", ["a", "b"]), ("0", ["a", "b", "c"]), ("34%", ["a", "b"]), ("1%", ["a"]), ("", ["a"])],
)
def test_as_many_change_as_the_strategy_allows(concurrency: str, whose: list[str]) -> None:
    assert written(brought(worker("a"), worker("b"), worker("c"), concurrency=concurrency)) == whose


def test_a_share_is_one_of_all_machines_those_at_rest_among_them() -> None:
    assert written(brought(worker("a"), worker("b"), worker("c"), concurrency="20%", up_to_date=7)) == ["a", "b"]


def test_a_concurrency_that_is_no_number_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r'"some" is not a valid concurrency; use a number or a percentage such as "10%"'
    ):
        brought(worker("a"), concurrency="some")


@pytest.mark.parametrize(
    ("other", "whose"),
    [
        (worker("a", NEW, state="in-progress", data={"appliedPlan": "{}"}), []),
        (worker("a", NEW, unhealthy=True), []),
        (worker("a", OLD, marks={names.UNCORDON: "{}"}), ["a"]),
        (worker("a", OLD, state="failed"), ["a"]),
        (worker("a", OLD, unhealthy=True), ["a"]),
        (worker("a", OLD, unhealthy=True, marks={names.PROBES_PASSED: "x"}), ["a"]),
        (worker("a", NEW), ["b"]),
        (worker("a", None), ["a", "b"]),
        (worker("a", NEW, state="pending"), ["b"]),
    ],
    ids=[
        "runs its plan",
        "is not well",
        "is being drained, and goes on",
        "failed, and may be helped",
        "never came up, and may be helped",
        "was well once: it takes the turn",
        "is done",
        "is new, which counts for nothing",
        "has its first plan, and is missed by nobody",
    ],
)
def test_b_waits_while_a(other: PlanEntry, whose: list[str]) -> None:
    assert written(brought(other, worker("b"))) == whose


def test_those_that_are_broken_are_helped_first() -> None:
    assert written(brought(worker("a"), worker("b"), worker("c", unhealthy=True))) == ["c"]
    moving = worker("b", NEW, state="in-progress", data={"appliedPlan": "{}"})
    assert written(brought(worker("a", unhealthy=True), moving)) == []


# --- drains ---------------------------------------------------------------------------------------------------------

DRAIN = {"enabled": True, "timeout": 60}
ASKED = encode_options(DRAIN, is_only_machine=False)


def test_a_node_is_drained_before_a_plan_that_disturbs_it() -> None:
    progress = brought(worker("a"), drain=DRAIN)
    assert written(progress) == []
    assert progress.writes[0].patch == {"metadata": {"annotations": {names.DRAIN_OPTIONS: ASKED}}}
    assert progress.waiting("worker") == "draining worker node(s) a: draining node"
    assert ASKED == '{"enabled":true,"timeout":60}'


def test_it_is_written_when_the_drain_is_done() -> None:
    drained = {names.DRAIN_OPTIONS: ASKED, names.DRAIN_DONE: ASKED}
    progress = brought(worker("a", marks=drained), drain=DRAIN)
    assert written(progress) == ["a"]
    assert progress.waiting("worker") == "configuring worker node(s) a: drain completed"


def test_an_error_of_the_drain_is_told_unless_it_is_an_ordinary_one() -> None:
    marks = {names.DRAIN_OPTIONS: ASKED, names.DRAIN_ERROR: "budget says no"}
    told = brought(worker("a", marks=marks), drain=DRAIN).waiting("worker")
    assert told == "draining worker node(s) a: error draining machine a: budget says no"
    marks[names.DRAIN_ERROR] = "error trying to reach service: x"
    assert brought(worker("a", marks=marks), drain=DRAIN).waiting("worker").endswith(": draining node")


@pytest.mark.parametrize(
    ("of", "wanted", "drain", "machines"),
    [
        (worker("a"), plan_of("v1.33.5", stamp="1"), DRAIN, 5),
        (worker("a"), NEW, {"enabled": False}, 5),
        (worker("a"), NEW, DRAIN, 1),
        (entry("a", (WORKER,), plan=OLD), NEW, DRAIN, 5),
    ],
    ids=["nothing that it runs changes", "not wished for", "the only machine", "no node"],
)
def test_there_is_no_drain_where(of: PlanEntry, wanted: Plan, drain: dict[str, Any], machines: int) -> None:
    assert written(brought(of, wanted=wanted, drain=drain, machines=machines)) == ["a"]


def test_the_hooks_of_a_cluster_s_only_machine_are_waited_for_without_a_drain() -> None:
    options = {"enabled": True, "preDrainHooks": [{"annotation": "h"}]}
    (write,) = brought(worker("a"), drain=options, machines=1).writes
    asked = write.patch["metadata"]["annotations"][names.DRAIN_OPTIONS]
    assert asked == '{"enabled":false,"preDrainHooks":[{"annotation":"h"}]}'


def test_when_the_plan_has_worked_the_drain_ends() -> None:
    drained = {names.DRAIN_OPTIONS: ASKED, names.DRAIN_DONE: ASKED}
    progress = brought(worker("a", NEW, marks=drained), drain=DRAIN)
    assert progress.writes[0].patch == {"metadata": {"annotations": {names.UNCORDON: ASKED}}}
    told = "uncordoning worker node(s) a: waiting for uncordon to finish"
    assert progress.waiting("worker") == told
    asked = brought(worker("a", NEW, marks=drained | {names.UNCORDON: ASKED}), drain=DRAIN)
    assert (asked.writes, asked.waiting("worker")) == ([], told)


# --- what is said ---------------------------------------------------------------------------------------------------

WRITTEN = {names.PLAN_UPDATED: (NOW - timedelta(minutes=4)).isoformat()}
LONG_AGO = {names.PLAN_UPDATED: (NOW - timedelta(hours=1)).isoformat()}


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (worker("a", NEW, state="pending", marks=WRITTEN), "waiting for agent to check in and apply initial plan"),
        (
            worker("a", NEW, state="pending", marks=LONG_AGO),
            "waiting for agent to check in and apply initial plan (no report from its agent for 5 minutes; check "
            "that rancher-system-agent.service is running and reaches this server)",
        ),
        (worker("a", NEW, unhealthy=True), "waiting for probes: kubelet"),
        (
            worker("a", NEW, unhealthy=True, data={"probe-errors": '{"kubelet":"connection refused"}'}),
            "waiting for probes: kubelet (kubelet: connection refused)",
        ),
        (worker("a", NEW, state="failed"), "failure while applying plan"),
        (
            worker("a", NEW, state="in-progress", data={"appliedPlan": "{}"}, marks=WRITTEN),
            "waiting for plan to be applied",
        ),
        (
            worker("a", NEW, state="in-progress", data={"appliedPlan": "{}"}, marks=LONG_AGO),
            "waiting for plan to be applied (plan in progress for more than 30 minutes; see the log of "
            "rancher-system-agent.service)",
        ),
    ],
)
def test_what_is_still_to_happen_is_said(of: PlanEntry, told: str) -> None:
    assert brought(of).waiting("worker") == f"configuring worker node(s) a: {told}"


def test_a_node_that_runs_another_version_is_waited_for() -> None:
    old = worker("a", NEW)
    old.machine["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.3+k3s1"
    assert brought(old).waiting("worker") == "configuring worker node(s) a: waiting for kubelet to update"
    assert brought(old, connected=False).waiting("worker") == ""


def test_a_control_plane_is_done_when_the_cluster_s_agent_is_connected() -> None:
    plane = entry("a", SERVER, plan=NEW, address="10.0.0.1")
    told = "configuring worker node(s) a: waiting for cluster agent to connect"
    assert brought(plane, connected=False).waiting("worker") == told
    assert brought(plane).ready == [plane]


def test_at_most_three_machines_are_named() -> None:
    assert brought(*(worker(name, None) for name in "edcba")).waiting("worker") == (
        "configuring worker node(s) a,b,c and 2 more"
    )


def test_machines_that_failed_or_are_not_there_yet_are_told_and_hold_up_nobody() -> None:
    failed = worker("a", NEW, status={"phase": "Failed"})
    progress = brought(failed, worker("b", NEW))
    assert progress.waiting("worker") == ""
    assert progress.ignored("worker") == "failing worker machine(s) a: the machine has failed"


def test_a_machine_that_its_owner_paused_keeps_its_plan() -> None:
    paused = worker("a")
    paused.machine["metadata"]["annotations"] = {"cluster.x-k8s.io/paused": ""}
    progress = brought(paused)
    assert progress.writes == []
    assert progress.waiting("worker").endswith("Machine is paused; its plan does not change until it is resumed")


# --- files that no plan names any more ------------------------------------------------------------------------------


def with_files(plan: Plan, *paths: str) -> Plan:
    return replace(plan, files=(*plan.files, *(file(path, "x") for path in paths)))


def delivered(progress: TierProgress) -> tuple[dict[str, str], str]:
    """The files of the one plan that is written with what becomes of them, and the checksum that it is known by."""
    (write,) = progress.writes
    raw = base64.b64decode(write.patch["data"]["plan"])
    mark = write.patch["metadata"]["annotations"][names.PLAN_INPUTS]
    assert mark.endswith(checksum(raw))
    return {each.path: each.action for each in Plan.from_json(raw).files}, mark


def test_what_plans_brought_and_name_no_more_goes_but_nothing_that_may_be_others() -> None:
    before = with_files(OLD, "/ours/gone", "/ours/kept", "/etc/motd")
    files, _ = delivered(brought(worker("a", before), wanted=with_files(NEW, "/ours/kept")))
    assert files == {"/minor": "", "/ours/kept": "", "/ours/gone": "delete"}


def test_it_goes_once() -> None:
    before, wanted = with_files(OLD, "/ours/gone"), NEW
    (write,) = brought(worker("a", before), wanted=wanted).writes
    there = Plan.from_json(base64.b64decode(write.patch["data"]["plan"]))
    marks = {names.PLAN_INPUTS: write.patch["metadata"]["annotations"][names.PLAN_INPUTS]}
    assert brought(worker("a", there, marks=marks), wanted=wanted).writes == []
    files, _ = delivered(brought(worker("a", there, marks=marks), wanted=with_files(plan_of(stamp="3"), "/ours/new")))
    assert files == {"/minor": "", "/ours/new": ""}


def test_what_a_plan_that_has_not_worked_was_to_take_away_goes_with_the_next() -> None:
    failed = replace(OLD, files=(*OLD.files, File(path="/ours/gone", action=DELETE)))
    files, _ = delivered(brought(worker("a", failed, state="failed")))
    assert files["/ours/gone"] == "delete"


# --- rendering ------------------------------------------------------------------------------------------------------


def test_a_plan_is_rendered_only_where_its_inputs_changed() -> None:
    class Counting(Fixed):
        renders = 0

        def render(self, cluster: ClusterInputs, machine: MachineInputs) -> Plan:
            Counting.renders += 1
            return super().render(cluster, machine)

    distribution: Any = Counting(OLD)
    cluster = ClusterInputs("fleet-default", "counted", "", "v1.33.4+k3s1", {})
    inputs = MachineInputs("a", "uid-a", entry("a", ALL).roles)
    request = Request.of(distribution, cluster, inputs)
    known = worker("a", marks={names.PLAN_INPUTS: str(PlanRecord(*request.digests, "sum"))})
    assert not Desired(known, request).differs
    assert Counting.renders == 0
    other = worker("a", marks={names.PLAN_INPUTS: "other sum"})
    assert all(Desired(other, request).differs for _ in range(3))
    assert Counting.renders == 1


def test_the_same_plan_of_other_inputs_is_marked_and_not_written() -> None:
    others = str(PlanRecord("other", "inputs", checksum(NEW.to_json())))
    progress = brought(worker("a", NEW, marks={names.PLAN_INPUTS: others}))
    assert progress.writes == []
    (mark,) = progress.records
    assert mark.patch.keys() == {"metadata"}
    again = brought(worker("a", NEW, marks=mark.patch["metadata"]["annotations"]))
    assert (again.writes, again.records) == ([], [])
    assert [entry.name for entry in again.ready] == ["a"]


def test_a_plan_that_no_secret_can_hold_is_told() -> None:
    huge = plan_of(minor="x" * MAX_PLAN_BYTES)
    error = brought(worker("a", None), wanted=huge).error
    assert "plan of machine a: " in error
    assert "largest file: /minor" in error
