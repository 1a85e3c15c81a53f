"""Scope and result of a planner pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from herder.controllers.planner.distributions.interface import Distribution
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.controllers.planner.rollout.up_to_date import UpToDateWorkers
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Effect, Event, Parallel, Write
from herder.engine.runtime.view import View


@dataclass(frozen=True)
class PlanScope:
    """The objects that a planner pass works on."""

    view: View
    control_plane: Object
    cluster: Object  # Cluster API's
    distribution: Distribution
    machines: int  # of the cluster
    entries: Sequence[PlanEntry]  # machines with a plan Secret that the pass examines
    up_to_date: UpToDateWorkers = field(default_factory=dict)  # workers that it need not examine

    @property
    def spec(self) -> Object:
        found: Object = self.control_plane["spec"]
        return found

    @property
    def status(self) -> Object:
        return self.control_plane.get("status") or {}

    @property
    def strategy(self) -> Mapping[str, Any]:
        return self.spec.get("upgradeStrategy") or {}

    @property
    def initialized(self) -> bool:
        return bool((self.status.get("initialization") or {}).get("controlPlaneInitialized"))

    @property
    def agent_connected(self) -> bool:
        return bool(self.status.get("agentConnected"))

    @property
    def established(self) -> bool:
        """Whether a machine of this cluster ever had a join URL. The control plane endpoint records it."""
        endpoint = self.spec.get("controlPlaneEndpoint") or {}
        joinable = any(entry.join_url for entry in self.entries)
        return bool(endpoint.get("host")) or self.initialized or joinable or bool(self.up_to_date)

    def active_entries(self) -> list[PlanEntry]:
        return [entry for entry in self.entries if not entry.is_deleting]


@dataclass(frozen=True)
class MachineStatus:
    """What a machine waits for, for its Reconciled condition; no details mean that it is reconciled."""

    entry: PlanEntry
    details: Sequence[str] = ()


@dataclass
class Result:
    """Outcome of a pass. `waiting` says why it ended before all machines were reconciled."""

    writes: list[Write | Parallel] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    unfinished: bool = False  # continues in the next pass, once the writes are visible
    waiting: str = ""
    error: str = ""
    machine_statuses: list[MachineStatus] = field(default_factory=list)
    provisioned: bool = False  # enough machines to bootstrap
    bootstrapped: bool = False
    unstable: bool = False
    initialized: bool | None = None  # new value of controlPlaneInitialized
    wake_at: datetime | None = None
    failure: str = ""  # why machines cannot be created
    status: Object = field(default_factory=dict)  # further fields of the control plane's status
    events: list[Event] = field(default_factory=list)
    waiting_machines: Sequence[str] = ()  # that the operation in progress waits for
    plans: bool = False  # the writes contain plans, which require the Beacon
    in_background: bool = False  # `waiting` does not concern users: a cluster that is ready stays so


def earliest(*times: datetime | None) -> datetime | None:
    return min((each for each in times if each is not None), default=None)


class PassEnded(Exception):
    """Ends the pass with a message: later steps depend on this one."""


class RequeuePass(Exception):
    """Ends the pass without a status: the rest depends on its writes, which the next pass sees."""
