"""Elect the init node: the machine that bootstraps the cluster and that other servers join.

At most one plan Secret carries the init-node label, and it moves only if its machine can no longer serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.names import INIT_NODE, MACHINE_ID
from herder.api.writes import ref
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.runtime.decision import Patch

NO_CANDIDATE = "waiting for viable init node"
LOST = (
    "rkecontrolplane was already initialized but no etcd machines exist that have plans, indicating the etcd plane has "
    "been entirely replaced. Restoration from etcd snapshot is required."
)


@dataclass(frozen=True)
class Election:
    """The init node, or the label changes that must be written first, or why there is no candidate (`waiting`)."""

    init: PlanEntry | None = None
    writes: tuple[Patch, ...] = ()
    waiting: str = ""


def elect(entries: Sequence[PlanEntry], designated: str = "", *, established: bool = False) -> Election:
    """Decide which machine is the init node.

    `designated`: the machine ID that the user requires; no other machine is elected then. `established`: a machine of
    this cluster had a join URL once. From then on, a machine without one would bootstrap a second cluster.
    """
    elected = _designated(entries, designated) if designated else _suitable(entries, established)
    if isinstance(elected, str):
        return Election(waiting=elected)
    writes = move_init_node(entries, elected)
    return Election(writes=writes) if writes else Election(init=elected)


def move_init_node(entries: Sequence[PlanEntry], elected: PlanEntry) -> tuple[Patch, ...]:
    """Label changes until this machine is the only init node; the old label is removed first."""
    others = tuple(_label_init_node(entry, None) for entry in entries if entry.is_init and entry.name != elected.name)
    return others or (() if elected.is_init else (_label_init_node(elected, "true"),))


def _designated(entries: Sequence[PlanEntry], machine_id: str) -> PlanEntry | str:
    found = [entry for entry in entries if entry.plan.labels.get(MACHINE_ID) == machine_id]
    if len(found) > 1:
        return f"multiple machines found with identical machine ID label {MACHINE_ID}={machine_id}"
    return found[0] if found else f"unable to find designated init node matching machine ID {machine_id}"


def _suitable(entries: Sequence[PlanEntry], established: bool) -> PlanEntry | str:
    """Prefer machines with a join URL, the current init node first.

    If all of these are being deleted, one of them stays the init node until another machine has joined it. Before the
    cluster is established, any candidate will do: the current init node, or the first by name.
    """
    ranked = sorted(entries, key=lambda entry: (not entry.is_init, entry.name))
    joinable = [entry for entry in ranked if entry.can_be_init and entry.join_url]
    deleting = [
        entry
        for entry in ranked
        if entry.join_url and entry.roles.etcd and (entry.is_init or entry.awaits_etcd_removal)
    ]
    deleting.sort(key=lambda entry: is_lost(entry.machine))
    candidates = [entry for entry in ranked if entry.can_be_init]
    chosen = joinable or deleting or ([] if established else candidates)
    if chosen:
        return chosen[0]
    return LOST if established and candidates else NO_CANDIDATE


def _label_init_node(entry: PlanEntry, value: str | None) -> Patch:
    why = f"{entry.name} begins the cluster" if value else f"{entry.name} no longer begins the cluster"
    version = entry.plan.secret["metadata"]["resourceVersion"]
    return Patch(ref(PLAN_SECRET, entry.plan.secret), {"metadata": {"labels": {INIT_NODE: value}}}, why, "", version)
