"""A tier of machines, brought to its plans: as many at a time as the strategy allows, each in a safe order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from herder.api.rke.distributions import release_of
from herder.api.rke.names import DRAIN_DONE
from herder.api.rke.strategy import UNLIMITED, BadConcurrency, is_lost, limit_of, quorum
from herder.controllers.planner import draining, messages
from herder.controllers.planner.distributions.interface import ConfigError
from herder.controllers.planner.draining import Options, Stage
from herder.controllers.planner.entries import Entry
from herder.controllers.planner.inputs import Lacking
from herder.controllers.planner.plan_writes import deliver, marked
from herder.controllers.planner.rendering import Desired
from herder.controllers.planner.resting import Rest
from herder.engine.runtime.decision import Patch

BOOTSTRAP, ETCD, CONTROL_PLANE, WORKER = "bootstrap", "etcd", "control plane", "worker"


@dataclass(frozen=True)
class Tier:
    name: str
    members: Sequence[Entry]  # who is brought to its plan
    resting: int = field(default=0, kw_only=True)  # how many more there are, which have theirs
    counted: Sequence[Entry]  # whose absence counts, members or not
    concurrency: str = "1"  # a number, a percentage of the members, or "0" for no limit
    drain: Options = field(default_factory=dict)
    failure_threshold: int = 1


@dataclass(frozen=True)
class Surroundings:
    """What is the same for all tiers of a pass."""

    desired: Callable[[Entry], Desired]
    version: str  # of Kubernetes
    agent_connected: bool
    machines: int  # of the whole cluster
    now: datetime
    common: str = ""  # digest of what all workers' plans are made of
    joinable: Collection[str] = ()  # URLs of servers
    outstanding: str | None = None  # why the cluster has not got what it must have first; None where it has

    def leaves_alone(self, rest: Rest) -> bool:
        """Whether a worker at rest has all that is wanted of it."""
        return rest.common == self.common and rest.joined_to in self.joinable and self.is_current(rest.kubelet)

    def is_current(self, kubelet: str) -> bool:
        """Unknown while the cluster cannot be reached: then nothing is held up by it."""
        return not kubelet or not self.agent_connected or release_of(kubelet) == release_of(self.version)


@dataclass
class Progress:
    """What was decided for a tier, and who stands where."""

    writes: list[Patch] = field(default_factory=list)
    marks: list[Patch] = field(default_factory=list)  # that change no plan
    configuring: list[Entry] = field(default_factory=list)
    draining: list[Entry] = field(default_factory=list)
    uncordoning: list[Entry] = field(default_factory=list)
    ready: list[Entry] = field(default_factory=list)
    failing: list[Entry] = field(default_factory=list)
    not_ready: list[Entry] = field(default_factory=list)
    details: dict[str, list[str]] = field(default_factory=dict)

    def waiting(self, tier: str) -> str:
        """Why later tiers are not looked at yet; empty where they are."""
        groups = (
            (f"uncordoning {tier} node(s)", self.uncordoning),
            (f"draining {tier} node(s)", self.draining),
            (f"configuring {tier} node(s)", self.configuring),
        )
        return next((messages.naming(doing, who, self.details) for doing, who in groups if who), "")

    def ignored(self, tier: str) -> str:
        """What is wrong with machines, but keeps nobody else waiting."""
        groups = ((f"failing {tier} machine(s)", self.failing), (f"non-ready {tier} machine(s)", self.not_ready))
        return next((messages.naming(what, who, self.details) for what, who in groups if who), "")


def bring(tier: Tier, around: Surroundings) -> Progress:
    progress = Progress()
    known = [desired for entry in tier.members if (desired := _desired(entry, around, progress)) is not None]
    budget = _Budget(tier)
    for desired in known:
        _bring_one(tier, desired, around, budget, progress)
    if budget.is_short:
        _end_drains_of_others(tier, progress)
    return progress


def _end_drains_of_others(tier: Tier, progress: Progress) -> None:
    """Of later tiers, which are not looked at before this one is done: what was drained there and has nothing under way
    takes pods again, and is drained anew when its turn has come. Else each tier would wait for the other."""
    members = {entry.name for entry in tier.members}
    for entry in tier.counted:
        if entry.name not in members and entry.in_drain and not entry.plan.is_down:
            progress.details.setdefault(entry.name, [])
            _undrained(entry, progress)


def _desired(entry: Entry, around: Surroundings, progress: Progress) -> Desired | None:
    """A machine that cannot be planned for yet keeps the others from nothing."""
    details = progress.details.setdefault(entry.name, [])
    problem, wait = messages.machine_problem(entry.machine), messages.machine_wait(entry.machine)
    if problem:
        progress.failing.append(entry)
        details.append(problem)
    elif wait:
        progress.not_ready.append(entry)
        details.append(wait)
    try:
        return around.desired(entry)
    except Lacking as lacking:
        if lacking.effects:
            raise
        details.append(str(lacking))
        if entry not in progress.not_ready:
            progress.not_ready.append(entry)
        return None


def _bring_one(tier: Tier, desired: Desired, around: Surroundings, budget: _Budget, progress: Progress) -> None:
    """The first of these that is so, in this order."""
    entry, details = desired.entry, progress.details[desired.entry.name]
    status = messages.plan_status(entry, around.now)
    if status:
        details.append(status)
    if entry.is_paused and (desired.differs or not entry.plan.has_plan):
        progress.configuring.append(entry)
        details.append("its plan is not changed while the Machine is paused")
    elif not entry.plan.has_plan or desired.is_minor:
        budget.count(desired)
        progress.configuring.append(entry)
        progress.writes.append(deliver(desired, around.now, failure_threshold=tier.failure_threshold))
    elif desired.differs:
        _change(tier, desired, around, budget, progress)
    elif status:
        progress.configuring.append(entry)
    elif not _undrained(entry, progress):
        progress.uncordoning.append(entry)
    elif not around.is_current(str(entry.node_info.get("kubeletVersion") or "")):
        progress.configuring.append(entry)
        details.append("waiting for kubelet to update")
    elif entry.roles.control_plane and around.outstanding is not None:
        progress.configuring.append(entry)
        details.append(messages.outstanding(around.outstanding))
    elif entry.roles.control_plane and not around.agent_connected:
        progress.configuring.append(entry)
        details.append("waiting for cluster agent to connect")
    else:
        progress.ready.append(entry)
        progress.marks += [] if desired.is_marked else [marked(desired)]


def _change(tier: Tier, desired: Desired, around: Surroundings, budget: _Budget, progress: Progress) -> None:
    """Another plan, which disturbs the node: when there is room for it, and after a drain where that is asked for."""
    entry, details = desired.entry, progress.details[desired.entry.name]
    if not budget.admits(entry):
        progress.configuring.append(entry)
        if budget.lost:
            details.append(f"waiting for etcd members that are not heard of: {', '.join(sorted(budget.lost))}")
        return
    stage, write = draining.drain(desired, tier.drain, around.machines)
    if stage is Stage.DONE:
        progress.configuring.append(entry)
        progress.writes.append(deliver(desired, around.now, failure_threshold=tier.failure_threshold))
        details.append("drain completed" if entry.annotations.get(DRAIN_DONE) else messages.NOT_APPLIED)
        return
    progress.writes += [write] if write else []
    progress.draining.append(entry)
    details.append(draining.problem(entry, "draining") or "draining node")


def _undrained(entry: Entry, progress: Progress) -> bool:
    stage, write = draining.undrain(entry)
    progress.writes += [write] if write else []
    if stage is not Stage.DONE:
        message = draining.problem(entry, "undraining") or "waiting for uncordon to finish"
        progress.details[entry.name].append(message)
    return stage is Stage.DONE


# --- how many at a time ---------------------------------------------------------------------------------------------


class _Budget:
    """Who may be disturbed now. Those that are broken are helped before others are disturbed, but no more of them at a
    time than the strategy allows: one that is not well may still be one that others need."""

    def __init__(self, tier: Tier) -> None:
        self._limit = _limit(tier)
        self._moving = {entry.name for entry in tier.counted if _is_moving(entry)}
        self._broken = {entry.name for entry in tier.counted if entry.plan.is_broken} - self._moving
        self.lost = _missed(tier) - self._moving - self._broken
        self.is_short = False  # somebody was not admitted

    def count(self, desired: Desired) -> None:
        """One that gets a plan without waiting for room: those after it in the same pass see it move."""
        if desired.is_minor:
            self._moving.add(desired.entry.name)

    def admits(self, entry: Entry) -> bool:
        taken = self._moving if entry.name in self._broken else self._moving | self._broken | self.lost - {entry.name}
        if not (entry.in_drain or self._limit == UNLIMITED or len(taken) < self._limit):
            self.is_short = True
            return False
        self._moving.add(entry.name)
        self._broken.discard(entry.name)
        return True


def _missed(tier: Tier) -> set[str]:
    """Members of etcd that are lost, where the others would have no quorum without one more."""
    members = [entry for entry in tier.counted if entry.roles.etcd and entry.plan.has_applied_plan]
    lost = {entry.name for entry in members if is_lost(entry.machine)}
    return lost if len(members) - len(lost) - 1 < quorum(len(members)) else set()


def _is_moving(entry: Entry) -> bool:
    """A machine with its first plan is missed by nobody, unless it joins etcd."""
    known = entry.plan.has_run_a_plan or entry.roles.etcd
    return entry.in_drain or (entry.plan.is_moving and known)


def _limit(tier: Tier) -> int:
    try:
        return limit_of(tier.concurrency, len(tier.members) + tier.resting)
    except BadConcurrency as wrong:
        raise ConfigError(str(wrong)) from None
