"""Report whether the node agents of a cluster are those that the manager serves.

Agents are grouped by what they report, so that a pass does not depend on the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from herder.api import settings
from herder.api.capi.conditions import Condition, condition
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.agents import AgentState, ServedAgent
from herder.api.rke.node.plan_secret import PlanSecret
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.control.cache import Key
from herder.engine.meta.names import dns1123_subdomain
from herder.engine.runtime.groups import Grouping
from herder.engine.runtime.view import View

UP_TO_DATE = "NodeAgentsUpToDate"
"""Condition of the RKEControlPlane: whether no machine has an older agent than the one that the manager serves."""
MAX_NAMES = 3


class ReportedAgent(NamedTuple):
    version: str
    checksum: str


def _reported(view: View) -> tuple[str, ReportedAgent] | None:
    secret = view.get(PLAN_SECRET, view.name)
    plan = PlanSecret(secret) if secret is not None else None
    cluster = plan.labels.get(names.CLUSTER_NAME) if plan is not None else None
    if plan is None or not cluster or not plan.has_run_a_plan:
        return None
    return f"{view.namespace}/{cluster}", ReportedAgent(plan.agent_version, plan.agent_checksum)


AGENTS: Grouping[ReportedAgent] = Grouping("node-agents", PLAN_SECRET, _reported)


def report_agents(scope: PlanScope) -> list[Condition]:
    """The condition; none while no machine has run a plan, or if the manager serves no agent."""
    served = ServedAgent.of(scope.view.setting(settings.SERVED_NODE_AGENT))
    groups = scope.view.groups(AGENTS, f"{scope.view.namespace}/{scope.cluster['metadata']['name']}")
    if served is None or not groups:
        return []
    by_state: dict[AgentState, list[Key]] = {}
    for agent, keys in groups.items():
        by_state.setdefault(served.compare(agent.version, agent.checksum), []).extend(keys)
    parts = list(_parts(scope.view, by_state, served))
    if not any(state.is_redeployed for state in by_state):
        return [condition(UP_TO_DATE, "True", "UpToDate", "; ".join(parts))]
    message = f"{'; '.join(parts)}; to redeploy them, run: herder redeploy agents {scope.cluster['metadata']['name']}"
    return [condition(UP_TO_DATE, "False", "Outdated", message)]


def _parts(view: View, by_state: dict[AgentState, list[Key]], served: ServedAgent) -> Iterator[str]:
    texts = {
        AgentState.OUTDATED: f"not the agent that the manager serves, {served.version}",
        AgentState.UNREPORTED: "an agent that reports no version",
        AgentState.NEWER: f"an agent that is newer than that of the manager, {served.version}, and keep it",
    }
    for state, text in texts.items():
        if keys := by_state.get(state):
            yield f"machine(s) {_names(view, keys)} have {text}"


def _names(view: View, keys: Collection[Key]) -> str:
    shown = [_machine(view, key) for key in sorted(keys)[:MAX_NAMES]]
    return ",".join(shown) + (f" and {len(keys) - MAX_NAMES} more" if len(keys) > MAX_NAMES else "")


def _machine(view: View, key: Key) -> str:
    secret = view.get(PLAN_SECRET, key.name, key.namespace)
    name = ((secret or {}).get("metadata", {}).get("labels") or {}).get(names.MACHINE_NAME, "")
    return name if not dns1123_subdomain(name) else key.name
