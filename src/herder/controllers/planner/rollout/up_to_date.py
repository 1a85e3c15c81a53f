"""Workers that are up to date as far as their own objects show: plan applied, healthy and reported.

They are grouped by the inputs that the cluster may still change, and are examined one by one only if it does. So the
cost of a pass depends on the machines in progress, not on the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE
from herder.api.machines.names import state_secret
from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET, STATE_SECRET
from herder.api.rke.machine_config.errors import ConfigError
from herder.controllers.planner.plan.inputs import InputsNotReady
from herder.controllers.planner.plan.machine_inputs import machine_inputs
from herder.controllers.planner.plan.render import PlanRecord
from herder.controllers.planner.rollout import messages
from herder.controllers.planner.rollout.join import port_of, record_join_url
from herder.controllers.planner.rollout.machines import PlanEntry, by_cluster, entries_of
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.groups import Grouping
from herder.engine.runtime.handlers import Indexed, Watches, named_by_label
from herder.engine.runtime.view import View

BY_STATE = "by-state-secret"
"""Index of Machines by the state Secret of their node driver."""


@dataclass(frozen=True)
class WorkerState:
    """The properties of an up-to-date worker that depend on the cluster."""

    windows: bool
    port: int  # of its join URL; 0 if it has none
    joined_to: str
    common: str  # digest of the inputs that all plans of the cluster share
    kubelet: str  # its version


UpToDateWorkers = Mapping[WorkerState, Collection[Key]]


def _worker_state(view: View) -> tuple[str, WorkerState | None] | None:
    """The Machine's cluster and WorkerState; without a WorkerState, the planner must examine the machine."""
    machine = view.get(MACHINE, view.name)
    scopes = by_cluster(machine) if machine is not None else ()
    if machine is None or not scopes:
        return None
    entry = next(iter(entries_of(view, [machine])), None)
    return scopes[0], _state_of(view, entry) if entry is not None and _is_idle(entry) else None


def _is_idle(entry: PlanEntry) -> bool:
    """Whether nothing is in progress. The Secret must name its Machine, or its changes would not be noticed."""
    machine = entry.machine
    is_linked = entry.plan.labels.get(names.MACHINE_NAME) == entry.name
    is_healthy = not entry.is_deleting and not messages.machine_problem(machine) and not messages.machine_wait(machine)
    is_joined_worker = entry.roles.only_worker and not entry.is_init and bool(entry.joined_to)
    return (
        is_linked
        and is_healthy
        and is_joined_worker
        and not entry.in_drain
        and entry.plan.is_done
        and entry.is_reported_reconciled
    )


def _state_of(view: View, entry: PlanEntry) -> WorkerState | None:
    port, record = port_of(entry.join_url), PlanRecord.of(entry.annotations)
    try:
        current = machine_inputs(view, entry, entry.joined_to).digest == record.machine
    except (InputsNotReady, ConfigError):
        return None
    if not current or record_join_url(entry, port) is not None:
        return None
    kubelet = str(entry.node_info.get("kubeletVersion") or "")
    return WorkerState(entry.plan.is_windows, port, entry.joined_to, record.common, kubelet)


def by_state(machine: Object) -> Iterable[str]:
    infrastructure = ((machine.get("spec") or {}).get("infrastructureRef") or {}).get("name")
    return (f"{machine['metadata']['namespace']}/{state_secret(infrastructure)}",) if infrastructure else ()


def _as_state(secret: Object) -> Iterable[str]:
    return (f"{secret['metadata']['namespace']}/{secret['metadata']['name']}",)


WORKER_STATES: Grouping[WorkerState | None] = Grouping(
    "planned-machines",
    MACHINE,
    _worker_state,
    (Watches(PLAN_SECRET, named_by_label(names.MACHINE_NAME)), Watches(STATE_SECRET, Indexed(BY_STATE, _as_state))),
)
