"""Which machine begins the cluster. There is never more than one such mark, and it moves only where it must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.names import INIT_NODE, MACHINE_ID
from herder.api.rke.strategy import is_lost
from herder.api.writing import ref
from herder.controllers.planner.entries import Entry
from herder.engine.runtime.decision import Patch

NO_CANDIDATE = "waiting for viable init node"
LOST = (
    "rkecontrolplane was already initialized but no etcd machines exist that have plans, indicating the etcd plane has "
    "been entirely replaced. Restoration from etcd snapshot is required."
)


@dataclass(frozen=True)
class Election:
    """Either somebody is in office, or marks must change first, or `waiting` says why neither can be."""

    init: Entry | None = None
    writes: tuple[Patch, ...] = ()
    waiting: str = ""


def elect(entries: Sequence[Entry], designated: str = "", *, begun: bool = False) -> Election:
    """`designated`: the machine id that the cluster's owner wants, and then nobody else is elected. `begun`: somebody
    could be joined once. From then on a machine that cannot be joined would begin another cluster."""
    wanted = _designated(entries, designated) if designated else _suitable(entries, begun)
    if isinstance(wanted, str):
        return Election(waiting=wanted)
    usurpers = [entry for entry in entries if entry.is_init and entry is not wanted]
    if usurpers:
        return Election(writes=tuple(_mark(entry, None) for entry in usurpers))
    if not wanted.is_init:
        return Election(writes=(_mark(wanted, "true"),))
    return Election(init=wanted)


def _designated(entries: Sequence[Entry], machine_id: str) -> Entry | str:
    found = [entry for entry in entries if entry.plan.labels.get(MACHINE_ID) == machine_id]
    if len(found) > 1:
        return f"multiple machines found with identical machine ID label {MACHINE_ID}={machine_id}"
    return found[0] if found else f"unable to find designated init node matching machine ID {machine_id}"


def _suitable(entries: Sequence[Entry], begun: bool) -> Entry | str:
    """Who can be joined, those in office first. Where the last of them go one that is there still is in office until
    another has joined it. Before the cluster has begun it may be anybody: who is in office, or the first by name."""
    ranked = sorted(entries, key=lambda entry: (not entry.is_init, entry.name))
    joinable = [entry for entry in ranked if entry.can_be_init and entry.join_url]
    leaving = [entry for entry in ranked if entry.join_url and entry.roles.etcd and (entry.is_init or entry.is_held)]
    leaving.sort(key=lambda entry: is_lost(entry.machine))
    anybody = [entry for entry in ranked if entry.can_be_init]
    chosen = joinable or leaving or ([] if begun else anybody)
    if chosen:
        return chosen[0]
    return LOST if begun and anybody else NO_CANDIDATE


def _mark(entry: Entry, mark: str | None) -> Patch:
    why = f"{entry.name} begins the cluster" if mark else f"{entry.name} no longer begins the cluster"
    version = entry.plan.secret["metadata"]["resourceVersion"]
    return Patch(ref(PLAN_SECRET, entry.plan.secret), {"metadata": {"labels": {INIT_NODE: mark}}}, why, "", version)
