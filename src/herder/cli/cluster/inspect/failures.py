"""Failures of machines, as a waiting command prints them: repeats are folded, and lasting ones end the wait."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from herder.api.capi.conditions import find
from herder.api.capi.finalizers import blocking_finalizers, manager_of
from herder.api.capi.names import MACHINE_FINALIZER, labels_of
from herder.api.machines.failure import creation_blocker, creation_failure, without_name
from herder.api.rke import names
from herder.engine.meta.kinds import Object

LASTING = 3
"""A failure that occurs this often for the same reason does not go away by waiting."""
_ATTEMPT = re.compile(r"; attempt (?P<number>\d+), (?:the next at \S+|(?P<last>the last that it may have))")


def machine_failure(machine: Object) -> str:
    """Why a machine cannot be created or deleted, or why its plan failed; empty if nothing failed."""
    if blocking := blocking_finalizers(machine, (MACHINE_FINALIZER,)):
        return blocked_by(machine, blocking)
    plan = find(machine, names.PLAN_APPLIED) or {}
    if plan.get("status") == "False":
        return str(plan.get("message", ""))
    why = creation_failure(machine)
    return f"creation failed: {why}" if why else creation_blocker(machine)


def blocked_by(obj: Object, finalizers: Sequence[str]) -> str:
    owners = ", ".join(f"{each} (set by {manager_of(obj, each) or 'an unknown client'})" for each in finalizers)
    return f"finalizers of other controllers block the deletion: {owners}"


class _Occurrence(NamedTuple):
    machine: str
    attempt: str
    pool: str


class FailureLog:
    """Failures since the command started waiting."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}  # failure by machine
        self._occurrences: dict[str, dict[_Occurrence, None]] = {}  # by reason, oldest first

    def lines(self, machines: Mapping[str, Object]) -> Iterator[str]:
        """Lines for new failures: the first of each reason in full, and repeats in short."""
        failures = {name: machine_failure(machine) for name, machine in sorted(machines.items())}
        for name, why in failures.items():
            if not why or self._shown.get(name) == why:
                continue
            known = self._occurrences.setdefault(_reason(name, why), {})
            occurrence = _Occurrence(name, _attempt(why), _pool(machines[name]))
            if occurrence not in known:
                known[occurrence] = None
                first = next(iter(known)).machine
                yield f"  machine {name}: {why}" if len(known) == 1 else _repeated(name, first, len(known))
        self._shown.update({name: why for name, why in failures.items() if why})

    def lasting(self, machines: Mapping[str, Object], quantities: Mapping[str, int]) -> str:
        """Why waiting is of no use; empty if it may be.

        Machines of a pool fail together, so a failure lasts only once replacements have failed too.
        """
        for name, machine in sorted(machines.items()):
            why = machine_failure(machine)
            found = _ATTEMPT.search(why)
            if found is not None and found["last"]:
                return f"machine {name}: {why}"
            known = self._occurrences.get(_reason(name, why), {}) if why else {}
            own = sum(1 for each in known if each.machine == name)
            of_pool = sum(1 for each in known if each.pool == _pool(machine))
            if own >= LASTING or of_pool >= quantities.get(_pool(machine), 1) + LASTING - 1:
                return f"machine {name}: {why} ({len(known)} failures for this reason)"
        return ""


def _repeated(name: str, first: str, count: int) -> str:
    same = "again" if name == first else f"as {first}"
    return f"  machine {name}: failed for the same reason {same} ({count} failures so far)"


def _reason(name: str, why: str) -> str:
    """The failure without what differs between machines and attempts."""
    return without_name(_ATTEMPT.sub("", why), name)


def _pool(machine: Object) -> str:
    return str(labels_of(machine).get(names.POOL_NAME, ""))


def _attempt(why: str) -> str:
    found = _ATTEMPT.search(why)
    return found["number"] if found else ""
