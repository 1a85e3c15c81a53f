"""Which redeployments of node agents are denied: older agents, and too many machines of a tier at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from herder.api.guards.agents import deny_agent_downgrade, limit_agent_redeployment
from herder.api.guards.plan_changes import PlanChange, plan_change
from herder.api.rke import names, operations
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.agents import ServedAgent
from herder.api.rke.node.plan import Instruction, Plan
from herder.api.rke.node.plan_secret import encoded
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch, Ref, Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.view import View
from tests.support.views import NOW, view_of
from tests.unit.api.guards.plan_writes import READER
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
SERVED = ServedAgent("1.1.0", "a" * 64)
RUN = operations.Run("agents-1", operations.AGENTS, "Workers", 1, started_at=NOW)
UNNAMED = f"deny-agent-downgrade: {PLAN_A}; the task does not name the agent that it installs"
Check = Callable[[PlanChange, View, Sequence[Action]], Refusal | None]


def task(*agents: ServedAgent, env: Sequence[str] = ()) -> Plan:
    """A plan that installs these agents, each by its own instruction."""
    environments = [each.environment for each in agents] or [tuple(env)]
    added = tuple(Instruction(name=operations.REDEPLOY_AGENT, command="sh", env=each) for each in environments)
    return replace(plan_of(), instructions=(*plan_of().instructions, *added))


TASK = task(SERVED)


def control_plane(run: operations.Run | None = RUN, **spec: Any) -> Object:
    return objects.control_plane(status={"operation": run.to_status()} if run else {}, **spec)


def agent(
    name: str, roles: tuple[str, ...] = (WORKER,), version: str = "1.0.0", mark: str = "", **more: Any
) -> tuple[Object, Object]:
    """A machine whose agent reports this version, and its plan Secret."""
    found = plan_secret(
        name, roles, plan=more.pop("plan", plan_of()), annotations={names.PLAN_TASK: mark} if mark else {}, **more
    )
    checksum = SERVED.checksum if version == SERVED.version else "b" * 64
    found["data"] |= {"agent-version": encoded(version), "agent-checksum": encoded(checksum)}
    return machine(name), found


def busy(name: str, roles: tuple[str, ...] = (WORKER,), **more: Any) -> tuple[Object, Object]:
    return agent(name, roles, **{"mark": RUN.mark, "plan": TASK, **more})


def written(plan: Plan = TASK, name: str = "a", **data: Any) -> Patch:
    patch: Object = {"data": {"plan": encoded(plan.to_json()), "plan-state": encoded("pending"), **data}}
    return Patch(Ref(PLAN_SECRET, names.plan_secret(name), NAMESPACE), patch, "redeploy", "", "1")


def found(
    check: Check,
    action: Action,
    *existing: Object,
    plane: Object | None = None,
    before: Sequence[Action] = (),
    key: str = f"{NAMESPACE}/x",
) -> str:
    view = view_of(READER, key, (objects.cluster(), plane or control_plane(), *existing))
    change = plan_change(action, view)
    assert change is not None
    refusal = check(change, view, before)
    return f"{refusal.guard}: {refusal.reason}" if refusal else ""


# --- downgrades -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "denied"), [("1.2.0", True), ("1.1.0", False), ("1.0.0", False), ("unknown", False)]
)
def test_an_agent_is_not_replaced_by_an_older_one(version: str, denied: bool) -> None:
    older = f"deny-agent-downgrade: {PLAN_A}; node agent 1.1.0 is older than {version}, which runs there"
    assert found(deny_agent_downgrade, written(), *agent("a", version=version)) == (older if denied else "")


def test_an_agent_that_reports_nothing_is_replaced() -> None:
    assert found(deny_agent_downgrade, written(), machine("a"), plan_secret("a", plan=plan_of())) == ""


@pytest.mark.parametrize(
    "plan",
    [
        task(),
        task(env=("AGENT_VERSION=1.1.0",)),
        task(env=("AGENT_VERSION=1.1.0", "AGENT_CHECKSUM=short")),
        task(SERVED, SERVED),
        task(SERVED, ServedAgent("1.0.0", "c" * 64)),
    ],
    ids=["no agent", "no checksum", "no valid checksum", "twice", "two agents"],
)
def test_a_task_names_exactly_one_agent(plan: Plan) -> None:
    assert found(deny_agent_downgrade, written(plan), *agent("a")) == UNNAMED
    assert found(limit_agent_redeployment, written(plan), *agent("a"), *busy("b")) == "", "denied by the other guard"


def test_only_new_tasks_are_checked() -> None:
    """A plan with a task stays on the machine until it gets its own plan back; meanwhile its Secret changes."""
    newer = agent("a", version="1.2.0", plan=TASK, mark=RUN.mark)
    label = Patch(Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"metadata": {"labels": {"x": "y"}}}, "a mark")
    assert found(deny_agent_downgrade, label, *newer) == ""
    assert found(deny_agent_downgrade, written(plan_of(stamp="2")), *newer) == "", "no task"
    assert found(deny_agent_downgrade, written(), *newer, plane=control_plane(None)).startswith("deny-agent-downgrade")
    again = Patch(label.ref, {"data": {"plan-state": encoded("pending")}}, "once more")
    assert found(deny_agent_downgrade, again, *newer).startswith("deny-agent-downgrade")
    without_plan = Patch(label.ref, {"data": {"plan": None, "plan-state": encoded("pending")}}, "no plan")
    assert found(deny_agent_downgrade, without_plan, *newer) == ""


# --- concurrency ------------------------------------------------------------------------------------------------------


def limited(tier: str, count: int = 1, limit: int = 1) -> str:
    message = f"{count} machines replace their agents, upgradeStrategy.{tier}Concurrency allows {limit}"
    return f"limit-agent-redeployment: {PLAN_A}; {message}"


@pytest.mark.parametrize(
    ("own", "other", "tier"),
    [
        ((WORKER,), (WORKER,), "worker"),
        (SERVER, SERVER, "controlPlane"),
        (SERVER, (ETCD,), "controlPlane"),
        ((ETCD,), (PLANE,), "controlPlane"),
        ((PLANE,), (ETCD, WORKER), "controlPlane"),
        ((WORKER,), SERVER, ""),
        ((WORKER,), (ETCD,), ""),
        ((WORKER,), (PLANE, WORKER), ""),
        (SERVER, (WORKER,), ""),
    ],
)
def test_machines_of_a_tier_replace_their_agents_one_by_one(
    own: tuple[str, ...], other: tuple[str, ...], tier: str
) -> None:
    existing = (*agent("a", own), *busy("b", other))
    assert found(limit_agent_redeployment, written(), *existing) == (limited(tier) if tier else "")
    assert found(limit_agent_redeployment, written(), *agent("a", own), *agent("b", other)) == ""


@pytest.mark.parametrize(
    ("strategy", "own", "denied"),
    [
        (None, (WORKER,), "1"),
        ({}, (WORKER,), "1"),
        ({"workerConcurrency": "1"}, (WORKER,), "1"),
        ({"workerConcurrency": "2"}, (WORKER,), "2"),
        ({"workerConcurrency": "3"}, (WORKER,), ""),
        ({"workerConcurrency": "0"}, (WORKER,), ""),
        ({"workerConcurrency": 0}, (WORKER,), ""),
        ({"workerConcurrency": "many"}, (WORKER,), "1"),
        ({"workerConcurrency": "40%"}, (WORKER,), "2"),
        ({"workerConcurrency": "90%"}, (WORKER,), ""),
        ({"controlPlaneConcurrency": "3"}, (WORKER,), "1"),
        ({"controlPlaneConcurrency": "3"}, SERVER, ""),
        ({"controlPlaneConcurrency": "2"}, SERVER, "2"),
        ({"workerConcurrency": "3"}, SERVER, "1"),
    ],
)
def test_the_strategy_of_the_cluster_is_the_limit(strategy: Any, own: tuple[str, ...], denied: str) -> None:
    """Of four machines in each tier, of which two are busy. One that has never run a plan is no member yet."""
    tiers = {"worker": (WORKER,), "controlPlane": SERVER}
    others = [
        each for tier, roles in tiers.items() for suffix in "bc" for each in busy(f"{tier.lower()}-{suffix}", roles)
    ]
    others += [*agent("d", own), *agent("e", own, plan=None)]
    tier = "controlPlane" if own == SERVER else "worker"
    refusal = found(
        limit_agent_redeployment, written(), *agent("a", own), *others, plane=control_plane(upgradeStrategy=strategy)
    )
    assert refusal == (limited(tier, 2, int(denied)) if denied else "")


@pytest.mark.parametrize(
    ("other", "denied"),
    [
        (busy("b"), True),
        (busy("b", mark="agents-1/Workers/3"), True),
        (busy("b", mark="agents-1/Servers/1"), False),
        (busy("b", mark="agents-0/Workers/1"), False),
        (busy("b", mark=""), False),
        (busy("b", version=SERVED.version), False),
        (busy("b", version="1.2.0"), False),
        (busy("b")[1:], False),
        ((machine("b", deleting=True), busy("b")[1]), False),
        (busy("skipped"), False),
        (busy("b", labels={names.CLUSTER_NAME: "another"}), False),
        (busy("b", labels={names.MACHINE_NAME: ""}), False),
    ],
)
def test_which_machines_are_busy(other: tuple[Object, ...], denied: bool) -> None:
    run = operations.Run(**{**vars(RUN), "skipped": ("skipped",)})
    refusal = found(limit_agent_redeployment, written(), *agent("a"), *other, plane=control_plane(run))
    assert refusal == (limited("worker") if denied else "")


def test_a_machine_does_not_wait_for_itself() -> None:
    own = agent("a", mark=RUN.mark)
    assert found(limit_agent_redeployment, written(), *own) == ""


def test_without_a_strategy_one_machine_replaces_its_agent() -> None:
    plane = {**control_plane(), "spec": None}
    assert found(limit_agent_redeployment, written(), *agent("a"), *busy("b"), plane=plane) == limited("worker")


def test_which_changes_are_limited() -> None:
    other = busy("b")
    assert found(limit_agent_redeployment, written(), *agent("a"), *other) == limited("worker")
    assert found(limit_agent_redeployment, written(), *agent("a", plan=TASK), *other) == "", "a further attempt"
    assert found(limit_agent_redeployment, written(plan_of(stamp="2")), *agent("a"), *other) == "", "no task"
    label = Patch(Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"metadata": {"labels": {"x": "y"}}}, "a mark")
    assert found(limit_agent_redeployment, label, *agent("a", plan=TASK), *other) == ""


def test_without_an_operation_other_guards_deny_the_task() -> None:
    existing = (*agent("a"), *busy("b"))
    ended = operations.Run(**{**vars(RUN), "phase": operations.FINISHED})
    for run in (None, ended):
        assert found(limit_agent_redeployment, written(), *existing, plane=control_plane(run)) == ""


def test_the_cluster_is_that_of_the_plan_wherever_the_decision_is_made() -> None:
    existing = (*agent("a"), *busy("b"))
    assert found(limit_agent_redeployment, written(), *existing, key="elsewhere/x") == limited("worker")


def test_tasks_of_one_decision_count_together() -> None:
    existing = (*agent("a"), *agent("b"))
    before = written(name="b")
    before.patch["metadata"] = {"annotations": {names.PLAN_TASK: RUN.mark}}
    assert found(limit_agent_redeployment, written(), *existing, before=[before]) == limited("worker")
    assert found(limit_agent_redeployment, written(), *existing) == ""
