"""Force-remove etcd machines when every etcd machine of a cluster is being deleted.

There is no quorum left to protect, so the machines must not wait for each other, for a drain or for volumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import EXCLUDE_NODE_DRAINING, EXCLUDE_WAIT_FOR_VOLUME_DETACH
from herder.api.rke.kinds import BOOTSTRAP
from herder.api.rke.names import ETCD_FORCE_REMOVE
from herder.api.writes import ref
from herder.controllers.planner.rollout.machines import PlanEntry, bootstrap_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch
from herder.engine.runtime.view import View

_REASON = "no machine is left that could keep the cluster's data"


@dataclass(frozen=True)
class ForcedRemoval:
    """Whether all etcd machines are being deleted, and the annotations that release them."""

    all_deleting: bool
    writes: tuple[Patch, ...] = ()


def force_remove_members(view: View, entries: Sequence[PlanEntry]) -> ForcedRemoval:
    """Release the etcd machines if no etcd machine remains that could keep the data."""
    etcd = [entry for entry in entries if entry.roles.etcd]
    if not etcd or not all(entry.is_deleting for entry in etcd):
        return ForcedRemoval(all_deleting=False)
    return ForcedRemoval(all_deleting=True, writes=tuple(write for entry in etcd for write in _release(view, entry)))


def _release(view: View, entry: PlanEntry) -> list[Patch]:
    bootstrap = view.get(BOOTSTRAP, bootstrap_of(entry.machine), entry.machine["metadata"]["namespace"])
    annotations = {EXCLUDE_NODE_DRAINING: "true", EXCLUDE_WAIT_FOR_VOLUME_DETACH: "true"}
    writes = (
        [Patch(ref(MACHINE, entry.machine), _annotations_patch(annotations), _REASON)]
        if _lacks(entry.machine, annotations)
        else []
    )
    if bootstrap is not None and _lacks(bootstrap, {ETCD_FORCE_REMOVE: "true"}):
        writes.append(Patch(ref(BOOTSTRAP, bootstrap), _annotations_patch({ETCD_FORCE_REMOVE: "true"}), _REASON))
    return writes


def _annotations_patch(annotations: dict[str, str]) -> Object:
    return {"metadata": {"annotations": annotations}}


def _lacks(obj: Object, annotations: dict[str, str]) -> bool:
    known = obj["metadata"].get("annotations") or {}
    return any(known.get(name) != value for name, value in annotations.items())
