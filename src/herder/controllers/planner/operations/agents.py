"""Redeployment of node agents: each machine installs the agent that the manager serves now.

Servers come first. In each tier, at most as many machines as the upgrade strategy allows are in progress. A machine is
done when its new agent has reported itself, not when the task has ended. Machines that have this agent, or a newer one,
are left as they are. A worker that does not respond is skipped; the condition NodeAgentsUpToDate goes on to name it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from herder.api import settings
from herder.api.rke import operations
from herder.api.rke.machines.strategy import UNLIMITED, is_lost, limit_of
from herder.api.rke.names import PLAN_TASK
from herder.api.rke.node.agents import ASSET, AgentState, ServedAgent, own_source
from herder.api.rke.operations import FINISHED, Run
from herder.controllers.planner.distributions.agent_task import RedeployAgent
from herder.controllers.planner.distributions.interface import Roles
from herder.controllers.planner.operations.interface import (
    Batch,
    OperationScope,
    Phase,
    Step,
    is_new_request,
    withdrawals,
)
from herder.controllers.planner.operations.snapshots.creation import RESTORE_PLAN_TIMEOUT, restore_plans
from herder.controllers.planner.rollout import messages
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.scope import PlanScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View

SERVERS_TIMEOUT, WORKERS_TIMEOUT = timedelta(hours=1), timedelta(hours=4)
REPORT_TIMEOUT = timedelta(minutes=10)
"""From the delivery of the task. The download may take minutes, and a new agent that does not come up is replaced by
the previous one after five minutes."""
ATTEMPTS = 3


def served_agent(view: View) -> ServedAgent | None:
    return ServedAgent.of(view.setting(settings.SERVED_NODE_AGENT))


def _states(scope: OperationScope, chosen: Callable[[Roles], bool] = lambda _roles: True) -> dict[str, AgentState]:
    """States of the agents of machines that have run a plan, by the name of the machine."""
    served, found = served_agent(scope.planning.view), {}
    for entry in scope.machines:
        if served is not None and entry.plan.has_run_a_plan and chosen(entry.roles):
            found[entry.name] = served.compare(entry.plan.agent_version, entry.plan.agent_checksum)
    return found


def _redeploy(field: str, chosen: Callable[[Roles], bool]) -> Callable[[OperationScope], Sequence[Batch]]:
    """The machines in progress, and as many others as the strategy allows beside them; none once all are done.

    Machines that do not respond come last: each of them takes one of these places, until it is skipped.
    """

    def batches(scope: OperationScope) -> Sequence[Batch]:
        states = _states(scope, chosen)
        outdated = {name for name, state in states.items() if state.is_redeployed}
        waiting = [entry for entry in scope.machines if entry.name in outdated.difference(scope.run.skipped)]
        limit = limit_of(scope.planning.strategy.get(field), len(states), f"upgradeStrategy.{field}")

        def order(entry: PlanEntry) -> tuple[bool, bool, str]:
            is_begun = scope.run.is_own_phase(entry.annotations.get(PLAN_TASK, ""))
            return not is_begun, is_lost(entry.machine) or scope.is_silent(entry), entry.name

        ordered = sorted(waiting, key=order)
        return [
            withdrawals(scope),
            [_step(scope, entry) for entry in (ordered if limit == UNLIMITED else ordered[:limit])],
        ]

    return batches


def _step(scope: OperationScope, entry: PlanEntry) -> Step:
    view, served = scope.planning.view, served_agent(scope.planning.view)
    assert served is not None  # otherwise there are no states, and so no steps
    url = f"{view.setting(settings.SERVER_URL).rstrip('/')}/assets/{ASSET}"
    task = RedeployAgent(scope.run.mark, served, url, view.setting(settings.SERVER_CERTIFICATES).strip())
    missing = f"its agent has not reported itself as version {served.version} ({served.checksum[:12]})"
    return Step(entry, task, missing=missing, report_timeout=REPORT_TIMEOUT)


def _names(entries: Sequence[PlanEntry]) -> str:
    return messages.name_machines("machine(s)", entries, {})


@dataclass(frozen=True)
class NodeAgents:
    """`redeploySystemAgentGeneration`."""

    kind: str = operations.AGENTS
    title: str = operations.TITLES[operations.AGENTS]
    end: str = FINISHED
    phases: Sequence[Phase] = (
        Phase(
            "Servers",
            _redeploy("controlPlaneConcurrency", lambda roles: roles.is_server),
            SERVERS_TIMEOUT,
            attempts=ATTEMPTS,
        ),
        Phase(
            "Workers",
            _redeploy("workerConcurrency", lambda roles: roles.only_worker),
            WORKERS_TIMEOUT,
            attempts=ATTEMPTS,
            skips_workers=True,
        ),
        Phase("RestartCluster", restore_plans, RESTORE_PLAN_TIMEOUT),
    )

    def is_requested(self, scope: PlanScope) -> bool:
        return is_new_request(scope, self.kind)

    def preflight(self, scope: OperationScope) -> str:
        view = scope.planning.view
        if served_agent(view) is None:
            return "the manager serves no node agent"
        if not view.setting(settings.SERVER_URL).startswith("https://"):
            return f"setting {settings.SERVER_URL}: not an https URL; machines cannot download the agent"
        if name := own_source(scope.planning.spec):
            return f"spec.agentEnvVars: {name} names another source of the agent; redeploy it from there, or remove it"
        states = _states(scope)
        windows = [
            entry
            for entry in scope.machines
            if entry.plan.is_windows and entry.name in states and states[entry.name].is_redeployed
        ]
        if windows:
            return (
                f"{_names(windows)} run Windows, whose agent cannot be redeployed; run the registration command there"
            )
        return ""

    def inverse(self, scope: OperationScope) -> Mapping[str, str]:
        states = _states(scope)
        newer = [entry for entry in scope.machines if states.get(entry.name) is AgentState.NEWER]
        kept = f"; {_names(newer)} keep their agents, which are newer than that of the manager" if newer else ""
        return {"message": f"there is nothing to undo: an agent that does not come up is replaced by the old one{kept}"}

    def leader(self, scope: OperationScope) -> str:
        return ""

    def status(self, run: Run, scope: PlanScope) -> Object:
        return {}


NODE_AGENTS = NodeAgents()
