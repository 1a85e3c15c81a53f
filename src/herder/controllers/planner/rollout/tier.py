"""Roll out plans to one tier of machines (bootstrap, etcd, control plane or worker).

A tier respects the upgrade strategy: it disturbs at most `concurrency` machines at a time, drains a node before a
disruptive plan, and never takes etcd below quorum. Machines whose plan failed are retried before healthy ones are
disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from herder.api.rke.distributions import release_of
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.machines.strategy import UNLIMITED, BadConcurrency, is_lost, limit_of, quorum
from herder.api.rke.names import DRAIN_DONE
from herder.controllers.planner.drain import request as draining
from herder.controllers.planner.drain.request import Options, Stage
from herder.controllers.planner.plan.inputs import InputsNotReady
from herder.controllers.planner.plan.render import Desired
from herder.controllers.planner.plan.writes import deliver, record_inputs
from herder.controllers.planner.rollout import messages
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.up_to_date import WorkerState
from herder.engine.runtime.decision import Patch

BOOTSTRAP, ETCD, CONTROL_PLANE, WORKER = "bootstrap", "etcd", "control plane", "worker"


@dataclass(frozen=True)
class Tier:
    """The machines of a tier and how its plans are rolled out."""

    name: str
    members: Sequence[PlanEntry]  # machines to plan for
    up_to_date: int = field(default=0, kw_only=True)  # number of further members that are up to date
    counted: Sequence[PlanEntry]  # machines whose disruption counts against the budget
    concurrency: str = "1"  # a number, a percentage of the members, or "0" for no limit
    drain: Options = field(default_factory=dict)
    failure_threshold: int = 1


@dataclass(frozen=True)
class RolloutContext:
    """Facts about the cluster that all tiers of a pass share."""

    desired: Callable[[PlanEntry], Desired]
    version: str  # of Kubernetes
    agent_connected: bool
    machines: int  # of the whole cluster
    now: datetime
    common: str = ""  # digest of the inputs that all workers' plans share
    joinable: Collection[str] = ()  # join URLs of servers
    agent_problem: str = ""  # why the pod of the cluster agent does not start, if known
    pre_bootstrap_problem: str | None = None  # why pre-bootstrap Secrets are missing; None if it is complete
    refusal: Callable[[PlanEntry], str] = lambda _entry: ""  # why a guard refuses another plan for a worker
    redact: Callable[[str], str] = lambda text: text  # redacts join tokens in what machines report

    def is_up_to_date(self, state: WorkerState) -> bool:
        """Whether the cluster wants nothing else of an idle worker."""
        return state.common == self.common and state.joined_to in self.joinable and self.is_current(state.kubelet)

    def is_current(self, kubelet: str) -> bool:
        """Whether the kubelet has the cluster's version. Assume so while the cluster cannot be reached."""
        return not kubelet or not self.agent_connected or release_of(kubelet) == release_of(self.version)


@dataclass
class TierProgress:
    """Writes that a tier needs, and its machines by state."""

    writes: list[Patch] = field(default_factory=list)
    records: list[Patch] = field(default_factory=list)  # digests only; they change no plan
    configuring: list[PlanEntry] = field(default_factory=list)
    draining: list[PlanEntry] = field(default_factory=list)
    uncordoning: list[PlanEntry] = field(default_factory=list)
    ready: list[PlanEntry] = field(default_factory=list)
    failing: list[PlanEntry] = field(default_factory=list)
    not_ready: list[PlanEntry] = field(default_factory=list)
    details: dict[str, list[str]] = field(default_factory=dict)
    shared_detail: str = ""  # what several machines wait for; the message names it once
    errors: list[str] = field(default_factory=list)  # why some machines cannot be planned for
    error: str = ""  # set if no machine can be planned for: then the cluster's spec is wrong

    def waiting(self, tier: str) -> str:
        """Why later tiers must wait; empty if this tier is done."""
        groups = (
            (f"uncordoning {tier} node(s)", self.uncordoning),
            (f"draining {tier} node(s)", self.draining),
            (f"configuring {tier} node(s)", self.configuring),
        )
        doing, who = next(((doing, who) for doing, who in groups if who), ("", []))
        shared = f": {self.shared_detail}" if self.shared_detail and len(who) > 1 else ""
        return messages.name_machines(doing, who, self.details) + shared if who else ""

    def ignored(self, tier: str) -> str:
        """Problems of single machines that do not delay later tiers."""
        groups = ((f"failing {tier} machine(s)", self.failing), (f"non-ready {tier} machine(s)", self.not_ready))
        return next((messages.name_machines(what, who, self.details) for what, who in groups if who), "")


