"""Which Machines go when there are too many."""

from __future__ import annotations

import hashlib
import math
from datetime import datetime

from herder.api.capi.conditions import is_false, is_true
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import DELETE_MACHINE, annotations_of, is_deleting
from herder.api.writing import delete
from herder.controllers.capi.machineset.scope import BATCH, Scope
from herder.controllers.capi.members import DELETING, moment
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Parallel

RANDOM, OLDEST, NEWEST = "Random", "Oldest", "Newest"

MUST, FIRST, BETTER, COULD, MUST_NOT = 100.0, 80.0, 50.0, 20.0, 0.0
TEN_DAYS = 864_000.0


def shrink(scope: Scope, surplus: int) -> Decision:
    """Machines that are going already are among the surplus."""
    if surplus <= scope.members.count(DELETING):
        return Decision()
    order = (scope.machine_set["spec"].get("deletion") or {}).get("order") or RANDOM
    chosen = by_priority(scope.members.listed(), order, scope.view.now)[:surplus]
    return delete_machines([machine for machine in chosen if not is_deleting(machine)], "there are too many Machines")


def delete_machines(machines: list[Object], reason: str) -> Decision:
    deletes = tuple(delete(MACHINE, machine, reason) for machine in machines[:BATCH])
    return Decision(writes=(Parallel(deletes),) if deletes else ())


def by_priority(machines: list[Object], order: str, now: datetime) -> list[Object]:
    """Those to go first. Of equals the unavailable ones go before the others; then it is by chance in a random order,
    but the same chance in each pass, and by name in the others."""

    def rank(machine: Object) -> tuple[float, bool, str]:
        name = str(machine["metadata"]["name"])
        tie = _lot(machine) if order == RANDOM else name
        return -priority(machine, order, now), is_true(machine, "Available"), tie

    return sorted(machines, key=rank)


def priority(machine: Object, order: str, now: datetime) -> float:
    if is_deleting(machine):
        return MUST
    if DELETE_MACHINE in annotations_of(machine):
        return FIRST
    if not healthy(machine):
        return BETTER
    match order:
        case "Oldest":
            return _by_age(machine, now)
        case "Newest":
            return BETTER - _by_age(machine, now)
    return COULD


def healthy(machine: Object) -> bool:
    """What is unknown is no reason to go."""
    has_node = bool((machine.get("status") or {}).get("nodeRef"))
    return has_node and not is_false(machine, "NodeHealthy") and not is_false(machine, "HealthCheckSucceeded")


def _by_age(machine: Object, now: datetime) -> float:
    """From 0 for a new one to 50, never reached: the older, the smaller the difference."""
    created = machine["metadata"].get("creationTimestamp")
    age = (now - moment(created)).total_seconds() if created else 0.0
    return BETTER * (1.0 - math.exp(-age / TEN_DAYS)) if age >= 0 else MUST_NOT


def _lot(machine: Object) -> str:
    return hashlib.blake2b(str(machine["metadata"].get("uid", "")).encode(), digest_size=8).hexdigest()
