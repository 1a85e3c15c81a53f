"""Choose which Machines of a MachineSet to delete when scaling down (spec.deletion.order)."""

from __future__ import annotations

import hashlib
import math
from datetime import datetime

from herder.api.capi.conditions import is_false, is_true
from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.api.capi.names import DELETE_MACHINE, annotations_of, is_deleting
from herder.api.events import normal, recording
from herder.api.writes import delete
from herder.controllers.capi.machineset.scope import BATCH, MachineSetScope
from herder.controllers.capi.set_members import DELETING, moment
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Delete, Parallel

RANDOM, OLDEST, NEWEST = "Random", "Oldest", "Newest"

MUST_DELETE, SHOULD_DELETE, BETTER_DELETE, COULD_DELETE, MUST_NOT_DELETE = 100.0, 80.0, 50.0, 20.0, 0.0
TEN_DAYS = 864_000.0


def scale_down(scope: MachineSetScope, surplus: int) -> Decision:
    """Delete surplus Machines; those being deleted already count as surplus."""
    if surplus <= scope.members.count(DELETING):
        return Decision()
    order = (scope.machine_set["spec"].get("deletion") or {}).get("order") or RANDOM
    chosen = by_priority(scope.members.listed(), order, scope.view.now)[:surplus]
    surplus_machines = [machine for machine in chosen if not is_deleting(machine)]
    return delete_machines(scope.machine_set, surplus_machines, "spec.replicas is less than the number of Machines")


def delete_machines(machine_set: Object, machines: list[Object], reason: str) -> Decision:
    deletes = tuple(deleted(machine_set, machine, reason) for machine in machines[:BATCH])
    return Decision(writes=(Parallel(deletes),) if deletes else ())


def deleted(machine_set: Object, machine: Object, reason: str) -> Delete:
    name = machine["metadata"]["name"]
    return recording(
        delete(MACHINE, machine, reason),
        normal(MACHINE_SET, machine_set, "SuccessfulDelete", f'Deleted Machine "{name}"'),
    )


def by_priority(machines: list[Object], order: str, now: datetime) -> list[Object]:
    """Machines in deletion order.

    Among equals, unavailable Machines come first. Ties are broken by name, and for order Random by a hash of the UID,
    which is stable between passes.
    """

    def rank(machine: Object) -> tuple[float, bool, str]:
        name = str(machine["metadata"]["name"])
        tie = _random_rank(machine) if order == RANDOM else name
        return -priority(machine, order, now), is_true(machine, "Available"), tie

    return sorted(machines, key=rank)


def priority(machine: Object, order: str, now: datetime) -> float:
    if is_deleting(machine):
        return MUST_DELETE
    if DELETE_MACHINE in annotations_of(machine):
        return SHOULD_DELETE
    if not healthy(machine):
        return BETTER_DELETE
    match order:
        case "Oldest":
            return _by_age(machine, now)
        case "Newest":
            return BETTER_DELETE - _by_age(machine, now)
    return COULD_DELETE


def healthy(machine: Object) -> bool:
    """Whether the Machine has a Node and no failed health check; unknown conditions do not count against it."""
    has_node = bool((machine.get("status") or {}).get("nodeRef"))
    return has_node and not is_false(machine, "NodeHealthy") and not is_false(machine, "HealthCheckSucceeded")


def _by_age(machine: Object, now: datetime) -> float:
    """Priority from 0 for a new Machine up to (excluding) 50; the difference shrinks with age."""
    created = machine["metadata"].get("creationTimestamp")
    age = (now - moment(created)).total_seconds() if created else 0.0
    return BETTER_DELETE * (1.0 - math.exp(-age / TEN_DAYS)) if age >= 0 else MUST_NOT_DELETE


def _random_rank(machine: Object) -> str:
    return hashlib.blake2b(str(machine["metadata"].get("uid", "")).encode(), digest_size=8).hexdigest()