def roll_out(tier: Tier, context: RolloutContext) -> TierProgress:
    """Decide which machines of the tier receive a new plan in this pass, and report what each one waits for."""
    progress = TierProgress()
    plannable = [desired for entry in tier.members if (desired := _desired(tier, entry, context, progress)) is not None]
    budget = _DisruptionBudget(tier)
    for desired in plannable:
        _roll_out_machine(tier, desired, context, budget, progress)
    progress.error = progress.errors[0] if progress.errors and not plannable and not tier.up_to_date else ""
    if budget.exhausted:
        _uncordon_machines_of_later_tiers(tier, progress)
        _repair_machines_of_later_tiers(tier, context, budget, progress)
    return progress


def _uncordon_machines_of_later_tiers(tier: Tier, progress: TierProgress) -> None:
    """Uncordon drained machines of later tiers that have no plan in flight.

    They count against this tier's budget, and their own tier is not planned until this one is done: without this, the
    two tiers would wait for each other. Such a machine is drained again when its tier's turn comes.
    """
    members = {entry.name for entry in tier.members}
    for entry in tier.counted:
        if entry.name not in members and entry.in_drain and not entry.plan.is_down:
            progress.details.setdefault(entry.name, [])
            _uncordon(entry, progress)


def _repair_machines_of_later_tiers(
    tier: Tier, context: RolloutContext, budget: _DisruptionBudget, progress: TierProgress
) -> None:
    """Deliver the desired plan to machines of later tiers whose plan failed.

    They count against this tier's budget too, and the plan that failed is not always retried. An upgrade does not start
    with them: it starts with the machines of this tier.
    """
    if not all(context.is_current(str(entry.node_info.get("kubeletVersion") or "")) for entry in tier.members):
        return
    members = {entry.name for entry in tier.members}
    repairs = TierProgress()
    for entry in tier.counted:
        if entry.name not in members and entry.plan.failed and not entry.is_paused:
            desired = _desired(tier, entry, context, repairs)
            if desired is not None and desired.differs:
                _roll_out_machine(tier, desired, context, budget, repairs)
    progress.writes += repairs.writes


def _desired(tier: Tier, entry: PlanEntry, context: RolloutContext, progress: TierProgress) -> Desired | None:
    """The desired plan; None if the machine cannot be planned for yet, which must not delay the others."""
    details = progress.details.setdefault(entry.name, [])
    problem, wait = messages.machine_problem(entry.machine), messages.machine_wait(entry.machine)
    if problem:
        progress.failing.append(entry)
        details.append(problem)
    elif wait:
        progress.not_ready.append(entry)
        details.append(wait)
    try:
        desired = context.desired(entry)
        return _check_guards(desired, context) if tier.name == WORKER else desired
    except InputsNotReady as missing:
        if missing.effects:
            raise
        details.append(str(missing))
        if entry not in progress.not_ready:
            progress.not_ready.append(entry)
        return None
    except ConfigError as error:
        if tier.name != WORKER:
            raise
        details.append(str(error))
        progress.errors.append(str(error))
        progress.failing += [entry] if entry not in progress.failing else []
        return None


def _check_guards(desired: Desired, context: RolloutContext) -> Desired:
    """Raise ConfigError or InputsNotReady if a worker cannot get its plan.

    Workers control what they report, so a bad report of one worker must not stop the rollout to the others.
    """
    entry = desired.entry
    is_needed = desired.differs if entry.plan.has_plan else bool(desired.plan)
    if is_needed and (refusal := context.refusal(entry)):
        raise InputsNotReady(refusal)
    return desired


def _roll_out_machine(
    tier: Tier, desired: Desired, context: RolloutContext, budget: _DisruptionBudget, progress: TierProgress
) -> None:
    """Decide the next step of one machine. The order of the cases matters."""
    entry, details = desired.entry, progress.details[desired.entry.name]
    status = context.redact(messages.plan_status(entry, context.now))
    if status:
        details.append(status)
    if entry.is_paused and (desired.differs or not entry.plan.has_plan):
        progress.configuring.append(entry)
        details.append("Machine is paused; its plan does not change until it is resumed")
    elif not entry.plan.has_plan or desired.is_minor:
        budget.count(desired)
        progress.configuring.append(entry)
        progress.writes.append(deliver(desired, context.now, failure_threshold=tier.failure_threshold))
    elif desired.differs:
        _roll_out_disruptive_plan(tier, desired, context, budget, progress)
    elif status:
        progress.configuring.append(entry)
    elif not _uncordon(entry, progress):
        progress.uncordoning.append(entry)
    elif not context.is_current(str(entry.node_info.get("kubeletVersion") or "")):
        progress.configuring.append(entry)
        details.append("waiting for kubelet to update")
    elif entry.roles.control_plane and context.pre_bootstrap_problem is not None:
        progress.configuring.append(entry)
        details.append(messages.pre_bootstrap_message(context.pre_bootstrap_problem))
        details += [messages.agent_message(context.agent_problem)] if context.agent_problem else []
    elif entry.roles.control_plane and not context.agent_connected:
        progress.configuring.append(entry)
        details.append(messages.agent_message(context.agent_problem))
        progress.shared_detail = details[-1] if context.agent_problem else ""
    else:
        progress.ready.append(entry)
        progress.records += [] if desired.is_recorded else [record_inputs(desired)]


