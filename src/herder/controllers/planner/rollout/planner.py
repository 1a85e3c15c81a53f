"""One planner pass over an RKEControlPlane: check the spec, elect the init node, then roll out plans tier by tier.

The pass is a pure function of its scope. It stops at the first tier that is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from herder.api import observe_only
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import annotations_of, is_paused
from herder.api.guards.plans import lowered_version, skipped_minors
from herder.api.management import secret_sync
from herder.api.rke import names, operations
from herder.api.rke.distributions import release_in, release_of, skip_error
from herder.api.rke.etcd.encryption import KeyState, keys_secret
from herder.api.rke.etcd.restore import restores_spec
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.operations import Run, active_run, suspension
from herder.api.writes import ref
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs, Roles
from herder.controllers.planner.distributions.tasks import Mode, RestoreSnapshot, SaveSnapshot, Task
from herder.controllers.planner.etcd.force_removal import force_remove_members
from herder.controllers.planner.operations.engine import RenderedTask, RenderTask, run_operation
from herder.controllers.planner.operations.restore import version_to_start
from herder.controllers.planner.operations.snapshots.before_upgrade import check_upgrade_snapshot
from herder.controllers.planner.plan.inputs import InputsNotReady, cluster_inputs, owns
from herder.controllers.planner.plan.machine_inputs import machine_inputs
from herder.controllers.planner.plan.render import Desired, Request, common_digest
from herder.controllers.planner.plan.tokens import redact_tokens
from herder.controllers.planner.rollout import messages
from herder.controllers.planner.rollout import tier as tiers
from herder.controllers.planner.rollout.agent_wait import AgentWait, wait_for_agent
from herder.controllers.planner.rollout.init_node import LOST, elect
from herder.controllers.planner.rollout.join import Servers, host_of, record_join_url
from herder.controllers.planner.rollout.machines import PlanEntry, entries_by_key
from herder.controllers.planner.rollout.scope import MachineStatus, PassEnded, PlanScope, RequeuePass, Result, earliest
from herder.controllers.planner.rollout.tier import RolloutContext, Tier, TierProgress, roll_out
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Parallel, Patch, effect_reason


def plan(scope: PlanScope) -> Result:
    """Run one pass."""
    result = Result(failure=messages.failure_of(scope.entries))
    try:
        _check_preconditions(scope, result)
        for step in _STEPS:
            step(scope, result)
    except RequeuePass:
        result.unfinished = True
    except PassEnded as ended:
        result.waiting = str(ended)
    except InputsNotReady as missing:
        results = (scope.view.result(effect.key) for effect in missing.effects)
        result.waiting = effect_reason(str(missing), *results)
        result.effects += missing.effects
    except ConfigError as error:
        result.error = str(error)
    return result


# --- preconditions ----------------------------------------------------------------------------------------------------


def _check_preconditions(scope: PlanScope, result: Result) -> None:
    """Suspend the operation in progress if the pass ends here: its deadlines do not expire meanwhile."""
    try:
        for step in _PRECONDITIONS:
            step(scope, result)
    except PassEnded:
        result.status |= suspension(scope.control_plane, scope.view.now)
        raise


def _check_observe_only(scope: PlanScope, _result: Result) -> None:
    """End the pass before it decides on data from a backup."""
    mark = observe_only.mark_of(scope.cluster)
    if mark is not None:
        raise PassEnded(observe_only.message(scope.cluster["metadata"]["name"], mark))


def _record_join_urls(scope: PlanScope, result: Result) -> None:
    """Record join URLs and the endpoint before anything else: plans depend on them."""
    port = scope.distribution.supervisor_port
    changes = [found for entry in scope.entries if (found := record_join_url(entry, port))] or _endpoint(scope)
    if changes:
        result.writes += [Parallel(tuple(changes))]
        raise RequeuePass


def _endpoint(scope: PlanScope) -> list[Patch]:
    """Set the control plane endpoint to the first joinable server; keep it while that server exists."""
    known = (scope.spec.get("controlPlaneEndpoint") or {}).get("host")
    ranked = sorted(scope.entries, key=lambda entry: (not entry.is_init, entry.name))
    serving = [host_of(entry.join_url) for entry in ranked if entry.is_joinable]
    beginning = [host_of(entry.join_url) for entry in ranked if entry.is_init and entry.join_url and not known]
    hosts = serving or beginning
    if not hosts or known in hosts:
        return []
    endpoint = {"host": hosts[0], "port": scope.distribution.api_port}
    why = "the control plane endpoint"
    return [Patch(ref(CONTROL_PLANE, scope.control_plane), {"spec": {"controlPlaneEndpoint": endpoint}}, why)]


def _check_machines(scope: PlanScope, result: Result) -> None:
    roles = [entry.roles for entry in scope.active_entries()]
    complete = any(each.etcd for each in roles) and any(each.control_plane for each in roles)
    if not complete or not (scope.up_to_date or any(each.worker for each in roles)):
        result.unstable = True
        result.initialized = False if scope.initialized else None
        forced = force_remove_members(scope.view, scope.entries)
        result.writes += forced.writes
        if forced.all_deleting:
            raise PassEnded("waiting for all etcd machines to be deleted")
        raise PassEnded(messages.with_failure(messages.NO_MACHINES, scope.entries))
    result.provisioned = True
    if is_paused(scope.cluster, scope.control_plane):
        raise PassEnded(messages.PAUSED)


def _check_etcd_exists(scope: PlanScope, result: Result) -> None:
    """Never bootstrap again silently: only a restore can continue a cluster whose etcd machines are gone."""
    was_planned = scope.established or any(entry.joined_to for entry in scope.entries)
    if was_planned and not any(entry.roles.etcd and entry.plan.has_plan for entry in scope.entries):
        result.unstable = True
        raise PassEnded(LOST)


def _check_no_downgrade(scope: PlanScope, _result: Result) -> None:
    """Reject a downgrade: an older version may not be able to read what a newer one has stored.

    Only servers count. A worker that reports a wrong version must not block the whole cluster. A server whose version
    has been lowered by a restore reports its old version for a while.
    """
    wanted = scope.spec.get("kubernetesVersion") or ""
    known = [str((scope.status.get("appliedSpec") or {}).get("kubernetesVersion") or "")]
    known += [
        str(entry.node_info.get("kubeletVersion") or "")
        for entry in scope.active_entries()
        if entry.roles.is_server and not _is_lowered(entry, wanted)
    ]
    highest = max(known, key=_version_key)
    if _version_key(highest) > _version_key(wanted):
        raise ConfigError(
            f"spec.kubernetesVersion: {wanted} is lower than {highest}, which the cluster has; go back, or restore "
            "a snapshot of the older version together with its version"
        )


def _is_lowered(entry: PlanEntry, wanted: str) -> bool:
    """Whether a server has applied the version, though its Node may still report the one before."""
    return release_in(entry.plan.applied_plan) == release_of(wanted) and not entry.plan.newer_applied


def _check_version_skip(scope: PlanScope, _result: Result) -> None:
    """Reject an upgrade that skips minor versions: each version converts stored objects for the next one only.

    Only servers count. A worker that reports an old kubelet must not block the upgrade of the whole cluster; a guard
    checks its own plan.
    """
    wanted = scope.spec.get("kubernetesVersion") or ""
    known = [release_of(str((scope.status.get("appliedSpec") or {}).get("kubernetesVersion") or ""))]
    for entry in scope.active_entries():
        if entry.roles.is_server:
            known += [release_of(str(entry.node_info.get("kubeletVersion") or "")), release_in(entry.plan.applied_plan)]
    found = [each for each in known if each is not None]
    if found and (reason := skip_error(min(found), wanted, annotations_of(scope.control_plane))):
        raise ConfigError(f"spec.kubernetesVersion: {reason}")


def _version_key(version: str) -> tuple[int, ...]:
    """Sort key of a version; an invalid one is the lowest."""
    return release_of(version) or ()


def _run_operation(scope: PlanScope, result: Result) -> None:
    """Operations come before the rollout: it must not change machines that a task works on."""

    def render() -> RenderTask:
        inputs = _plan_inputs(scope)

        def rendered(entry: PlanEntry, task: Task) -> RenderedTask:
            if isinstance(task, RestoreSnapshot):
                machine = inputs.first_machine(entry)
            else:
                machine = inputs.machine(entry, must_join=task.mode is Mode.RENDERED)
            cluster = _inputs_for_task(scope, inputs.cluster, task)
            return RenderedTask(scope.distribution.task(cluster, machine, task), machine.join_url)

        return rendered

    run_operation(scope, render, result)


def _inputs_for_task(scope: PlanScope, cluster: ClusterInputs, task: Task) -> ClusterInputs:
    """Inputs of a task that works on the cluster as it is, although the spec names another version already."""
    run = active_run(scope.control_plane)
    if run is not None and run.phase == operations.ABORT_PHASE:
        return replace(cluster, version=version_to_start(scope))
    previous = annotations_of(scope.control_plane).get(names.PREVIOUS_SPEC, "")
    if isinstance(task, SaveSnapshot) and run is not None and _precedes_spec(scope, run) and previous:
        version = str((scope.status.get("appliedSpec") or {}).get("kubernetesVersion") or cluster.version)
        annotations = {**cluster.annotations, names.CLUSTER_SPEC: previous}
        return replace(cluster, version=version, annotations=annotations)
    return cluster


def _precedes_spec(scope: PlanScope, run: Run) -> bool:
    """Whether the operation works before the current spec is applied."""
    if run.kind == operations.UPGRADE_SNAPSHOT:
        return True
    return run.kind == operations.RESTORE and restores_spec(scope.status.get(operations.RESTORE))


# --- tiers ------------------------------------------------------------------------------------------------------------


def _roll_out(scope: PlanScope, result: Result) -> None:
    """Servers first, because workers join them. Problems of single machines are reported last."""
    wait = _agent_wait(scope)
    result.wake_at = earliest(result.wake_at, wait.due)
    context = _rollout_context(scope, wait)
    result.status |= _first_key(scope)
    init = _init_node(scope, result)
    result.bootstrapped = True
    ignored = [*_roll_out_servers(scope, context, init, result)]
    if not any(entry.is_joinable for entry in scope.entries):
        raise PassEnded(messages.NO_CONTROL_PLANE)
    if not scope.initialized:
        result.initialized = True
        raise PassEnded(messages.INITIALIZING)
    ignored += _roll_out_workers(scope, context, result)
    if problem := next(filter(None, ignored), ""):
        raise PassEnded(problem)


def _roll_out_servers(scope: PlanScope, context: RolloutContext, init: PlanEntry, result: Result) -> Iterator[str]:
    """Bootstrap, etcd and control plane tiers. Etcd machines share one budget across the tiers."""
    strategy = scope.strategy
    drain, concurrency = strategy.get("controlPlaneDrainOptions") or {}, strategy.get("controlPlaneConcurrency")
    etcd = [entry for entry in scope.active_entries() if entry.roles.etcd]
    first, joining = [entry for entry in etcd if entry is init], [entry for entry in etcd if entry is not init]
    problem = _roll_out_tier(Tier(tiers.BOOTSTRAP, first, etcd, drain=drain), context, result)
    if not init.join_url:
        raise PassEnded(
            f"{problem} and join url to be available on bootstrap node" if problem else messages.NO_JOIN_URL
        )
    yield problem
    yield _roll_out_tier(Tier(tiers.ETCD, joining, etcd, drain=drain), context, result)
    planes = [entry for entry in scope.active_entries() if entry.roles.control_plane]
    others = [entry for entry in planes if entry is not init]
    yield _roll_out_tier(Tier(tiers.CONTROL_PLANE, others, planes, str(concurrency or "1"), drain), context, result)


def _roll_out_workers(scope: PlanScope, context: RolloutContext, result: Result) -> Iterator[str]:
    strategy = scope.strategy
    drain, concurrency = strategy.get("workerDrainOptions") or {}, str(strategy.get("workerConcurrency") or "1")
    unchanged = {state: keys for state, keys in scope.up_to_date.items() if context.is_up_to_date(state)}
    wanted = [key for state, keys in scope.up_to_date.items() if state not in unchanged for key in keys]
    workers = [entry for entry in scope.active_entries() if entry.roles.only_worker and not entry.is_init]
    workers = sorted([*workers, *entries_by_key(scope.view, wanted)], key=lambda entry: entry.name)
    for windows in (False, True):
        members = [entry for entry in workers if entry.plan.is_windows is windows]
        up_to_date = sum(len(keys) for state, keys in unchanged.items() if state.windows is windows)
        tier = Tier(tiers.WORKER, members, members, concurrency, drain, 5 if windows else 1, up_to_date=up_to_date)
        yield _roll_out_tier(tier, context, result)


def _roll_out_tier(tier: Tier, context: RolloutContext, result: Result) -> str:
    """Roll out one tier and return problems that delay nothing. Ends the pass if the tier is not done."""
    progress = roll_out(tier, context)
    result.writes += [Parallel(tuple(progress.writes))] if progress.writes else []
    result.writes += [Parallel(tuple(progress.records))] if progress.records else []
    result.plans = result.plans or bool(progress.writes)
    _record_progress(progress, context, result)
    result.error = result.error or progress.error
    if waiting := progress.waiting(tier.name):
        raise PassEnded(waiting)
    return progress.ignored(tier.name)


def _record_progress(progress: TierProgress, context: RolloutContext, result: Result) -> None:
    for entry in (*progress.uncordoning, *progress.draining, *progress.configuring):
        result.machine_statuses.append(MachineStatus(entry, progress.details[entry.name]))
    result.machine_statuses += [MachineStatus(entry) for entry in progress.ready]
    wakes = [due for entry in progress.configuring if (due := messages.reminder_time(entry)) and due > context.now]
    result.wake_at = earliest(result.wake_at, *wakes)


def _init_node(scope: PlanScope, result: Result) -> PlanEntry:
    designated = (scope.control_plane["metadata"].get("labels") or {}).get(names.INIT_NODE_MACHINE_ID, "")
    election = elect(scope.entries, designated, established=scope.established)
    result.writes += election.writes
    result.plans = result.plans or bool(election.writes)
    if election.writes:
        raise RequeuePass
    if election.init is None:
        result.unstable = election.waiting == LOST
        raise PassEnded(messages.with_failure(election.waiting, scope.entries))
    return election.init


@dataclass(frozen=True)
class _PlanInputs:
    """Inputs of the plans of a pass."""

    scope: PlanScope
    cluster: ClusterInputs
    servers: Servers

    def machine(self, entry: PlanEntry, *, reports_agent: bool = False, must_join: bool = True) -> MachineInputs:
        """`must_join`: whether the plan needs a server to join, which does not exist while none is the init node."""
        joins = self.servers.server_for(entry)
        if must_join and not joins and not entry.is_init:
            where = f"{self.scope.view.namespace}/{entry.name}"
            raise InputsNotReady(f"no suitable join URL found to join machine {where} to")
        return machine_inputs(self.scope.view, entry, joins, reports_agent=reports_agent)

    def first_machine(self, entry: PlanEntry) -> MachineInputs:
        """Inputs of a machine that begins the cluster again and joins no server."""
        return replace(machine_inputs(self.scope.view, entry, ""), is_init=True)


def _plan_inputs(scope: PlanScope, *, pre_bootstrap: bool = False) -> _PlanInputs:
    servers = Servers(scope.entries)
    cluster = cluster_inputs(
        scope.view,
        scope.control_plane,
        scope.distribution,
        has_plans=bool(scope.up_to_date) or any(entry.plan.has_plan for entry in scope.entries),
        servers=servers.control_plane,
        pre_bootstrap=pre_bootstrap,
    )
    return _PlanInputs(scope, cluster, servers)


def _first_key(scope: PlanScope) -> Object:
    """Record that the cluster has a key of the manager: without the record, a lost Secret would go unnoticed."""
    if not scope.distribution.manages_keys or KeyState.of(scope.control_plane) is not None:
        return {}
    secret = scope.view.get(SECRET_METADATA, keys_secret(scope.view.name))
    return KeyState((1,), (1,)).to_status() if secret is not None and owns(scope.control_plane, secret) else {}


def _agent_wait(scope: PlanScope) -> AgentWait:
    if not scope.distribution.runs_agent_pod or not scope.spec.get("managementClusterName"):
        return AgentWait()
    return wait_for_agent(scope.active_entries(), connected=scope.agent_connected, now=scope.view.now)


def _rollout_context(scope: PlanScope, wait: AgentWait) -> RolloutContext:
    view, distribution = scope.view, scope.distribution
    redact = partial(redact_tokens, view, view.name)
    pre_bootstrap_problem = _pre_bootstrap_problem(scope)
    inputs = _plan_inputs(scope, pre_bootstrap=pre_bootstrap_problem is not None)
    cluster = inputs.cluster
    _check_roles(scope, cluster)

    def desired(entry: PlanEntry) -> Desired:
        machine = inputs.machine(entry, reports_agent=entry.name == wait.reporter)
        return Desired(entry, Request.of(distribution, cluster, machine))

    def refusal(entry: PlanEntry) -> str:
        wanted = release_of(cluster.version)
        if wanted is None:
            return ""
        return lowered_version(entry.plan, entry.machine, wanted) or skipped_minors(
            entry.plan, entry.machine, scope.control_plane, wanted
        )

    return RolloutContext(
        desired=desired,
        refusal=refusal,
        version=cluster.version,
        agent_connected=scope.agent_connected,
        agent_problem=redact(wait.problem),
        pre_bootstrap_problem=pre_bootstrap_problem,
        machines=scope.machines,
        now=view.now,
        common=common_digest(distribution, cluster.for_workers),
        joinable=inputs.servers.known,
        redact=redact,
    )


def _pre_bootstrap_problem(scope: PlanScope) -> str | None:
    """Why the pre-bootstrap Secrets are missing; None if they exist or the control plane is initialized already."""
    name, management = scope.spec.get("clusterName") or scope.view.name, scope.spec.get("managementClusterName")
    if scope.initialized or not management:
        return None
    return secret_sync.pre_bootstrap_problem(scope.view, f"{scope.view.namespace}/{name}", management)


def _check_roles(scope: PlanScope, cluster: ClusterInputs) -> None:
    active_entries = {f"machine {entry.name}": entry.roles for entry in scope.active_entries()}
    active_entries |= {"workers": Roles(worker=True)} if scope.up_to_date else {}
    for who, roles in active_entries.items():
        if why := scope.distribution.refusal(cluster, roles):
            raise ConfigError(f"{who}: {why}")


_PRECONDITIONS: tuple[Callable[[PlanScope, Result], None], ...] = (
    _check_observe_only,
    _record_join_urls,
    _check_machines,
)
_STEPS: tuple[Callable[[PlanScope, Result], None], ...] = (
    _run_operation,
    _check_etcd_exists,
    _check_no_downgrade,
    _check_version_skip,
    check_upgrade_snapshot,
    _roll_out,
)
