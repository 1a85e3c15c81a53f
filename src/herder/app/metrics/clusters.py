"""Metrics of clusters, machines and the plans of nodes.

Indexes of the caches count by state while objects change. So a scrape costs as much as there are states, whatever the
number of objects is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from herder.api import observe_only
from herder.api.capi.conditions import is_true
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import is_deleting
from herder.api.management.clusters import has_connected, is_connected
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.agents import AgentState, ServedAgent
from herder.api.rke.node.plan_secret import FAILURE_COUNT, PlanSecret
from herder.api.settings import SERVED_NODE_AGENT
from herder.engine.control.cache import Cache, Change
from herder.engine.control.metric_family import MetricFamily, counter, gauge
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.manager import Manager

if TYPE_CHECKING:
    from prometheus_client.core import Metric

INDEX, AGENT_INDEX = "metrics", "metrics-agent"
CLUSTER_STATES = ("ready", "not-ready", "deleting")
CONNECTIONS = ("connected", "disconnected", "never-connected")
MACHINE_PHASES = ("Pending", "Provisioning", "Provisioned", "Running", "Updating", "Deleting", "Deleted", "Failed")
OTHER = "other"

CLUSTERS = gauge("herder_clusters", "Provisioned clusters by state: ready, not-ready or deleting", "state")
OBSERVED = gauge(
    "herder_observe_only_clusters", "Clusters that the manager only observes since it was restored, until herder resume"
)
AGENTS = gauge(
    "herder_cluster_agents",
    "Managed clusters by the state of their agent: connected, disconnected or never-connected",
    "state",
)
MACHINES = gauge("herder_machines", "Machines by phase, of all clusters", "phase")
PLANS = gauge(
    "herder_node_plans",
    "Machines of a cluster by the state of their plan: none, in-progress, applied, unhealthy (probes fail) or failed",
    "namespace",
    "cluster",
    "state",
)
PLAN_FAILURES = counter("herder_node_plan_failures_total", "Attempts to apply a plan that node agents reported failed")
NODE_AGENTS = gauge(
    "herder_node_agents",
    "Node agents by program: current (that of the manager), outdated, newer, or unreported",
    "state",
)
FAMILIES = (CLUSTERS, OBSERVED, AGENTS, MACHINES, PLANS, PLAN_FAILURES, NODE_AGENTS)


def cluster_state(cluster: Object) -> Iterable[str]:
    if is_deleting(cluster):
        return ("deleting",)
    return ("ready" if is_true(cluster, "Ready") else "not-ready",)


def agent_connection(management: Object) -> Iterable[str]:
    if is_connected(management):
        return ("connected",)
    return ("disconnected" if has_connected(management) else "never-connected",)


def machine_phase(machine: Object) -> Iterable[str]:
    phase = (machine.get("status") or {}).get("phase") or "Pending"
    return (phase if phase in MACHINE_PHASES else OTHER,)


def plan_state(secret: Object) -> Iterable[str]:
    """Namespace, cluster and state, separated by tabs, which none of them contains."""
    plan = PlanSecret(secret)
    if not plan.has_plan:
        state = "none"
    elif plan.failed:
        state = "failed"
    elif not plan.in_sync:
        state = "in-progress"
    else:
        state = "applied" if plan.healthy else "unhealthy"
    return ("\t".join((secret["metadata"]["namespace"], plan.labels.get(names.CLUSTER_NAME, ""), state)),)


def reported_agent(secret: Object) -> Iterable[str]:
    plan = PlanSecret(secret)
    return (f"{plan.agent_version}\t{plan.agent_checksum}",)


def add_cluster_metrics(manager: Manager, setting: Callable[[str], str]) -> None:
    manager.metrics.registry.register(_Collector(manager, setting))


class _Collector:
    def __init__(self, manager: Manager, setting: Callable[[str], str]) -> None:
        self._setting = setting
        self._plan_failures = 0
        self._observed = manager.caches.get(PROVISIONING_CLUSTER)
        self._clusters = _indexed(manager, PROVISIONING_CLUSTER, cluster_state)
        self._agents = _indexed(manager, MANAGEMENT_CLUSTER, agent_connection)
        self._machines = _indexed(manager, MACHINE, machine_phase)
        self._plans = _indexed(manager, PLAN_SECRET, plan_state)
        if self._plans is not None:
            self._plans.add_indexer(AGENT_INDEX, reported_agent)
            manager.listen(PLAN_SECRET, self._count_failure)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        if self._clusters is not None:
            yield _states(CLUSTERS, self._clusters, CLUSTER_STATES)
        if self._observed is not None:
            yield OBSERVED.sample(self._observed.count((observe_only.INDEX, observe_only.MARKED)))
        if self._agents is not None:
            yield _states(AGENTS, self._agents, CONNECTIONS)
        if self._machines is not None:
            yield _states(MACHINES, self._machines, (*MACHINE_PHASES, OTHER))
        if self._plans is not None:
            yield _plan_states(self._plans)
            yield PLAN_FAILURES.sample(self._plan_failures)
            yield self._node_agents(self._plans)

    def _node_agents(self, plans: Cache) -> Metric:
        """Agents report what they like, so their reports are compared here, and are no labels."""
        served = ServedAgent.of(self._setting(SERVED_NODE_AGENT))
        counts = dict.fromkeys((each.value for each in AgentState), 0)
        for value in plans.values(AGENT_INDEX):
            version, _, checksum = value.partition("\t")
            state = served.compare(version, checksum) if served is not None else AgentState.UNREPORTED
            counts[state.value] += plans.count((AGENT_INDEX, value))
        family = NODE_AGENTS.samples()
        for name, count in counts.items():
            family.add_metric([name], count)
        found: Metric = family
        return found

    def _count_failure(self, change: Change) -> None:
        """One per change: the number in a report is the node's, and may be anything."""
        if change.old is None or change.new is None:
            return
        before, after = PlanSecret(change.old), PlanSecret(change.new)
        counts = before.number(FAILURE_COUNT), after.number(FAILURE_COUNT)
        self._plan_failures += counts[1] > counts[0] or (after.failed and not before.failed)


def _indexed(manager: Manager, kind: Kind, index: Callable[[Object], Iterable[str]]) -> Cache | None:
    """The cache with an index by state; None if the manager does not watch the kind."""
    cache = manager.caches.get(kind)
    if cache is not None:
        cache.add_indexer(INDEX, index)
    return cache


def _states(family: MetricFamily, cache: Cache, states: Iterable[str]) -> Metric:
    found = family.samples()
    for state in states:
        found.add_metric([state], cache.count((INDEX, state)))
    metric: Metric = found
    return metric


def _plan_states(plans: Cache) -> Metric:
    family = PLANS.samples()
    for value in plans.values(INDEX):
        family.add_metric(value.split("\t"), plans.count((INDEX, value)))
    found: Metric = family
    return found
