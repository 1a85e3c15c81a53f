"""Requests for operations: what the spec of a cluster requests, its progress and its outcome. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from herder.api.capi.conditions import find
from herder.api.rke.operations import (
    AGENTS,
    AUTHORITIES,
    CERTIFICATES,
    FAILED,
    KINDS,
    TITLES,
    Run,
    active_run,
    is_ended,
    request_in,
    request_of_cluster,
)
from herder.cli.operations.estimate import estimate
from herder.engine.apiserver.tables.duration import human_duration
from herder.engine.meta.kinds import Object

_ROTATIONS = (CERTIFICATES, AUTHORITIES)
"""One field requests both, with one generation."""
PENDING = "Pending"
"""Phase of a request that has not started."""


@dataclass(frozen=True)
class Request:
    """One request: a field of the spec with a generation."""

    kind: str
    generation: int

    @property
    def title(self) -> str:
        """The manager itself starts operations without a generation."""
        return f"{title_of(self.kind)} {self.generation}" if self.generation else title_of(self.kind)


@dataclass(frozen=True)
class Outcome:
    """How an operation has ended."""

    has_failed: bool
    message: str = ""


def title_of(kind: str) -> str:
    return TITLES.get(kind, kind)


def requested(cluster: Object | None, kind: str) -> int:
    """Generation that the spec of a provisioning Cluster requests; 0 if none."""
    return _generation(request_of_cluster(cluster, kind))


def last_generation(cluster: Object, control_plane: Object | None, kind: str) -> int:
    """The highest generation that is known. The request may have been removed from the spec since."""
    status, run = (control_plane or {}).get("status") or {}, Run.of(control_plane)
    kinds = _ROTATIONS if kind in _ROTATIONS else (kind,)
    known = [found for each in kinds for found in (requested(cluster, each), _generation(request_in(status, each)))]
    known += [run.generation] if run is not None and run.kind in kinds else []
    known += [_number(status.get("certificateRotationGeneration"))] if kind in _ROTATIONS else []
    return max(known)


def run_of(control_plane: Object | None, request: Request) -> Run | None:
    run = Run.of(control_plane)
    return run if run is not None and (run.kind, run.generation) == (request.kind, request.generation) else None


def outcome_of(control_plane: Object | None, request: Request) -> Outcome | None:
    """None until the operation has ended.

    An earlier run is found in the history, and later by the fields that Rancher's clients read.
    """
    run = run_of(control_plane, request)
    if run is not None:
        return None if run.is_active else Outcome(run.phase == FAILED, run.message)
    recorded = operation_data(control_plane, request)
    if is_ended(recorded["phase"]):
        return Outcome(recorded["phase"] == FAILED, str(recorded.get("message") or ""))
    status: Object = (control_plane or {}).get("status") or {}
    if request.kind in _ROTATIONS:
        is_done = _number(status.get("certificateRotationGeneration")) == request.generation
        return Outcome(has_failed=False) if is_done else None
    if request.kind == AGENTS:  # has no phase; the status has the request from its start
        is_started = _generation(request_in(status, AGENTS)) == request.generation
        return Outcome(has_failed=False) if is_started else None
    phase = str(status.get(f"{request.kind}Phase") or "")
    if _generation(request_in(status, request.kind)) != request.generation or not is_ended(phase):
        return None
    return Outcome(phase == FAILED, "another operation has run since; see the Events of the cluster")


def operation_data(control_plane: Object | None, request: Request) -> Object:
    """The run of a request in the form of the status; also one after which another operation has begun."""
    status: Object = (control_plane or {}).get("status") or {}
    known = [*(status.get("operationHistory") or ()), *([status["operation"]] if status.get("operation") else [])]
    wanted = (request.kind, request.generation)
    own = (each for each in reversed(known) if (each.get("kind"), each.get("generation")) == wanted)
    return dict(next(own, {"kind": request.kind, "generation": request.generation, "phase": PENDING}))


def pending_requests(cluster: Object, control_plane: Object | None) -> Iterator[Request]:
    """Requests that have not started, in the order in which they start."""
    for kind in KINDS:
        request = Request(kind, requested(cluster, kind))
        if request.generation and not run_of(control_plane, request) and not outcome_of(control_plane, request):
            yield request


def is_replaced(cluster: Object | None, control_plane: Object | None, request: Request, written: int) -> bool:
    """Whether the spec requests something else before the operation has started.

    `written`: metadata.generation of the Cluster with the request; the watch may first report an older one.
    """
    if cluster is None or cluster["metadata"].get("generation", 0) < written or control_plane is None:
        return False
    wanted = requested(cluster, request.kind)
    seen = _generation(request_in(control_plane.get("spec") or {}, request.kind))
    return wanted == seen != request.generation and run_of(control_plane, request) is None


def progress_message(control_plane: Object | None) -> str:
    """What the operation in progress waits for, without its name and phase; empty if nothing is known."""
    run, ready = active_run(control_plane), find(control_plane, "Ready") or {}
    if run is None or ready.get("status") == "True":
        return ""
    message, title = " ".join(str(ready.get("message") or "").split()), title_of(run.kind)
    if message in (f"{title}: starting", f"{title}: phase {run.phase}"):
        return ""
    return message.removeprefix(f"{title}, phase {run.phase}: ").removeprefix(f"{title}: ")


def operation_line(control_plane: Object | None, now: datetime) -> str:
    """The operation in progress, or the last one, in one line; empty without one."""
    run = Run.of(control_plane)
    if run is None:
        return ""
    request, age = Request(run.kind, run.generation), human_duration((now - run.started_at).total_seconds())
    if not run.is_active:
        note = "; ".join(each for each in (run.message, run.skipped_message) if each)
        why = f": {' '.join(note.split())}" if note else ""
        return f"last operation: {request.title}, {run.phase}, started {age} ago{why}"
    attempt = f", attempt {run.attempt}" if run.attempt > 1 else ""
    waiting = f": {message}" if (message := progress_message(control_plane)) else ""
    found = estimate(control_plane, now)
    progress = f", {found}" if found is not None else ""
    return f"operation: {request.title}, phase {run.phase}{attempt}{progress}, started {age} ago{waiting}"


def agents_line(control_plane: Object | None) -> str:
    """Machines whose node agents are not those that the manager serves, in one line; empty if there are none."""
    found = find(control_plane, "NodeAgentsUpToDate") or {}
    message = " ".join(str(found.get("message") or "").split())
    return f"node agents: {message}" if message else ""


def _generation(request: object) -> int:
    return _number(request.get("generation")) if isinstance(request, dict) else 0


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
