"""What must never happen to a provisioned cluster, judged by its simulated machines and what people asked for.

Neither by what the planner thinks, nor by the guards.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from herder.agent.core import events
from herder.agent.core.events import Action
from herder.api.capi.conditions import find
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import PAUSED, annotations_of, is_deleting, labels_of
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, PLAN_SECRET
from herder.engine.meta.kinds import Kind, Object
from herder.sim.downstream import Downstream
from herder.sim.nodes import Installed, SimulatedNode, Witness

WATCHED = (CLUSTER, CONTROL_PLANE, MACHINE, PLAN_SECRET)

GRACE = 5.0
"""What was decided before a manager could have heard of something is carried out within this many seconds."""

PERIODIC = ("capture-address", "etcd-name")
ETCD, CONTROL, WORKER = "etcd", "control plane", "worker"


class Violation(AssertionError):
    """What must never happen has happened."""


@dataclass
class Delivery:
    """A plan that was written for a machine: when, and which machines were seen to be down then."""

    at: float
    known_down: frozenset[str] = frozenset()


@dataclass
class Judge(Witness):
    clock: Callable[[], float]
    cluster: Downstream = field(init=False)
    objects: dict[Kind, dict[str, Object]] = field(default_factory=lambda: {kind: {} for kind in WATCHED})
    asked_for: set[str] = field(default_factory=set)  # Machines that the user deletes
    breaches: list[str] = field(default_factory=list)
    _finished: set[tuple[str, str, str]] = field(default_factory=set)
    _highest: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _began: list[SimulatedNode] = field(default_factory=list)
    _disturbed: dict[str, SimulatedNode] = field(default_factory=dict)  # stopped by a plan, and not up again
    _served_since: dict[str, float] = field(default_factory=dict)
    _deliveries: dict[str, Delivery] = field(default_factory=dict)  # by Secret
    _down_since: dict[str, float] = field(default_factory=dict)  # Machines, as the manager's API tells of them
    _paused_since: dict[str, float] = field(default_factory=dict)
    _last_stop: tuple[str, float] = ("", 0.0)
    _limits: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def _broken(self, rule: str, told: str) -> None:
        """Told when the story looks: nobody here is to be stopped by it half-way."""
        self.breaches.append(f"{rule}: {told} (at {self.clock():.2f})")

    def check(self) -> None:
        if self.breaches:
            raise Violation("; ".join(self.breaches))

    # --- what machines do -------------------------------------------------------------------------------------------

    def acts(self, node: SimulatedNode, action: Action) -> None:
        match action:
            case events.Persist(record) if record.result is not None:
                self._finished.add((record.uid, record.revision, record.checksum))
            case events.Run(_, instruction, _) if instruction.name not in PERIODIC:
                known = node.disk.journal.record
                identity = (known.uid, known.revision, known.checksum) if known else ("", "", "")
                if identity in self._finished:
                    self._broken("an applied plan is never run again", f"{node.name} runs revision {identity[1]}")

    def installs(self, node: SimulatedNode, new: Installed) -> None:
        version = release(new.version)
        if version < self._highest.get(node.name, ()):
            self._broken("never a downgrade", f"{node.name} gets {new.version} after {self._highest[node.name]}")
        self._highest[node.name] = version

    def began_cluster(self, node: SimulatedNode) -> None:
        """One whose machine goes takes what it began along."""
        others = [other.name for other in self._began if not other.destroyed and not self._goes(other)]
        if others:
            self._broken("never two clusters", f"{node.name} begins one, and {', '.join(others)} did before")
        self._began.append(node)

    def stopped(self, node: SimulatedNode, *, by_plan: bool) -> None:
        self._last_stop = (node.name, self.clock())
        if by_plan:
            self._disturbed[node.name] = node
            self._judge_quorum(node)
            self._judge_strategy(node)

    def up(self, node: SimulatedNode) -> None:
        self._served_since.setdefault(node.name, self.clock())
        self._disturbed.pop(node.name, None)

    def destroyed(self, node: SimulatedNode) -> None:
        """By its provider, since its Machine goes: etcd must do without it by then."""
        self._disturbed.pop(node.name, None)
        ran = self._last_stop == (node.name, self.clock())
        if not ran or not self.cluster.is_member(node) or self._cluster_goes() or not self._others_stay(node):
            return
        members, voters = len(self.cluster.members), len(self.cluster.voters)
        if voters < members // 2 + 1 <= voters + 1:
            told = f"{node.name} is gone and still a member: {voters} of {members} are left"
            self._broken("never below quorum", told)

    # --- how many are down ------------------------------------------------------------------------------------------

    def _judge_quorum(self, node: SimulatedNode) -> None:
        if not self.cluster.is_member(node):
            return
        delivery = self._deliveries.get(node.secret, Delivery(0.0))
        others = [member for member in self.cluster.members.values() if member is not node]
        down = [member for member in others if not member.running and self._counts(member, delivery)]
        well, needed = len(others) - len(down), (len(others) + 1) // 2 + 1
        if down and well < needed:
            names_ = [member.name for member in down]
            self._broken("never below quorum", f"{node.name} was stopped while {names_} were down")

    def _counts(self, member: SimulatedNode, delivery: Delivery) -> bool:
        """What a plan stopped, or what was to be seen when the plan was written."""
        machine = self.machine_of(member)
        return member.name in self._disturbed or machine in delivery.known_down

    def _judge_strategy(self, node: SimulatedNode) -> None:
        """Of the machines that stay and had served when they were asked: the others are missed by nobody."""
        tier = tier_of(node)
        down = [other for other in self._disturbed.values() if tier_of(other) == tier and self._is_missed(other)]
        if node not in down:
            return
        oldest = min(self._deliveries.get(other.secret, Delivery(0.0)).at for other in down)
        limit = self._limit_since(tier, oldest - GRACE)
        if len(down) > limit:
            told = ", ".join(other.name for other in down)
            self._broken("never more down than the strategy allows", f"{told} of {tier}, and {limit} may be")

    def _is_missed(self, node: SimulatedNode) -> bool:
        asked_at = self._deliveries.get(node.secret, Delivery(math.inf)).at
        return not self._goes(node) and self._served_since.get(node.name, 0.0) <= asked_at

    def _limit_since(self, tier: str, since: float) -> float:
        """The highest that held at any time since."""
        within = [limits[tier] for at, limits in self._limits if at >= since]
        before = [limits[tier] for at, limits in self._limits if at < since][-1:]
        return max([*within, *before], default=1)

    # --- what is asked and told -------------------------------------------------------------------------------------

    def __call__(self, kind: Kind, event: str, obj: Object) -> None:
        """Of every event of the watched kinds, in order."""
        name, known = obj["metadata"]["name"], self.objects[kind]
        before = known.get(name)
        if event == "DELETED":
            known.pop(name, None)
        else:
            known[name] = obj
        self._note_pauses(kind, name, None if event == "DELETED" else obj)
        if kind == MACHINE:
            self._note_health(name, None if event == "DELETED" else obj)
            self._judge_machine(event, before, obj)
        elif kind == PLAN_SECRET and event != "DELETED":
            self._judge_plan(before, obj)
        self._limits.append((self.clock(), dict(self._limits_now())))

    def _note_pauses(self, kind: Kind, name: str, obj: Object | None) -> None:
        key = f"{kind.kind}/{name}"
        paused = obj is not None and (PAUSED in annotations_of(obj) or bool((obj.get("spec") or {}).get("paused")))
        if paused:
            self._paused_since.setdefault(key, self.clock())
        else:
            self._paused_since.pop(key, None)

    def _is_paused(self, key: str) -> bool:
        return self._paused_since.get(key, math.inf) < self.clock() - GRACE

    def _cluster_is_paused(self) -> bool:
        return any(self._is_paused(key) for key in self._paused_since if not key.startswith(f"{MACHINE.kind}/"))

    def _note_health(self, name: str, machine: Object | None) -> None:
        ready = find(machine, "NodeReady") if machine else None
        lost = ready is not None and ready["status"] != "True" and ready.get("reason", "").startswith("NodeReady")
        if lost or (ready is not None and ready.get("reason") == "NodeNotReady"):
            self._down_since.setdefault(name, self.clock())
        else:
            self._down_since.pop(name, None)

    def _is_known_down(self, node: str, at: float) -> bool:
        machine = next((self.machine_of(each) for each in self.cluster.members.values() if each.name == node), "")
        return self._down_since.get(machine, math.inf) < at - GRACE

    def _judge_machine(self, event: str, before: Object | None, machine: Object) -> None:
        name = machine["metadata"]["name"]
        made = event == "ADDED" and before is None
        goes = before is not None and not is_deleting(before) and is_deleting(machine) and name not in self.asked_for
        if (made or goes) and self._cluster_is_paused() and not self._cluster_goes():
            what = "made" if made else "deleted"
            self._broken("a paused cluster is never touched", f"Machine {name} was {what}")

    def _judge_plan(self, before: Object | None, secret: Object) -> None:
        if not asks(before, secret):
            return
        name, machine = secret["metadata"]["name"], labels_of(secret).get(names.MACHINE_NAME, "")
        now = self.clock()
        known = frozenset(each for each, since in self._down_since.items() if since < now - GRACE)
        self._deliveries[name] = Delivery(now, known)
        if self._cluster_is_paused():
            self._broken("a paused cluster is never touched", f"{machine} was given a plan")
        if self._is_paused(f"{MACHINE.kind}/{machine}"):
            self._broken("no plan reaches a machine that is paused", f"{machine} was given one")

    def _limits_now(self) -> Iterator[tuple[str, float]]:
        """As people mean them: of the machines that are to stay."""
        strategy: Object = {}
        for plane in self.objects[CONTROL_PLANE].values():
            strategy = plane["spec"].get("upgradeStrategy") or {}
        members = dict.fromkeys((ETCD, CONTROL, WORKER), 0)
        for secret in self.objects[PLAN_SECRET].values():
            machine = self.objects[MACHINE].get(labels_of(secret).get(names.MACHINE_NAME, ""))
            if machine is not None and not is_deleting(machine):
                members[_tier(labels_of(secret))] += 1
        yield ETCD, 1
        yield CONTROL, at_once(strategy.get("controlPlaneConcurrency"), members[CONTROL])
        yield WORKER, at_once(strategy.get("workerConcurrency"), members[WORKER])

    # --- small things -----------------------------------------------------------------------------------------------

    def machine_of(self, node: SimulatedNode) -> str:
        for name, machine in self.objects[MACHINE].items():
            if machine["spec"]["infrastructureRef"]["name"] == node.name:
                return name
        return ""

    def _goes(self, node: SimulatedNode) -> bool:
        machine = self.objects[MACHINE].get(self.machine_of(node))
        return machine is None or is_deleting(machine)

    def _cluster_goes(self) -> bool:
        return any(is_deleting(cluster) for cluster in self.objects[CLUSTER].values()) or not self.objects[CLUSTER]

    def _others_stay(self, node: SimulatedNode) -> bool:
        return any(not self._goes(member) for member in self.cluster.members.values() if member is not node)


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def at_once(concurrency: object, members: int) -> float:
    text = str(concurrency or "1")
    if text == "0":
        return math.inf
    if text.endswith("%"):
        return max(1, math.ceil(members * float(text[:-1]) / 100))
    return int(text)


def tier_of(node: SimulatedNode) -> str:
    return WORKER if node.is_worker else ETCD if node.has_etcd else CONTROL


def _tier(labels: dict[str, str]) -> str:
    if labels.get(names.ETCD_ROLE) == "true":
        return ETCD
    return CONTROL if labels.get(names.CONTROL_PLANE_ROLE) == "true" else WORKER


def asks(before: Object | None, secret: Object) -> bool:
    """Whether the agent is asked for something that it was not asked for before."""
    old, new = ((each or {}).get("data") or {} for each in (before, secret))
    if not new.get("plan"):
        return False
    pending = base64.b64encode(b"pending").decode()
    return old.get("plan") != new["plan"] or (new.get("plan-state") == pending and old.get("plan-state") != pending)
