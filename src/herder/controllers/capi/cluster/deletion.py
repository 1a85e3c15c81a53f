"""Deletion order of a Cluster: workers, then the control plane, then the infrastructure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET
from herder.api.capi.names import ABANDON_INFRASTRUCTURE, annotations_of, is_deleting
from herder.api.writes import delete, ref
from herder.controllers.capi.cluster.members import CONTROL_PLANE_MACHINE, DELETABLE, WORKER
from herder.controllers.capi.cluster.scope import ClusterScope
from herder.controllers.capi.externals import External
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Delete, Ref

NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Stage:
    """The current deletion stage: what to delete for it, and reason and message of the Deleting condition."""

    reason: str
    message: str
    deletes: tuple[Delete, ...] = ()
    waits_for: Ref | None = None


def stage(scope: ClusterScope) -> Stage | None:
    """The first stage that is not finished; None when everything is deleted."""
    return next((left for each in _STAGES if (left := each(scope)) is not None), None)


def _workers(scope: ClusterScope) -> Stage | None:
    """Wait for all objects with the cluster's label; delete only those that the Cluster itself owns."""
    members = scope.members
    pending = {
        "MachineDeployments": _names(members.deployments),
        "MachineSets": _names(members.sets),
        "MachinePools": _names(members.pools),
        "Worker Machines": members.machine_names(WORKER),
    }
    if not any(pending.values()):
        return None
    deletes = (
        *_deletes(MACHINE_POOL, members.owned(members.pools)),
        *_deletes(MACHINE_DEPLOYMENT, members.owned(members.deployments)),
        *_deletes(MACHINE_SET, members.owned(members.sets)),
        *_deletes(MACHINE, members.owned(members.machines(WORKER, DELETABLE))),
    )
    return Stage("WaitingForWorkersDeletion", _pending_text(pending), deletes)


def _control_plane_machines(scope: ClusterScope) -> Stage | None:
    """Control plane Machines of a Cluster without a control plane object."""
    names = [] if scope.control_plane is not None else scope.members.machine_names(CONTROL_PLANE_MACHINE)
    if not names:
        return None
    deletable = scope.members.owned(scope.members.machines(CONTROL_PLANE_MACHINE, DELETABLE))
    message = _pending_text({"Control plane Machines": names})
    return Stage("WaitingForControlPlaneDeletion", message, _deletes(MACHINE, deletable))


def _control_plane(scope: ClusterScope) -> Stage | None:
    return _external(scope, scope.control_plane, "controlPlaneRef", "WaitingForControlPlaneDeletion")


def _infrastructure(scope: ClusterScope) -> Stage | None:
    left = _external(scope, scope.infrastructure, "infrastructureRef", "WaitingForInfrastructureDeletion")
    if left is not None and not left.deletes and annotations_of(scope.cluster).get(ABANDON_INFRASTRUCTURE) == "true":
        return None
    return left


def _external(scope: ClusterScope, external: External | None, field: str, reason: str) -> Stage | None:
    if external is None or external.deleted:
        return None
    if external.obj is None or external.kind is None:
        return Stage("InternalError", external.problem)
    message = f"Waiting for {scope.cluster['spec'][field]['kind']} to be deleted"
    return Stage(reason, message, _deletes(external.kind, [external.obj]), ref(external.kind, external.obj))


_STAGES: tuple[Callable[[ClusterScope], Stage | None], ...] = (
    _workers,
    _control_plane_machines,
    _control_plane,
    _infrastructure,
)


def _deletes(kind: Kind, objects: Iterable[Object]) -> tuple[Delete, ...]:
    return tuple(delete(kind, obj, "its Cluster is being deleted") for obj in objects if not is_deleting(obj))


def _names(objects: Iterable[Object]) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in objects)


def _pending_text(pending: dict[str, list[str]]) -> str:
    return "\n".join(f"* {what}: {_shortened(names)}" for what, names in pending.items() if names)


def _shortened(names: list[str]) -> str:
    left = len(names) - NAMES_SHOWN
    return ", ".join([*names[:NAMES_SHOWN], *([f"... ({left} more)"] if left > 0 else [])])