def _roll_out_disruptive_plan(
    tier: Tier, desired: Desired, context: RolloutContext, budget: _DisruptionBudget, progress: TierProgress
) -> None:
    """Write a disruptive plan if the budget admits the machine, after a drain if the strategy requires one."""
    entry, details = desired.entry, progress.details[desired.entry.name]
    if not budget.admits(entry):
        progress.configuring.append(entry)
        if budget.lost:
            details.append(f"waiting for unreachable etcd members: {', '.join(sorted(budget.lost))}")
        elif budget.broken_in_later_tiers:
            details.append(f"waiting for unhealthy machines: {', '.join(sorted(budget.broken_in_later_tiers))}")
        return
    stage, write = draining.drain(desired, tier.drain, context.machines)
    if stage is Stage.DONE:
        progress.configuring.append(entry)
        progress.writes.append(deliver(desired, context.now, failure_threshold=tier.failure_threshold))
        details.append("drain completed" if entry.annotations.get(DRAIN_DONE) else messages.NOT_APPLIED)
        return
    progress.writes += [write] if write else []
    progress.draining.append(entry)
    details.append(draining.problem(entry, "draining") or "draining node")


def _uncordon(entry: PlanEntry, progress: TierProgress) -> bool:
    stage, write = draining.uncordon(entry)
    progress.writes += [write] if write else []
    if stage is not Stage.DONE:
        message = draining.problem(entry, "undraining") or "waiting for uncordon to finish"
        progress.details[entry.name].append(message)
    return stage is Stage.DONE


# --- disruption budget ------------------------------------------------------------------------------------------------


class _DisruptionBudget:
    """Limits how many machines of a tier are disturbed at a time.

    Broken machines come before healthy ones, but count too: an unhealthy machine may still serve others.
    """

    def __init__(self, tier: Tier) -> None:
        self._concurrency = _concurrency(tier)
        self._disrupted = {entry.name for entry in tier.counted if _is_disrupted(entry)}
        self._broken = {entry.name for entry in tier.counted if entry.plan.is_broken} - self._disrupted
        self.broken_in_later_tiers = self._broken - {entry.name for entry in tier.members}
        self.lost = _lost_etcd_members(tier) - self._disrupted - self._broken
        self.exhausted = False  # at least one machine was not admitted

    def count(self, desired: Desired) -> None:
        """Count a machine that gets a minor plan without admission, so that later machines of the pass see it."""
        if desired.is_minor:
            self._disrupted.add(desired.entry.name)

    def admits(self, entry: PlanEntry) -> bool:
        taken = (
            self._disrupted if entry.name in self._broken else self._disrupted | self._broken | self.lost - {entry.name}
        )
        if not (entry.in_drain or self._concurrency == UNLIMITED or len(taken) < self._concurrency):
            self.exhausted = True
            return False
        self._disrupted.add(entry.name)
        self._broken.discard(entry.name)
        return True


def _lost_etcd_members(tier: Tier) -> set[str]:
    """Lost etcd members, if disturbing one more member would cost the quorum."""
    members = [entry for entry in tier.counted if entry.roles.etcd and entry.plan.has_applied_plan]
    lost = {entry.name for entry in members if is_lost(entry.machine)}
    return lost if len(members) - len(lost) - 1 < quorum(len(members)) else set()


def _is_disrupted(entry: PlanEntry) -> bool:
    """Whether the machine is drained or applies a plan. A first plan disturbs nothing, unless it joins etcd."""
    plannable = entry.plan.has_run_a_plan or entry.roles.etcd
    return entry.in_drain or (entry.plan.is_moving and plannable)


def _concurrency(tier: Tier) -> int:
    try:
        return limit_of(tier.concurrency, len(tier.members) + tier.up_to_date)
    except BadConcurrency as wrong:
        raise ConfigError(str(wrong)) from None
