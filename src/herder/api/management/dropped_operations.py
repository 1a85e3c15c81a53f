"""Requested operations of a cluster whose manager was restored from a backup, and how they are dropped.

The backup does not say whether a request was carried out since. A restore of an old snapshot would replace newer data.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from herder.api.rke.operation_history import extended_history
from herder.api.rke.operations import (
    AGENTS,
    CERTIFICATES,
    ENCRYPTION_KEYS,
    FAILED,
    KINDS,
    RESTORE,
    SNAPSHOT,
    TITLES,
    active_run,
    field_of,
    request_in,
    request_of_cluster,
)
from herder.engine.meta.kinds import Object

DROPPED = "interrupted by the restore of the manager; herder resume has dropped it"
_REPORTED = (SNAPSHOT, RESTORE, ENCRYPTION_KEYS)
"""Kinds whose phase the status has in a field of its own."""


class Pending(NamedTuple):
    """A request that no run has begun to carry out."""

    kind: str
    request: Object
    replaces: Object  # an older pending request, which the control plane still has; empty if there is none

    @property
    def title(self) -> str:
        return f"{TITLES[self.kind]} {self.request['generation']}"

    @property
    def field(self) -> object:
        return self.request["generation"] if self.kind == AGENTS else self.request


def pending_requests(cluster: Object, control_plane: Object | None) -> Iterator[Pending]:
    """Requests of the Cluster, and of its control plane, to which the Cluster's are copied later."""
    if control_plane is None:
        return
    for kind in KINDS:
        given = [request_of_cluster(cluster, kind), request_in(control_plane.get("spec") or {}, kind)]
        found = [each for each in given if _is_pending(control_plane.get("status") or {}, kind, each)]
        if found:
            yield Pending(kind, found[0], found[-1] if found[-1] != found[0] else {})


def _is_pending(status: Object, kind: str, request: Object) -> bool:
    generation = request.get("generation")
    done = status.get("certificateRotationGeneration") if kind == CERTIFICATES else None
    return bool(generation) and generation != done and request != request_in(status, kind)


def dropped_status(cluster: Object, control_plane: Object, now: datetime) -> Object:
    """Merge patch of the control plane's status: ends the operation in progress, and takes requests as carried out."""
    before, changes = control_plane.get("status") or {}, {}
    run = active_run(control_plane)
    if run is not None:
        failed = run.resumed(now).at(FAILED, now, None, message=DROPPED)
        changes["operation"] = _replaced(before.get("operation"), failed.to_status())
        changes["operationHistory"] = extended_history(before, failed, now)
    dropped = [*pending_requests(cluster, control_plane)]
    changes |= {field_of(each.kind): _replaced(before.get(field_of(each.kind)), each.field) for each in dropped}
    ended = {each.kind for each in dropped} | ({run.kind} if run is not None else set())
    return changes | {f"{kind}Phase": FAILED for kind in _REPORTED if kind in ended}


def replaced_requests(cluster: Object, control_plane: Object) -> Object:
    """Merge patch of the control plane's spec, so that it has no older request than the one that is dropped."""
    pending = [each for each in pending_requests(cluster, control_plane) if each.replaces]
    return {field_of(each.kind): _replaced(each.replaces, each.field) for each in pending}


def _replaced(old: object, new: object) -> object:
    """A value that a merge patch sets as a whole."""
    if not isinstance(new, dict):
        return new
    return {**dict.fromkeys(old if isinstance(old, dict) else ()), **new}
