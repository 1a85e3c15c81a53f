"""When no machine is left that could keep the cluster, those that go are not made to wait for one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import EXCLUDE_NODE_DRAINING, EXCLUDE_WAIT_FOR_VOLUME_DETACH
from herder.api.rke.kinds import BOOTSTRAP
from herder.api.rke.names import ETCD_FORCE_REMOVE
from herder.api.writing import ref
from herder.controllers.planner.entries import Entry, bootstrap_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch
from herder.engine.runtime.view import View

_WHY = "no machine is left that could keep the cluster's data"


@dataclass(frozen=True)
class Forced:
    leaving: bool
    writes: tuple[Patch, ...] = ()


def release_leaving_members(view: View, entries: Sequence[Entry]) -> Forced:
    """Only while no etcd machine is to stay: then there is no quorum that their going could hurt."""
    etcd = [entry for entry in entries if entry.roles.etcd]
    if not etcd or not all(entry.is_deleting for entry in etcd):
        return Forced(leaving=False)
    return Forced(leaving=True, writes=tuple(write for entry in etcd for write in _release(view, entry)))


def _release(view: View, entry: Entry) -> list[Patch]:
    bootstrap = view.get(BOOTSTRAP, bootstrap_of(entry.machine), entry.machine["metadata"]["namespace"])
    marks = {EXCLUDE_NODE_DRAINING: "true", EXCLUDE_WAIT_FOR_VOLUME_DETACH: "true"}
    writes = [Patch(ref(MACHINE, entry.machine), _annotated(marks), _WHY)] if _lacks(entry.machine, marks) else []
    if bootstrap is not None and _lacks(bootstrap, {ETCD_FORCE_REMOVE: "true"}):
        writes.append(Patch(ref(BOOTSTRAP, bootstrap), _annotated({ETCD_FORCE_REMOVE: "true"}), _WHY))
    return writes


def _annotated(marks: dict[str, str]) -> Object:
    return {"metadata": {"annotations": marks}}


def _lacks(obj: Object, marks: dict[str, str]) -> bool:
    known = obj["metadata"].get("annotations") or {}
    return any(known.get(mark) != value for mark, value in marks.items())
