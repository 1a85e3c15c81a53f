"""What must hold for a simulated cluster at every event, derived from the events alone.

No code of the controllers is used here: limits are computed from what the user wrote, Machines are counted by their
owner references, and the test records what it broke or deleted itself.

Two time spans make the rules exact. A manager decides on what it knows, so *news* that it cannot have received yet (its
watches may be interrupted) do not count against it; and writes that were *in flight* still arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, MACHINE_SET
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE
from herder.engine.meta.kinds import Kind, Object

NEWS_SECONDS = 2.0
IN_FLIGHT_SECONDS = 0.25
SILENCE_SECONDS = 75.0
"""How long the last known state of a workload cluster is valid: then five probes, ten seconds apart, have failed."""

PARTS = (IN_MEMORY_MACHINE, IN_MEMORY_BOOTSTRAP)
OTHER_NAMESPACE = "team"  # of other users; not checked here
WATCHED = (CLUSTER, MACHINE_DEPLOYMENT, MACHINE_SET, MACHINE, MACHINE_HEALTH_CHECK, *PARTS)


class Limits(NamedTuple):
    ceiling: int
    minimum: int


class Edit(NamedTuple):
    """What a user wants from a generation on; `until` is when the last write based on it must have arrived."""

    generation: int
    limits: Limits
    until: float = math.inf


class RolloutInvariants:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.objects: dict[Kind, dict[str, Object]] = {kind: {} for kind in WATCHED}  # by uid
        self.last_seen: dict[str, Object] = {}  # the last state of every object that ever existed, by uid
        self.created: dict[Kind, int] = dict.fromkeys(WATCHED, 0)
        self.deleted_by_user: set[str] = set()  # names of Machines that the user deletes
        self.broken: dict[str, float] = {}  # names of Machines whose Nodes the user broke, and since when
        self.unreachable_since = math.inf
        self.new_infrastructure: list[Object] = []  # infrastructure machines that the test has not processed yet
        self._edits: list[Edit] = []
        self._sizes: dict[str, list[tuple[int, float]]] = {}  # replicas of a set, and until when they were desired
        self._unavailable_since: dict[str, float] = {}  # when Machines stopped being available, by uid
        self._deleting_since: dict[str, float] = {}  # since when objects are being deleted, by uid
        self._paused_since = math.inf

    def __call__(self, kind: Kind, event: str, obj: Object) -> None:
        if obj["metadata"].get("namespace") == OTHER_NAMESPACE:
            return
        uid = obj["metadata"]["uid"]
        before = self.objects[kind].pop(uid, None)
        if event != "DELETED":
            self.objects[kind][uid] = obj
        self.last_seen[uid] = obj
        if before is None and event != "DELETED":
            self.created[kind] += 1
        if is_deleting(obj):
            self._deleting_since.setdefault(uid, self._clock())
        self._check_pause(kind, before, None if event == "DELETED" else obj)
        if kind == CLUSTER:
            self._record_cluster(obj)
        elif kind == MACHINE_DEPLOYMENT:
            self._record_deployment(obj)
        elif kind == MACHINE_SET and event != "DELETED":
            self._record_machine_set(before, obj)
        elif kind == MACHINE and event != "DELETED":
            self._record_machine(before, obj)
        elif kind in PARTS and before is None:
            self._check_part(kind, obj)

    # --- current state ------------------------------------------------------------------------------------------------

    @property
    def deployment(self) -> Object:
        (only,) = self.objects[MACHINE_DEPLOYMENT].values()
        return only

    def members(self) -> list[Object]:
        """The Machines of the MachineDeployment, including those being deleted."""
        return [machine for machine in self.objects[MACHINE].values() if self._deployment_of(machine) is not None]

    def is_settled(self) -> bool:
        """The rollout is complete, and everything is as the user wants it."""
        deployment, members = self.deployment, self.members()
        spec, status = deployment["spec"], deployment.get("status") or {}
        wanted = spec["replicas"]
        counters = ("replicas", "readyReplicas", "availableReplicas", "upToDateReplicas")
        return (
            status.get("observedGeneration") == deployment["metadata"]["generation"]
            and all(status.get(counter, 0) == wanted for counter in counters)
            and len(members) == wanted
            and all(is_available(machine) and not is_deleting(machine) for machine in members)
            and all(template_of(self._set_of(machine)) == template_of(deployment) for machine in members)
            and sum(each["spec"]["replicas"] for each in self.objects[MACHINE_SET].values()) == wanted
        )

    def outdated(self) -> list[Object]:
        wanted = template_of(self.deployment)
        return [machine for machine in self.members() if template_of(self._set_of(machine)) != wanted]

    def check_owned_objects(self) -> None:
        """After everything has settled: each Machine has its objects, and each object has its Machine."""
        machines = set(self.objects[MACHINE])
        for kind in PARTS:
            owners = [controller_of(part) for part in self.objects[kind].values()]
            assert len(owners) == len(set(owners)), f"a Machine has two {kind.kind}s"
            assert set(owners) == machines, f"{kind.kind}s without a Machine, or Machines without one"

    def remaining_objects(self) -> list[str]:
        return [f"{kind.kind} {obj['metadata']['name']}" for kind in WATCHED for obj in self.objects[kind].values()]

    # --- desired state ------------------------------------------------------------------------------------------------

    def _record_cluster(self, cluster: Object) -> None:
        paused = bool(cluster["spec"].get("paused"))
        self._paused_since = min(self._paused_since, self._clock()) if paused else math.inf

    def _record_deployment(self, deployment: Object) -> None:
        """Record an edit, which holds from now on.

        The previous limits hold, too, until the controller has observed the edit and earlier decisions have arrived:
        the larger ceiling and the smaller minimum count.
        """
        generation = deployment["metadata"]["generation"]
        if not self._edits or self._edits[-1].generation != generation:
            self._edits.append(Edit(generation, limits_of(deployment["spec"])))
        seen = (deployment.get("status") or {}).get("observedGeneration", 0)
        arrival = self._clock() + IN_FLIGHT_SECONDS
        for number, (edit, newer) in enumerate(zip(self._edits, self._edits[1:], strict=False)):
            if seen >= newer.generation:
                self._edits[number] = edit._replace(until=min(edit.until, arrival))
        self._edits = [edit for edit in self._edits if edit.until >= self._clock()]

    def _limits(self) -> Limits:
        in_force = [edit.limits for edit in self._edits if edit.until >= self._clock()]
        return Limits(max(each.ceiling for each in in_force), min(each.minimum for each in in_force))

    # --- sets ---------------------------------------------------------------------------------------------------------

    def _record_machine_set(self, before: Object | None, machine_set: Object) -> None:
        uid, now = machine_set["metadata"]["uid"], self._clock()
        sizes = [(size, min(until, now + IN_FLIGHT_SECONDS)) for size, until in self._sizes.get(uid, ())]
        wanted = (machine_set["spec"]["replicas"], math.inf)
        self._sizes[uid] = [*(each for each in sizes if each[1] >= now and each[0] != wanted[0]), wanted]
        if before is None:
            alike = [
                each["metadata"]["name"]
                for each in self.objects[MACHINE_SET].values()
                if controller_of(each) == controller_of(machine_set) and template_of(each) == template_of(machine_set)
            ]
            assert len(alike) == 1, f"two MachineSets for one template: {alike}"

    # --- Machines -----------------------------------------------------------------------------------------------------

    def _record_machine(self, before: Object | None, machine: Object) -> None:
        if before is None:
            self._check_creation(machine)
        if before is not None and is_available(before) and not is_available(machine):
            self._unavailable_since[machine["metadata"]["uid"]] = self._clock()
        if before is not None and is_deleting(machine) and not is_deleting(before):
            self._check_deletion(before)
        if is_marked_for_remediation(machine) and not (before and is_marked_for_remediation(before)):
            self._check_unhealthy_limit(machine)

    def _check_creation(self, machine: Object) -> None:
        name = machine["metadata"]["name"]
        for cluster in self.objects[CLUSTER].values():
            assert not self._is_known_deleting(cluster), f"Machine {name} is created in a Cluster that is being deleted"
        owner = controller_of(machine)
        if self._deployment_of(machine) is None:
            return
        siblings = [each for each in self.objects[MACHINE].values() if controller_of(each) == owner]
        most = max(size for size, until in self._sizes[owner] if until >= self._clock())
        assert len(siblings) <= most, f"Machine {name} is number {len(siblings)} of a MachineSet of {most}"
        ceiling, members = self._limits().ceiling, len(self.members())
        assert members <= ceiling, f"Machine {name} is number {members}, the limit is {ceiling}"

    def _check_deletion(self, machine: Object) -> None:
        """An available Machine is deleted only if enough others are available.

        Deletions by the user and Machines with a failed health check are exempt.
        """
        if self._deployment_of(machine) is None or is_deleting(self.deployment):
            return
        if is_remediated(machine):
            self._check_remediations(machine)
        if not is_available(machine) or machine["metadata"]["name"] in self.deleted_by_user:
            return
        if condition(machine, "HealthCheckSucceeded") == "False":
            return
        available = [each for each in self.members() if self._counted_available(each)]
        minimum = self._limits().minimum
        message = f"available Machine {machine['metadata']['name']} is deleted"
        assert len(available) >= minimum, f"{message}: {len(available)} are left, the minimum is {minimum}"

    def _counted_available(self, machine: Object) -> bool:
        """A Machine that broke or was deleted by the user a moment ago counts: the manager may not know it yet."""
        uid, recently = machine["metadata"]["uid"], self._clock() - NEWS_SECONDS
        remains = not is_deleting(machine)
        if not remains and machine["metadata"]["name"] in self.deleted_by_user:
            remains = self._deleting_since[uid] > recently
        return remains and (is_available(machine) or self._unavailable_since.get(uid, -math.inf) > recently)

    def _check_remediations(self, machine: Object) -> None:
        limit = (self.deployment["spec"].get("remediation") or {}).get("maxInFlight")
        if limit is None:
            return
        most = math.ceil(share(limit, self.deployment["spec"]["replicas"]))
        under_way = [each for each in self.members() if is_deleting(each) and is_remediated(each)]
        message = f"{len(under_way)} remediations at once with Machine {machine['metadata']['name']}"
        assert len(under_way) <= most, f"{message}, the limit is {most}"

    def _check_unhealthy_limit(self, machine: Object) -> None:
        """If too many Machines are broken, or the cluster does not respond, the Machines are not the cause."""
        now, name = self._clock(), machine["metadata"]["name"]
        assert now - self.unreachable_since < SILENCE_SECONDS, (
            f"{name} is marked for remediation although its cluster does not respond"
        )
        names = {each["metadata"]["name"]: each for each in self.objects[MACHINE].values()}
        for check in self.objects[MACHINE_HEALTH_CHECK].values():
            limit = check["spec"]["remediation"]["triggerIf"]["unhealthyLessThanOrEqualTo"]
            most = math.floor(share(limit, len(self.members())))
            broken = [each for each, since in self.broken.items() if each in names and now - since > 15]
            assert len(broken) <= most, (
                f"{name} is marked for remediation although {len(broken)} are broken, the limit is {most}"
            )

    # --- objects of a Machine -----------------------------------------------------------------------------------------

    def _check_part(self, kind: Kind, part: Object) -> None:
        owner = self.last_seen.get(controller_of(part))
        assert owner is not None, f"{kind.kind} {part['metadata']['name']} has no owner"
        assert owner["kind"] == "Machine", f"{kind.kind} {part['metadata']['name']} is not owned by a Machine"
        if kind == IN_MEMORY_MACHINE and self._deployment_of(owner) is not None:
            self.new_infrastructure.append(part)

    # --- pauses -------------------------------------------------------------------------------------------------------

    def _check_pause(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        """While a Cluster is paused, only the user creates, deletes or changes objects."""
        if kind in (CLUSTER, MACHINE_DEPLOYMENT) or self._clock() - self._paused_since < NEWS_SECONDS:
            return
        known = after or before or {}
        if known["metadata"]["name"] not in self.deleted_by_user:
            same = before is not None and after is not None and desired_state(before) == desired_state(after)
            assert same, f"{kind.kind} {known['metadata']['name']} changes while its Cluster is paused"

    # --- owners -------------------------------------------------------------------------------------------------------

    def _is_known_deleting(self, obj: Object) -> bool:
        return self._clock() - self._deleting_since.get(obj["metadata"]["uid"], math.inf) > NEWS_SECONDS

    def _set_of(self, machine: Object) -> Object:
        return self.last_seen[controller_of(machine)]

    def _deployment_of(self, machine: Object) -> Object | None:
        machine_set = self.last_seen.get(controller_of(machine))
        return self.last_seen.get(controller_of(machine_set)) if machine_set is not None else None


# --- object accessors -------------------------------------------------------------------------------------------------


def limits_of(spec: Object) -> Limits:
    """Surge rounds up, unavailability rounds down; if both are zero, one may be unavailable."""
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
    """The infrastructure template of a set or deployment."""
    return str(obj["spec"]["template"]["spec"]["infrastructureRef"]["name"])


def condition(obj: Object, type_: str, field: str = "status") -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return str(next((each.get(field, "") for each in conditions if each["type"] == type_), ""))


def is_available(machine: Object) -> bool:
    return condition(machine, "Available") == "True"


def is_deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_marked_for_remediation(machine: Object) -> bool:
    return condition(machine, "OwnerRemediated") == "False"


def is_remediated(machine: Object) -> bool:
    return condition(machine, "OwnerRemediated", "reason") == "MachineDeleting"


def desired_state(obj: Object) -> Object:
    """The desired state in an object: all but its status, whoever wrote it."""
    meta = {
        name: obj["metadata"].get(name) for name in ("labels", "ownerReferences", "finalizers", "deletionTimestamp")
    }
    return {"metadata": meta, "spec": obj.get("spec")}
