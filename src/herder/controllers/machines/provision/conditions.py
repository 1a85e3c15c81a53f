"""Status of a machine: conditions in wrangler's flat form, and terminal failures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from herder.api.capi.conditions import condition, find
from herder.api.capi.kinds import MACHINE
from herder.api.events import normal, recorded, warning
from herder.api.machines.conditions import merged_with_updates
from herder.api.machines.failure import CREATE_ERROR, NOT_PREPARED
from herder.api.writes import status_patch
from herder.controllers.machines.provision.scope import ProvisionScope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Decision, Event

CREATE_JOB, DELETE_JOB, READY = "CreateJob", "DeleteJob", "Ready"
DELETE_ERROR = "DeleteError"
POD_PENDING = "PodPending"  # the Job exists, but its pod cannot start
_OUTCOMES = {"Created": "MachineCreated", "Deleted": "MachineRemoved"}
_PROBLEMS = {CREATE_ERROR: "FailedCreate", DELETE_ERROR: "FailedDelete", NOT_PREPARED: NOT_PREPARED}
"""Reasons of Events by the reason of the condition."""
_FAILURE = ("failureReason", "failureMessage")


def creating(scope: ProvisionScope, blocked: str = "", **fields: str) -> Decision:
    return _report_status(
        scope, CREATE_JOB, "Unknown", "Creating", _with(f"creating {scope.description}", blocked), fields
    )


def created(scope: ProvisionScope) -> Decision:
    return _report_status(scope, CREATE_JOB, "True", "Created", "", {})


def provisioned(scope: ProvisionScope) -> Decision:
    """Report provisioned once the provider ID is known: before that no Node could match."""
    if not (scope.infra.get("spec") or {}).get("providerID"):
        return DONE
    after = {**scope.status, "initialization": {"provisioned": True}}
    return Decision(status_patch(scope.kind, scope.infra, after, "it has a provider ID"))


def not_created(scope: ProvisionScope, why: str) -> Decision:
    message = f"failed creating {scope.description}: {CREATE_ERROR}: {why}"
    return _report_status(scope, CREATE_JOB, "False", CREATE_ERROR, message, _failure(CREATE_ERROR, why))


def not_prepared(scope: ProvisionScope, problem: str, *, removes: bool) -> Decision:
    return _report_status(scope, DELETE_JOB if removes else CREATE_JOB, "False", NOT_PREPARED, problem, {})


def deleting(scope: ProvisionScope, blocked: str = "", **fields: str) -> Decision:
    return _report_status(
        scope, DELETE_JOB, "Unknown", "Deleting", _with(f"deleting {scope.description}", blocked), fields
    )


def deleted(scope: ProvisionScope) -> Decision:
    return _report_status(scope, DELETE_JOB, "True", "Deleted", "", {}, ready="False")


def not_deleted(scope: ProvisionScope, why: str) -> Decision:
    message = f"failed deleting {scope.description}: {DELETE_ERROR}: {why}"
    return _report_status(scope, DELETE_JOB, "False", DELETE_ERROR, message, _failure(DELETE_ERROR, why))


def is_created(infra: Object) -> bool:
    found = find(infra, CREATE_JOB)
    return found is not None and found["status"] == "True"


def has_failed(infra: Object) -> bool:
    """Whether creation failed for good."""
    found = find(infra, CREATE_JOB)
    return found is not None and found["status"] == "False" and found.get("reason") == CREATE_ERROR


def has_result(infra: Object) -> bool:
    return is_created(infra) or has_failed(infra)


def is_in_progress(infra: Object) -> bool:
    """Whether a Job was started and its outcome is not recorded yet."""
    found = find(infra, CREATE_JOB)
    return found is not None and found["status"] == "Unknown"


def failed_at(infra: Object) -> datetime:
    found = find(infra, CREATE_JOB) or {}
    return datetime.fromisoformat(found["lastTransitionTime"])


def _with(message: str, blocked: str) -> str:
    return f"{message}: {blocked}" if blocked else message


def _failure(reason: str, message: str) -> Object:
    return {"failureReason": reason, "failureMessage": message}


def _report_status(
    scope: ProvisionScope, type_: str, status: str, reason: str, message: str, fields: Object, *, ready: str = ""
) -> Decision:
    """Set the Job's condition, and Ready to the same."""
    wanted = [condition(type_, status, reason, message), condition(READY, ready or status, reason, message)]
    before = {name: value for name, value in scope.status.items() if name not in _FAILURE}
    after = {**before, **fields, "conditions": merged_with_updates(before.get("conditions"), wanted, scope.view.now)}
    patches = status_patch(scope.kind, scope.infra, after, message or f"{type_} is {status}")
    return Decision(recorded(patches, _events(scope, type_, reason, message)))


def _events(scope: ProvisionScope, type_: str, reason: str, message: str) -> Iterator[Event]:
    """Report an outcome on the machine object, and what is wrong on its Machine too."""
    known = find(scope.infra, type_) or {}
    if (known.get("reason"), known.get("message", "")) == (reason, message):
        return
    if reason in _OUTCOMES:
        yield normal(scope.kind, scope.infra, _OUTCOMES[reason], f"{reason} {scope.description}")
    elif (name := _PROBLEMS.get(reason)) or message.partition(": ")[2]:
        yield from _problem_events(scope, name or POD_PENDING, message)


def _problem_events(scope: ProvisionScope, reason: str, message: str) -> Iterator[Event]:
    """What fails for good is an Event of the Machine anyway: its controller sees the failure."""
    yield warning(scope.kind, scope.infra, reason, message)
    if scope.machine is not None and reason in (NOT_PREPARED, POD_PENDING):
        yield warning(MACHINE, scope.machine, reason, message)
