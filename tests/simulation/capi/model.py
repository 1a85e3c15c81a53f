"""What must be true of a herd at every event, by an account that is kept from the events alone.

Nothing of the controllers is used here: limits are computed anew from what the user wrote, Machines are counted along
their owner references, and what the test itself broke or asked for is told to the account by the test.

Two spans of time make the rules exact. A decision is made on what a manager knew, so *news* that it cannot have heard
yet (its watches may have been cut) do not count against it; and what it had *on the way* still arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, MACHINE_SET
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE
from herder.engine.meta.kinds import Kind, Object

NEWS_SECONDS = 2.0
ON_THE_WAY_SECONDS = 0.25
SILENCE_SECONDS = 75.0
"""So long what was last seen of a workload cluster may count: five probes, ten seconds apart, have then failed."""

PARTS = (IN_MEMORY_MACHINE, IN_MEMORY_BOOTSTRAP)
OTHERS = "team"  # a namespace of other users, which the account is not about
WATCHED = (CLUSTER, MACHINE_DEPLOYMENT, MACHINE_SET, MACHINE, MACHINE_HEALTH_CHECK, *PARTS)


class Limits(NamedTuple):
    ceiling: int
    minimum: int


class Edit(NamedTuple):
    """What a user wants, from some generation on; `until` is when the last act based on it must have arrived."""

    generation: int
    limits: Limits
    until: float = math.inf


class Account:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.objects: dict[Kind, dict[str, Object]] = {kind: {} for kind in WATCHED}  # by uid
        self.ever: dict[str, Object] = {}  # what has ever been, as it was at last, by uid
        self.created: dict[Kind, int] = dict.fromkeys(WATCHED, 0)
        self.asked_for: set[str] = set()  # names of Machines that the user deletes
        self.broken: dict[str, float] = {}  # names of Machines whose Nodes the user broke, and since when
        self.unreachable_since = math.inf
        self.arrived: list[Object] = []  # infrastructure machines that the test has not looked at yet
        self._edits: list[Edit] = []
        self._sizes: dict[str, list[tuple[int, float]]] = {}  # replicas of a set, and until when they were wanted
        self._lost: dict[str, float] = {}  # when Machines stopped being available, by uid
        self._going: dict[str, float] = {}  # since when objects are being deleted, by uid
        self._paused_since = math.inf

    def __call__(self, kind: Kind, event: str, obj: Object) -> None:
        if obj["metadata"].get("namespace") == OTHERS:
            return
        uid = obj["metadata"]["uid"]
        before = self.objects[kind].pop(uid, None)
        if event != "DELETED":
            self.objects[kind][uid] = obj
        self.ever[uid] = obj
        if before is None and event != "DELETED":
            self.created[kind] += 1
        if is_going(obj):
            self._going.setdefault(uid, self._clock())
        self._check_pause(kind, before, None if event == "DELETED" else obj)
        if kind == CLUSTER:
            self._cluster(obj)
        elif kind == MACHINE_DEPLOYMENT:
            self._deployment(obj)
        elif kind == MACHINE_SET and event != "DELETED":
            self._machine_set(before, obj)
        elif kind == MACHINE and event != "DELETED":
            self._machine(before, obj)
        elif kind in PARTS and before is None:
            self._part(kind, obj)

    # --- what is there ----------------------------------------------------------------------------------------------

    @property
    def deployment(self) -> Object:
        (only,) = self.objects[MACHINE_DEPLOYMENT].values()
        return only

    def members(self) -> list[Object]:
        """The Machines of the MachineDeployment, those that are going too."""
        return [machine for machine in self.objects[MACHINE].values() if self._deployment_of(machine) is not None]

    def settled(self) -> bool:
        """The rollout is over, and all is as the user wants it."""
        deployment, members = self.deployment, self.members()
        spec, status = deployment["spec"], deployment.get("status") or {}
        wanted = spec["replicas"]
        counters = ("replicas", "readyReplicas", "availableReplicas", "upToDateReplicas")
        return (
            status.get("observedGeneration") == deployment["metadata"]["generation"]
            and all(status.get(counter, 0) == wanted for counter in counters)
            and len(members) == wanted
            and all(is_available(machine) and not is_going(machine) for machine in members)
            and all(template_of(self._set_of(machine)) == template_of(deployment) for machine in members)
            and sum(each["spec"]["replicas"] for each in self.objects[MACHINE_SET].values()) == wanted
        )

    def outdated(self) -> list[Object]:
        wanted = template_of(self.deployment)
        return [machine for machine in self.members() if template_of(self._set_of(machine)) != wanted]

    def check_parts(self) -> None:
        """When all is quiet: each Machine has its objects, and no object is without its Machine."""
        machines = set(self.objects[MACHINE])
        for kind in PARTS:
            owners = [controller_of(part) for part in self.objects[kind].values()]
            assert len(owners) == len(set(owners)), f"a Machine has two {kind.kind}s"
            assert set(owners) == machines, f"{kind.kind}s without a Machine, or Machines without one"

    def left(self) -> list[str]:
        return [f"{kind.kind} {obj['metadata']['name']}" for kind in WATCHED for obj in self.objects[kind].values()]

    # --- what the user wants ----------------------------------------------------------------------------------------

    def _cluster(self, cluster: Object) -> None:
        paused = bool(cluster["spec"].get("paused"))
        self._paused_since = min(self._paused_since, self._clock()) if paused else math.inf

    def _deployment(self, deployment: Object) -> None:
        """An edit holds from when it is made. What it replaced holds too until the controller says that it has seen
        the edit, and what was decided before has arrived: the larger ceiling and the smaller minimum count."""
        generation = deployment["metadata"]["generation"]
        if not self._edits or self._edits[-1].generation != generation:
            self._edits.append(Edit(generation, limits_of(deployment["spec"])))
        seen = (deployment.get("status") or {}).get("observedGeneration", 0)
        arrived = self._clock() + ON_THE_WAY_SECONDS
        for number, (edit, newer) in enumerate(zip(self._edits, self._edits[1:], strict=False)):
            if seen >= newer.generation:
                self._edits[number] = edit._replace(until=min(edit.until, arrived))
        self._edits = [edit for edit in self._edits if edit.until >= self._clock()]

    def _limits(self) -> Limits:
        in_force = [edit.limits for edit in self._edits if edit.until >= self._clock()]
        return Limits(max(each.ceiling for each in in_force), min(each.minimum for each in in_force))

    # --- sets -------------------------------------------------------------------------------------------------------

    def _machine_set(self, before: Object | None, machine_set: Object) -> None:
        uid, now = machine_set["metadata"]["uid"], self._clock()
        sizes = [(size, min(until, now + ON_THE_WAY_SECONDS)) for size, until in self._sizes.get(uid, ())]
        wanted = (machine_set["spec"]["replicas"], math.inf)
        self._sizes[uid] = [*(each for each in sizes if each[1] >= now and each[0] != wanted[0]), wanted]
        if before is None:
            alike = [
                each["metadata"]["name"]
                for each in self.objects[MACHINE_SET].values()
                if controller_of(each) == controller_of(machine_set) and template_of(each) == template_of(machine_set)
            ]
            assert len(alike) == 1, f"two MachineSets for one template: {alike}"

    # --- Machines ---------------------------------------------------------------------------------------------------

    def _machine(self, before: Object | None, machine: Object) -> None:
        if before is None:
            self._check_creation(machine)
        if before is not None and is_available(before) and not is_available(machine):
            self._lost[machine["metadata"]["uid"]] = self._clock()
        if before is not None and is_going(machine) and not is_going(before):
            self._check_deletion(before)
        if is_handed_over(machine) and not (before and is_handed_over(before)):
            self._check_storm(machine)

    def _check_creation(self, machine: Object) -> None:
        name = machine["metadata"]["name"]
        for cluster in self.objects[CLUSTER].values():
            assert not self._knew_going(cluster), f"Machine {name} is made in a Cluster that goes"
        owner = controller_of(machine)
        if self._deployment_of(machine) is None:
            return
        siblings = [each for each in self.objects[MACHINE].values() if controller_of(each) == owner]
        most = max(size for size, until in self._sizes[owner] if until >= self._clock())
        assert len(siblings) <= most, f"Machine {name} is number {len(siblings)} of a MachineSet of {most}"
        ceiling, members = self._limits().ceiling, len(self.members())
        assert members <= ceiling, f"Machine {name} is number {members}, and {ceiling} may be"

    def _check_deletion(self, machine: Object) -> None:
        """An available Machine is given up only where enough others are. A user's wish is another matter, and so is a
        Machine that a health check condemned."""
        if self._deployment_of(machine) is None or is_going(self.deployment):
            return
        if is_remediated(machine):
            self._check_remediations(machine)
        if not is_available(machine) or machine["metadata"]["name"] in self.asked_for:
            return
        if condition(machine, "HealthCheckSucceeded") == "False":
            return
        available = [each for each in self.members() if self._counted_available(each)]
        minimum = self._limits().minimum
        told = f"available Machine {machine['metadata']['name']} is deleted"
        assert len(available) >= minimum, f"{told}: {len(available)} are left, and {minimum} must be"

    def _counted_available(self, machine: Object) -> bool:
        """One that broke by itself a moment ago, or that a user deleted then, is taken for available, as who decided
        took it."""
        uid, lately = machine["metadata"]["uid"], self._clock() - NEWS_SECONDS
        stays = not is_going(machine)
        if not stays and machine["metadata"]["name"] in self.asked_for:
            stays = self._going[uid] > lately
        return stays and (is_available(machine) or self._lost.get(uid, -math.inf) > lately)

    def _check_remediations(self, machine: Object) -> None:
        given = (self.deployment["spec"].get("remediation") or {}).get("maxInFlight")
        if given is None:
            return
        most = math.ceil(share(given, self.deployment["spec"]["replicas"]))
        under_way = [each for each in self.members() if is_going(each) and is_remediated(each)]
        told = f"{len(under_way)} remediations at once with Machine {machine['metadata']['name']}"
        assert len(under_way) <= most, f"{told}, and {most} may be"

    def _check_storm(self, machine: Object) -> None:
        """When too many are broken it is not the Machines, and when the cluster does not answer nobody knows."""
        now, name = self._clock(), machine["metadata"]["name"]
        assert now - self.unreachable_since < SILENCE_SECONDS, f"{name} is condemned though its cluster is silent"
        names = {each["metadata"]["name"]: each for each in self.objects[MACHINE].values()}
        for check in self.objects[MACHINE_HEALTH_CHECK].values():
            given = check["spec"]["remediation"]["triggerIf"]["unhealthyLessThanOrEqualTo"]
            most = math.floor(share(given, len(self.members())))
            broken = [each for each, since in self.broken.items() if each in names and now - since > 15]
            assert len(broken) <= most, f"{name} is condemned though {len(broken)} are broken, and {most} may be"

    # --- objects beside a Machine -----------------------------------------------------------------------------------

    def _part(self, kind: Kind, part: Object) -> None:
        owner = self.ever.get(controller_of(part))
        assert owner is not None, f"{kind.kind} {part['metadata']['name']} is nobody's"
        assert owner["kind"] == "Machine", f"{kind.kind} {part['metadata']['name']} is not a Machine's"
        if kind == IN_MEMORY_MACHINE and self._deployment_of(owner) is not None:
            self.arrived.append(part)

    # --- pauses -----------------------------------------------------------------------------------------------------

    def _check_pause(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        """While a Cluster is paused nothing comes, goes or is asked to be otherwise, but by the user."""
        if kind in (CLUSTER, MACHINE_DEPLOYMENT) or self._clock() - self._paused_since < NEWS_SECONDS:
            return
        known = after or before or {}
        if known["metadata"]["name"] not in self.asked_for:
            same = before is not None and after is not None and asked(before) == asked(after)
            assert same, f"{kind.kind} {known['metadata']['name']} changes while its Cluster is paused"

    # --- owners -----------------------------------------------------------------------------------------------------

    def _knew_going(self, obj: Object) -> bool:
        return self._clock() - self._going.get(obj["metadata"]["uid"], math.inf) > NEWS_SECONDS

    def _set_of(self, machine: Object) -> Object:
        return self.ever[controller_of(machine)]

    def _deployment_of(self, machine: Object) -> Object | None:
        machine_set = self.ever.get(controller_of(machine))
        return self.ever.get(controller_of(machine_set)) if machine_set is not None else None


# --- reading objects ------------------------------------------------------------------------------------------------


def limits_of(spec: Object) -> Limits:
    """Surge rounds up, unavailability down; a strategy that could not move at all may have one unavailable."""
    replicas, strategy = spec["replicas"], spec["rollout"]["strategy"]
    if strategy["type"] == "OnDelete":
        return Limits(replicas, replicas)
    surge = math.ceil(share(strategy["rollingUpdate"]["maxSurge"], replicas))
    unavailable = math.floor(share(strategy["rollingUpdate"]["maxUnavailable"], replicas))
    if surge == unavailable == 0:
        unavailable = 1
    return Limits(replicas + surge, max(replicas - unavailable, 0))


def share(value: int | str, total: int) -> float:
    return value if isinstance(value, int) else int(value.removesuffix("%")) * total / 100


def controller_of(obj: Object) -> str:
    return next(_controllers(obj), "")


def _controllers(obj: Object) -> Iterator[str]:
    return (each["uid"] for each in obj["metadata"].get("ownerReferences") or () if each.get("controller"))


def template_of(obj: Object) -> str:
    """Which machines a set or deployment makes."""
    return str(obj["spec"]["template"]["spec"]["infrastructureRef"]["name"])


def condition(obj: Object, type_: str, field: str = "status") -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return str(next((each.get(field, "") for each in conditions if each["type"] == type_), ""))


def is_available(machine: Object) -> bool:
    return condition(machine, "Available") == "True"


def is_going(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_handed_over(machine: Object) -> bool:
    return condition(machine, "OwnerRemediated") == "False"


def is_remediated(machine: Object) -> bool:
    return condition(machine, "OwnerRemediated", "reason") == "MachineDeleting"


def asked(obj: Object) -> Object:
    """All that is not told but asked for, whoever wrote it."""
    meta = {
        name: obj["metadata"].get(name) for name in ("labels", "ownerReferences", "finalizers", "deletionTimestamp")
    }
    return {"metadata": meta, "spec": obj.get("spec")}
