"""Rollout of a tier: which machines may be disturbed, in which order, and which progress is reported."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.node.plan import AGENT_STATUS, DELETE, File, PeriodicInstruction, Plan, checksum, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.drain.request import encode_options
from herder.controllers.planner.plan.render import MAX_PLAN_BYTES, Desired, PlanRecord, Request
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.tier import RolloutContext, Tier, TierProgress, roll_out
from tests.support.views import NOW
from tests.unit.controllers.planner.objects import ALL, SERVER, WORKER, entry, plan_of

OLD, NEW = plan_of(stamp="1"), plan_of(stamp="2")


class FixedPlanDistribution:
    """A distribution that renders a fixed plan."""

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


def roll_out_machines(
    *entries: PlanEntry,
    new_plan: Plan = NEW,
    concurrency: str = "1",
    drain: dict[str, Any] | None = None,
    connected: bool = True,
    machines: int = 5,
    up_to_date: int = 0,
    unplannable: Collection[str] = (),
    name: str = "worker",
    later: Sequence[PlanEntry] = (),
    **context: Any,
) -> TierProgress:
    """`later`: machines of later tiers, which count against the same budget."""
    distribution: Any = FixedPlanDistribution(new_plan, unplannable)
    spec = {"plan": new_plan.to_json().decode(), "unplannable": [*unplannable]}
    cluster = ClusterInputs("fleet-default", "demo", "", "v1.33.4+k3s1", spec)

    def desired(machine: PlanEntry) -> Desired:
        inputs = MachineInputs(machine.name, machine.uid, machine.roles, join_url="https://10.0.0.1:6443")
        return Desired(machine, Request.of(distribution, cluster, inputs))

    tier = Tier(name, entries, [*entries, *later], concurrency, drain or {}, up_to_date=up_to_date)
    return roll_out(tier, RolloutContext(desired, "v1.33.4+k3s1", connected, machines, NOW, **context))


def planned_machines(progress: TierProgress) -> list[str]:
    """The names of the machines whose plan is written."""
    plans = [write for write in progress.writes if "data" in write.patch and "plan" in write.patch["data"]]
    return [write.ref.name.removesuffix("-machine-plan") for write in plans]


def worker(name: str, plan: Plan | None = OLD, **changes: Any) -> PlanEntry:
    return entry(name, (WORKER,), plan=plan, address=f"10.0.0.{ord(name)}", **changes)


# --- first plans and small changes ----------------------------------------------------------------------------------


def test_first_plans_are_not_limited_by_concurrency() -> None:
    progress = roll_out_machines(worker("a", None), worker("b", None), worker("c", None))
    assert planned_machines(progress) == ["a", "b", "c"]
    assert progress.waiting("worker") == "configuring worker node(s) a,b,c"


def test_a_new_plan_replaces_all_plan_data() -> None:
    (write,) = roll_out_machines(worker("a", None)).writes
    assert write.ref.kind == PLAN_SECRET
    assert write.resource_version
    assert set(write.patch["data"]) == {
        "plan", "plan-state", "max-failures", "failure-threshold", "applied-checksum", "probe-statuses",
    }  # fmt: skip
    assert write.patch["data"]["probe-statuses"] is None
    assert write.patch["data"]["applied-checksum"] is None
    annotations = write.patch["metadata"]["annotations"]
    assert annotations[names.JOINED_TO] == "https://10.0.0.1:6443"
    assert annotations[names.PROBES_PASSED] == ""
    assert annotations[names.PLAN_UPDATED] == "2026-01-01T12:00:00Z"


def test_non_disruptive_plans_do_not_wait_for_their_turn() -> None:
    minor = plan_of(stamp="1", minor="another")
    drain = {"enabled": True}
    assert planned_machines(roll_out_machines(worker("a"), worker("b"), new_plan=minor, drain=drain)) == ["a", "b"]


def test_an_unchanged_plan_is_not_written_again() -> None:
    assert roll_out_machines(worker("a"), new_plan=OLD).writes == []


# --- unplannable machines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [None, OLD], ids=["first plan", "later plan"])
def test_an_unplannable_worker_does_not_block_other_workers(first: Plan | None) -> None:
    """For example one registered with invalid labels or without an address."""
    progress = roll_out_machines(worker("a", first), worker("b", first), unplannable=["a"])
    assert planned_machines(progress) == ["b"]
    assert progress.ignored("worker") == "failing worker machine(s) a: machine a: has no address"
    assert not progress.error


def test_a_problem_of_all_workers_is_an_error_of_the_cluster() -> None:
    progress = roll_out_machines(worker("a"), worker("b"), unplannable=["a", "b"])
    assert progress.error == "machine a: has no address"


def test_no_server_is_planned_before_an_unplannable_one() -> None:
    with pytest.raises(ConfigError, match="machine a"):
        roll_out_machines(worker("a"), worker("b"), unplannable=["a"], name="etcd")


# --- concurrency ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("concurrency", "expected"),
    [("1", ["a"]), ("2", ["a", "b"]), ("0", ["a", "b", "c"]), ("34%", ["a", "b"]), ("1%", ["a"]), ("", ["a"])],
)
def test_the_strategy_limits_concurrent_changes(concurrency: str, expected: list[str]) -> None:
    assert (
        planned_machines(roll_out_machines(worker("a"), worker("b"), worker("c"), concurrency=concurrency)) == expected
    )


def test_a_percentage_counts_up_to_date_machines_too() -> None:
    assert planned_machines(
        roll_out_machines(worker("a"), worker("b"), worker("c"), concurrency="20%", up_to_date=7)
    ) == ["a", "b"]


def test_an_invalid_concurrency_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match=r'"some" is not a valid concurrency; use a number or a percentage such as "10%"'
    ):
        roll_out_machines(worker("a"), concurrency="some")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (worker("a", NEW, state="in-progress", data={"appliedPlan": "{}"}), []),
        (worker("a", NEW, unhealthy=True), []),
        (worker("a", OLD, annotations={names.UNCORDON: "{}"}), ["a"]),
        (worker("a", OLD, state="failed"), ["a"]),
        (worker("a", OLD, unhealthy=True), ["a"]),
        (worker("a", OLD, unhealthy=True, annotations={names.PROBES_PASSED: "x"}), ["a"]),
        (worker("a", NEW), ["b"]),
        (worker("a", None), ["a", "b"]),
        (worker("a", NEW, state="pending"), ["b"]),
    ],
    ids=[
        "its plan is in progress",
        "it is unhealthy",
        "it is being drained: it continues",
        "its plan failed: a new one may help",
        "it never became healthy: a new plan may help",
        "it was healthy once: it takes the turn",
        "it is up to date",
        "it is new: it does not count",
        "it has its first plan: it does not count",
    ],
)
def test_the_state_of_one_machine_decides_whether_another_waits(other: PlanEntry, expected: list[str]) -> None:
    assert planned_machines(roll_out_machines(other, worker("b"))) == expected


def test_broken_machines_are_planned_first() -> None:
    assert planned_machines(roll_out_machines(worker("a"), worker("b"), worker("c", unhealthy=True))) == ["c"]
    progressing = worker("b", NEW, state="in-progress", data={"appliedPlan": "{}"})
    assert planned_machines(roll_out_machines(worker("a", unhealthy=True), progressing)) == []


def test_a_failed_machine_of_a_later_tier_is_repaired_first() -> None:
    first, later = worker("a"), worker("b", state="failed")
    progress = roll_out_machines(first, later=[later, worker("c")])
    assert planned_machines(progress) == ["b"]
    assert progress.waiting("etcd") == "configuring etcd node(s) a: waiting for unhealthy machines: b"
    assert planned_machines(roll_out_machines(first, later=[worker("b", NEW, state="failed")])) == []


def test_an_upgrade_does_not_start_with_a_later_tier() -> None:
    first, later = worker("a"), worker("b", state="failed")
    first.machine["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.3+k3s1"
    assert planned_machines(roll_out_machines(first, later=[later])) == []


# --- drains ---------------------------------------------------------------------------------------------------------

DRAIN = {"enabled": True, "timeout": 60}
DRAIN_REQUEST = encode_options(DRAIN, is_only_machine=False)


def test_a_node_is_drained_before_a_disruptive_plan() -> None:
    progress = roll_out_machines(worker("a"), drain=DRAIN)
    assert planned_machines(progress) == []
    assert progress.writes[0].patch == {"metadata": {"annotations": {names.DRAIN_OPTIONS: DRAIN_REQUEST}}}
    assert progress.waiting("worker") == "draining worker node(s) a: draining node"
    assert DRAIN_REQUEST == '{"enabled":true,"timeout":60}'


def test_the_plan_is_written_when_the_drain_is_done() -> None:
    drained = {names.DRAIN_OPTIONS: DRAIN_REQUEST, names.DRAIN_DONE: DRAIN_REQUEST}
    progress = roll_out_machines(worker("a", annotations=drained), drain=DRAIN)
    assert planned_machines(progress) == ["a"]
    assert progress.waiting("worker") == "configuring worker node(s) a: drain completed"


def test_a_drain_error_is_reported_unless_it_is_transient() -> None:
    annotations = {names.DRAIN_OPTIONS: DRAIN_REQUEST, names.DRAIN_ERROR: "budget says no"}
    message = roll_out_machines(worker("a", annotations=annotations), drain=DRAIN).waiting("worker")
    assert message == "draining worker node(s) a: error draining machine a: budget says no"
    annotations[names.DRAIN_ERROR] = "error trying to reach service: x"
    assert (
        roll_out_machines(worker("a", annotations=annotations), drain=DRAIN)
        .waiting("worker")
        .endswith(": draining node")
    )


@pytest.mark.parametrize(
    ("machine", "new_plan", "drain", "machines"),
    [
        (worker("a"), plan_of("v1.33.5", stamp="1"), DRAIN, 5),
        (worker("a"), NEW, {"enabled": False}, 5),
        (worker("a"), NEW, DRAIN, 1),
        (entry("a", (WORKER,), plan=OLD), NEW, DRAIN, 5),
    ],
    ids=["the drain hash is unchanged", "draining is disabled", "the only machine", "no node"],
)
def test_no_drain_is_requested(machine: PlanEntry, new_plan: Plan, drain: dict[str, Any], machines: int) -> None:
    assert planned_machines(roll_out_machines(machine, new_plan=new_plan, drain=drain, machines=machines)) == ["a"]


def test_hooks_of_the_only_machine_are_awaited_without_a_drain() -> None:
    options = {"enabled": True, "preDrainHooks": [{"annotation": "h"}]}
    (write,) = roll_out_machines(worker("a"), drain=options, machines=1).writes
    requested = write.patch["metadata"]["annotations"][names.DRAIN_OPTIONS]
    assert requested == '{"enabled":false,"preDrainHooks":[{"annotation":"h"}]}'


def test_a_node_is_uncordoned_when_its_plan_has_succeeded() -> None:
    drained = {names.DRAIN_OPTIONS: DRAIN_REQUEST, names.DRAIN_DONE: DRAIN_REQUEST}
    progress = roll_out_machines(worker("a", NEW, annotations=drained), drain=DRAIN)
    assert progress.writes[0].patch == {"metadata": {"annotations": {names.UNCORDON: DRAIN_REQUEST}}}
    message = "uncordoning worker node(s) a: waiting for uncordon to finish"
    assert progress.waiting("worker") == message
    uncordoning = roll_out_machines(
        worker("a", NEW, annotations=drained | {names.UNCORDON: DRAIN_REQUEST}), drain=DRAIN
    )
    assert (uncordoning.writes, uncordoning.waiting("worker")) == ([], message)


# --- progress messages ----------------------------------------------------------------------------------------------

RECENTLY_WRITTEN = {names.PLAN_UPDATED: (NOW - timedelta(minutes=4)).isoformat()}
WRITTEN_LONG_AGO = {names.PLAN_UPDATED: (NOW - timedelta(hours=1)).isoformat()}


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (
            worker("a", NEW, state="pending", annotations=RECENTLY_WRITTEN),
            "waiting for agent to check in and apply initial plan",
        ),
        (
            worker("a", NEW, state="pending", annotations=WRITTEN_LONG_AGO),
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
            worker("a", NEW, state="in-progress", data={"appliedPlan": "{}"}, annotations=RECENTLY_WRITTEN),
            "waiting for plan to be applied",
        ),
        (
            worker("a", NEW, state="in-progress", data={"appliedPlan": "{}"}, annotations=WRITTEN_LONG_AGO),
            "waiting for plan to be applied (plan in progress for more than 30 minutes; see the log of "
            "rancher-system-agent.service)",
        ),
    ],
)
def test_the_message_names_what_a_machine_waits_for(machine: PlanEntry, expected: str) -> None:
    assert roll_out_machines(machine).waiting("worker") == f"configuring worker node(s) a: {expected}"


def test_a_node_with_another_kubelet_version_is_waited_for() -> None:
    old = worker("a", NEW)
    old.machine["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.3+k3s1"
    assert roll_out_machines(old).waiting("worker") == "configuring worker node(s) a: waiting for kubelet to update"
    assert roll_out_machines(old, connected=False).waiting("worker") == ""


def test_a_control_plane_is_ready_when_the_cluster_agent_is_connected() -> None:
    plane = entry("a", SERVER, plan=NEW, address="10.0.0.1")
    message = "configuring worker node(s) a: waiting for cluster agent to connect"
    assert roll_out_machines(plane, connected=False).waiting("worker") == message
    assert roll_out_machines(plane).ready == [plane]


def test_the_state_of_the_agent_pod_is_part_of_the_message() -> None:
    planes = [entry(name, SERVER, plan=NEW, address="10.0.0.1") for name in "ab"]
    wait = "waiting for cluster agent to connect: pod-1: ErrImagePull"
    progress = roll_out_machines(*planes[:1], connected=False, agent_problem="pod-1: ErrImagePull")
    assert progress.waiting("bootstrap") == f"configuring bootstrap node(s) a: {wait}"
    assert progress.details == {"a": [wait]}
    progress = roll_out_machines(*planes, connected=False, agent_problem="pod-1: ErrImagePull")
    assert progress.waiting("control plane") == f"configuring control plane node(s) a,b: {wait}"
    assert roll_out_machines(*planes, connected=False).waiting("worker") == "configuring worker node(s) a,b"


def test_the_state_of_the_agent_pod_explains_a_wait_for_pre_bootstrap() -> None:
    plane = entry("a", SERVER, plan=NEW, address="10.0.0.1")
    progress = roll_out_machines(
        plane, connected=False, agent_problem="pod-1: ErrImagePull", pre_bootstrap_problem="no Secret"
    )
    assert progress.details["a"] == [
        "waiting for cluster pre-bootstrap to complete: no Secret",
        "waiting for cluster agent to connect: pod-1: ErrImagePull",
    ]


def test_a_machine_that_reports_the_agent_pod_is_not_drained_and_has_no_budget() -> None:
    status = PeriodicInstruction(name=AGENT_STATUS, command="kubectl")
    reporting = replace(NEW, periodic_instructions=(status,))
    planes = [entry(name, SERVER, plan=NEW, address="10.0.0.1") for name in "ab"]
    progress = roll_out_machines(*planes, new_plan=reporting, drain={"enabled": True}, connected=False)
    assert planned_machines(progress) == ["a", "b"]
    assert not progress.draining
    other = replace(NEW, periodic_instructions=(status, replace(status, name="another")))
    assert planned_machines(roll_out_machines(*planes, new_plan=other, connected=False)) == ["a"]


def test_a_message_names_at_most_three_machines() -> None:
    assert roll_out_machines(*(worker(name, None) for name in "edcba")).waiting("worker") == (
        "configuring worker node(s) a,b,c and 2 more"
    )


def test_failed_machines_are_reported_and_block_no_other() -> None:
    failed = worker("a", NEW, status={"phase": "Failed"})
    progress = roll_out_machines(failed, worker("b", NEW))
    assert progress.waiting("worker") == ""
    assert progress.ignored("worker") == "failing worker machine(s) a: the machine has failed"


def test_a_paused_machine_keeps_its_plan() -> None:
    paused = worker("a")
    paused.machine["metadata"]["annotations"] = {"cluster.x-k8s.io/paused": ""}
    progress = roll_out_machines(paused)
    assert progress.writes == []
    assert progress.waiting("worker").endswith("Machine is paused; its plan does not change until it is resumed")


# --- files that no plan contains any more ---------------------------------------------------------------------------


def with_files(plan: Plan, *paths: str) -> Plan:
    return replace(plan, files=(*plan.files, *(file(path, "x") for path in paths)))


def delivered(progress: TierProgress) -> tuple[dict[str, str], str]:
    """The action of each file of the one plan that is written, and the record of the plan."""
    (write,) = progress.writes
    raw = base64.b64decode(write.patch["data"]["plan"])
    record = write.patch["metadata"]["annotations"][names.PLAN_INPUTS]
    assert record.endswith(checksum(raw))
    return {each.path: each.action for each in Plan.from_json(raw).files}, record


def test_files_that_only_plans_wrote_are_deleted_with_the_next_plan() -> None:
    before = with_files(OLD, "/ours/gone", "/ours/kept", "/etc/motd")
    files, _ = delivered(roll_out_machines(worker("a", before), new_plan=with_files(NEW, "/ours/kept")))
    assert files == {"/minor": "", "/ours/kept": "", "/ours/gone": "delete"}


def test_a_file_is_deleted_once() -> None:
    before, new_plan = with_files(OLD, "/ours/gone"), NEW
    (write,) = roll_out_machines(worker("a", before), new_plan=new_plan).writes
    delivered_plan = Plan.from_json(base64.b64decode(write.patch["data"]["plan"]))
    annotations = {names.PLAN_INPUTS: write.patch["metadata"]["annotations"][names.PLAN_INPUTS]}
    assert roll_out_machines(worker("a", delivered_plan, annotations=annotations), new_plan=new_plan).writes == []
    files, _ = delivered(
        roll_out_machines(
            worker("a", delivered_plan, annotations=annotations), new_plan=with_files(plan_of(stamp="3"), "/ours/new")
        )
    )
    assert files == {"/minor": "", "/ours/new": ""}


def test_a_deletion_of_a_failed_plan_is_part_of_the_next_plan() -> None:
    failed = replace(OLD, files=(*OLD.files, File(path="/ours/gone", action=DELETE)))
    files, _ = delivered(roll_out_machines(worker("a", failed, state="failed")))
    assert files["/ours/gone"] == "delete"


# --- rendering ------------------------------------------------------------------------------------------------------


def test_a_plan_is_rendered_only_if_its_inputs_changed() -> None:
    class CountingDistribution(FixedPlanDistribution):
        renders = 0

        def render(self, cluster: ClusterInputs, machine: MachineInputs) -> Plan:
            CountingDistribution.renders += 1
            return super().render(cluster, machine)

    distribution: Any = CountingDistribution(OLD)
    cluster = ClusterInputs("fleet-default", "counted", "", "v1.33.4+k3s1", {})
    inputs = MachineInputs("a", "uid-a", entry("a", ALL).roles)
    request = Request.of(distribution, cluster, inputs)
    known = worker("a", annotations={names.PLAN_INPUTS: str(PlanRecord(*request.digests, "sum"))})
    assert not Desired(known, request).differs
    assert CountingDistribution.renders == 0
    other = worker("a", annotations={names.PLAN_INPUTS: "other sum"})
    assert all(Desired(other, request).differs for _ in range(3))
    assert CountingDistribution.renders == 1


def test_an_identical_plan_from_other_inputs_is_recorded_but_not_written() -> None:
    earlier_record = str(PlanRecord("other", "inputs", checksum(NEW.to_json())))
    progress = roll_out_machines(worker("a", NEW, annotations={names.PLAN_INPUTS: earlier_record}))
    assert progress.writes == []
    (record,) = progress.records
    assert record.patch.keys() == {"metadata"}
    again = roll_out_machines(worker("a", NEW, annotations=record.patch["metadata"]["annotations"]))
    assert (again.writes, again.records) == ([], [])
    assert [entry.name for entry in again.ready] == ["a"]


def test_a_plan_that_is_too_large_for_a_secret_is_an_error() -> None:
    huge = plan_of(minor="x" * MAX_PLAN_BYTES)
    error = roll_out_machines(worker("a", None), new_plan=huge).error
    assert "plan of machine a: " in error
    assert "largest file: /minor" in error
