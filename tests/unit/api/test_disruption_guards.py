"""Guards of disruption: etcd keeps its quorum, and no more machines are down than the strategy allows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan import AGENT_STATUS, SNAPSHOT_HASHES, PeriodicInstruction
from herder.api.rke.node.plan_secret import encoded
from herder.engine.runtime.decision import Patch, Ref
from tests.support.views import NOW
from tests.unit.api.guards.plan_writes import NEW, denied_by, members, workers, write
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, PLANE, WORKER, machine, plan_of, plan_secret


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


def test_machines_of_other_clusters_are_not_counted() -> None:
    other = plan_secret("b", (WORKER,), plan=plan_of(), unhealthy=True, labels={names.CLUSTER_NAME: "another"})
    assert denied_by(write("a", NEW), *workers("w"), machine("b"), other) == ""
    assert NAME != "another"
