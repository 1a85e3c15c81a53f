"""Workers at rest: those of which nothing is to be done, told or learned, as far as their own objects say.

They are counted by what the cluster may yet want otherwise, and looked at one by one only where it does. So a pass
costs what is under way, and not how many machines there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE
from herder.api.machines.names import state_secret
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET, STATE_SECRET
from herder.controllers.planner import messages
from herder.controllers.planner.distributions.interface import ConfigError
from herder.controllers.planner.entries import Entry, by_cluster, entries_of
from herder.controllers.planner.inputs import Lacking
from herder.controllers.planner.joining import learned, port_of
from herder.controllers.planner.machine_inputs import machine_inputs
from herder.controllers.planner.rendering import Mark
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.groups import Grouping
from herder.engine.runtime.handlers import Indexed, Watches, labelled
from herder.engine.runtime.view import View

BY_STATE = "by-state-secret"
"""An index of Machines: by the Secret that their driver keeps its record in."""


@dataclass(frozen=True)
class Rest:
    """Of a worker at rest, all that others decide about."""

    windows: bool
    port: int  # of the URL by which it could be joined; 0 where it has none
    joined_to: str
    common: str  # digest of what its plan has in common with all others of the cluster
    kubelet: str  # its version


Resting = Mapping[Rest, Collection[Key]]


def _standing(view: View) -> tuple[str, Rest | None] | None:
    """None in place of a Rest: it is to be looked at."""
    machine = view.get(MACHINE, view.name)
    scopes = by_cluster(machine) if machine is not None else ()
    if machine is None or not scopes:
        return None
    entry = next(iter(entries_of(view, [machine])), None)
    return scopes[0], _rest(view, entry) if entry is not None and _is_quiet(entry) else None


def _is_quiet(entry: Entry) -> bool:
    """The Secret must lead back to the Machine, or nobody would hear of its changes here."""
    machine = entry.machine
    known = entry.plan.labels.get(names.MACHINE_NAME) == entry.name
    stays = not entry.is_deleting and not messages.machine_problem(machine) and not messages.machine_wait(machine)
    serves = entry.roles.only_worker and not entry.is_init and bool(entry.joined_to)
    return known and stays and serves and not entry.in_drain and entry.plan.is_done and entry.is_reported_reconciled


def _rest(view: View, entry: Entry) -> Rest | None:
    port, mark = port_of(entry.join_url), Mark.of(entry.annotations)
    try:
        current = machine_inputs(view, entry, entry.joined_to).digest == mark.machine
    except (Lacking, ConfigError):
        return None
    if not current or learned(entry, port) is not None:
        return None
    kubelet = str(entry.node_info.get("kubeletVersion") or "")
    return Rest(entry.plan.is_windows, port, entry.joined_to, mark.common, kubelet)


def by_state(machine: Object) -> Iterable[str]:
    infrastructure = ((machine.get("spec") or {}).get("infrastructureRef") or {}).get("name")
    return (f"{machine['metadata']['namespace']}/{state_secret(infrastructure)}",) if infrastructure else ()


def _as_state(secret: Object) -> Iterable[str]:
    return (f"{secret['metadata']['namespace']}/{secret['metadata']['name']}",)


STANDINGS: Grouping[Rest | None] = Grouping(
    "planned-machines",
    MACHINE,
    _standing,
    (Watches(PLAN_SECRET, labelled(names.MACHINE_NAME)), Watches(STATE_SECRET, Indexed(BY_STATE, _as_state))),
)
