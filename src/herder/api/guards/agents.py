"""Guards of tasks that redeploy node agents: never an older agent, and no more machines at a time than allowed."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.guards.plan_changes import PlanChange, machine_remains, plans_of
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.machines.strategy import UNLIMITED, BadConcurrency, limit_of
from herder.api.rke.node.agents import AgentState, ServedAgent
from herder.api.rke.node.plan import Plan
from herder.api.rke.node.plan_secret import PlanSecret
from herder.api.rke.operations import REDEPLOY_AGENT, active_run
from herder.engine.runtime.decision import Refusal
from herder.engine.runtime.executor import Action
from herder.engine.runtime.view import View


def deny_agent_downgrade(change: PlanChange, view: View, _before: Sequence[Action]) -> Refusal | None:
    """Deny replacing an agent by an older one, and a task that does not name its agent."""
    if not change.starts_run or not _redeploys(change.plan):
        return None
    agent, before = _agent_of(change.plan), change.before
    if agent is None:
        return change.refuse("deny-agent-downgrade", "denied; the task does not name the agent that it installs")
    if agent.compare(before.agent_version, before.agent_checksum) is AgentState.NEWER:
        message = f"denied; node agent {agent.version} is older than {before.agent_version}, which runs there"
        return change.refuse("deny-agent-downgrade", message)
    return None


def limit_agent_redeployment(change: PlanChange, view: View, before: Sequence[Action]) -> Refusal | None:
    """Limit the number of machines of a tier whose agents are being replaced. Skipped workers do not count."""
    if not change.starts_run or not _redeploys(change.plan) or _redeploys(change.before.plan):
        return None
    control_plane = view.get(CONTROL_PLANE, change.cluster, change.namespace)
    run, agent = active_run(control_plane), _agent_of(change.plan)
    if run is None or agent is None:
        return None  # other guards deny the task
    field = "controlPlaneConcurrency" if _is_server(change.before) else "workerConcurrency"
    strategy = ((control_plane or {}).get("spec") or {}).get("upgradeStrategy") or {}
    tier = [
        plan
        for plan in plans_of(view, change.namespace, change.cluster, before)
        if _is_server(plan) == _is_server(change.before) and machine_remains(view, plan)
    ]
    try:
        limit = limit_of(strategy.get(field), sum(plan.has_run_a_plan for plan in tier))
    except BadConcurrency:
        limit = 1
    busy = [
        plan
        for plan in tier
        if plan.name != change.before.name
        and plan.labels.get(names.MACHINE_NAME) not in run.skipped
        and run.is_own_phase(plan.annotations.get(names.PLAN_TASK, ""))
        and agent.compare(plan.agent_version, plan.agent_checksum).is_redeployed
    ]
    if limit == UNLIMITED or len(busy) < limit:
        return None
    message = f"denied; {len(busy)} machines replace their agents, upgradeStrategy.{field} allows {limit}"
    return change.refuse("limit-agent-redeployment", message)


def _is_server(plan: PlanSecret) -> bool:
    return plan.is_etcd or plan.is_control_plane


def _redeploys(plan: Plan | None) -> bool:
    return any(each.name == REDEPLOY_AGENT for each in (plan.instructions if plan else ()))


def _agent_of(plan: Plan | None) -> ServedAgent | None:
    tasks = [each for each in (plan.instructions if plan else ()) if each.name == REDEPLOY_AGENT]
    return ServedAgent.in_environment(tasks[0].env) if len(tasks) == 1 else None
