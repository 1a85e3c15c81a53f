"""Create a machine: start one Job, track it, record the outcome, and clean up.

A Job is started only if there is no trace of an earlier one: no Job, no pod, no record in the state Secret. A machine
is therefore never created twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from herder.api import settings
from herder.api.capi.kinds import MACHINE, POD, SECRET, SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting, labels_of
from herder.api.events import normal, recording, warning
from herder.api.machines import jobs, names
from herder.api.machines.archive import CONFIG_MAP_METADATA, FINISHED_AT
from herder.api.machines.credentials import Problem, SecretKey, credential_key
from herder.api.machines.failure import POD_WAITS
from herder.api.machines.jobs import JOB, JobInputs
from herder.api.machines.state import STATE_FINALIZER, Recorded, recorded
from herder.api.times import parse_time
from herder.api.writes import delete, object_patch, ref
from herder.controllers.machines.provision import conditions, logs
from herder.controllers.machines.provision.preparation import Pending, prepare
from herder.controllers.machines.provision.scope import (
    BY_MACHINE_SET,
    FINISHED_PODS,
    JobOutcome,
    ProvisionScope,
    ended_at,
    foreign_state_owner,
    job_outcome,
    live_pod,
    newest_pod,
)
from herder.controllers.machines.provision.secret_reader import is_state, read
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Apply, Create, Decision, Parallel, Write, waiting

POD_GRACE = timedelta(seconds=10)
"""A Job may be seen as failed before its pod is; how long to wait for the pod."""

FAILURE_WINDOW = timedelta(minutes=30)
"""Failures of a MachineSet within this time count as one series."""
MIN_BACKOFF, MAX_BACKOFF = timedelta(seconds=10), timedelta(minutes=10)
"""How long a failed Machine stays before it is replaced: users must be able to see why it failed."""

JOB_IS_LOST = "the Job is lost and its outcome is unknown; delete the Machine to remove what it created"


def create(scope: ProvisionScope, manager_env: Mapping[str, str]) -> Decision:
    if (unprotected := _protect_state(scope)) is not None:
        return unprotected
    if conditions.is_created(scope.infra):
        return conditions.provisioned(scope) + clean_up(scope)
    if conditions.has_failed(scope.infra):
        return clean_up(scope) + _delete_failed_machine(scope)
    if scope.job is not None:
        return track_job(scope, scope.job)
    return _start(scope, manager_env)


def _protect_state(scope: ProvisionScope) -> Decision | None:
    """Add finalizer and labels to a state Secret that was restored, migrated, or stripped of its finalizer."""
    state = scope.state
    if state is None or is_deleting(state) or foreign_state_owner(scope):
        return None
    meta = state["metadata"]
    if STATE_FINALIZER in (meta.get("finalizers") or ()):
        return None
    secret, pending = read(scope, SecretKey(scope.namespace, meta["name"]), "create")
    if pending is not None or not is_state(secret):
        return pending
    own = jobs.state_secret(scope.infra, scope.kind, scope.machine_name, str(credential_key(scope.infra) or ""))[
        "metadata"
    ]
    wanted = {
        **meta,
        "finalizers": [*(meta.get("finalizers") or ()), STATE_FINALIZER],
        "labels": {**labels_of(state), **own["labels"]},
        "annotations": {**annotations_of(state), **own["annotations"]},
    }
    patch = object_patch(SECRET, state, {**state, "metadata": wanted}, "protect the state Secret of the machine")
    return Decision(writes=patch) if patch else None


# --- start ----------------------------------------------------------------------------------------------------------


def _start(scope: ProvisionScope, manager_env: Mapping[str, str]) -> Decision:
    if other := foreign_state_owner(scope):
        return _not_prepared(scope, f"{other} uses the same state Secret; rename one of the machines")
    if scope.state is not None:
        if (pod := live_pod(scope)) is not None:
            return waiting("the Job is deleted, but its pod is still running", ref(POD, pod))
        secret, pending = read(scope, SecretKey(scope.namespace, scope.state["metadata"]["name"]), "create")
        if pending is not None:
            return pending
        if secret is not None and not is_state(secret):
            where, type_ = f"Secret {scope.namespace}/{scope.state['metadata']['name']}", secret.get("type")
            reason = f"{where} is of type {type_}, not a machine state; delete it, or delete the Machine"
            return _not_prepared(scope, reason)
        if (resumed := _resume(scope, recorded(secret))) is not None:
            return resumed
    try:
        work = prepare(scope, manager_env, removes=False)
    except Problem as problem:
        return _not_prepared(scope, str(problem))
    except Pending as pending_read:
        return pending_read.decision
    return launch(scope, work)


def _resume(scope: ProvisionScope, record: Recorded) -> Decision | None:
    """Outcome of a machine whose Job does not exist, from its record; None if it must be created."""
    match record:
        case Recorded.CREATED:
            return conditions.created(scope)
        case Recorded.FOREIGN if conditions.is_in_progress(scope.infra):
            return conditions.not_created(scope, JOB_IS_LOST)
        case Recorded.FOREIGN:
            return conditions.created(scope)
        case Recorded.UNREADABLE:
            where = f"Secret {scope.namespace}/{names.state_secret(scope.name)}"
            return _not_prepared(scope, f"{where} cannot be read; restore it from a backup, or delete the Machine")
    return None


def _not_prepared(scope: ProvisionScope, problem: str) -> Decision:
    return conditions.not_prepared(scope, problem, removes=False) + waiting(problem)


def launch(scope: ProvisionScope, work: JobInputs) -> Decision:
    """Create the Job last, after its dependencies and the status that a later pass relies on."""
    if conflict := _name_conflict(scope, work):
        return conditions.not_prepared(scope, conflict, removes=work.removes) + waiting(conflict)
    report = conditions.deleting if work.removes else conditions.creating
    status = report(scope, scope.view.rejected, **_removal_record(scope, work))
    needed = Decision(writes=(Parallel((*_new_state(scope), *_job_dependencies(work))),))
    purpose = "remove the machine" if work.removes else "create the machine"
    started = normal(scope.kind, scope.infra, "SuccessfulCreate", f"Created Job {work.job_name} to {purpose}")
    job = Create(JOB, jobs.job(work), purpose, events=(started,))
    # A rejected write, such as by a quota, is reported first: those after it are not executed.
    steps = (status, needed) if scope.view.rejected else (needed, status)
    return steps[0] + steps[1] + Decision(writes=(job,))


def _name_conflict(scope: ProvisionScope, work: JobInputs) -> str:
    """Message if a name that the Job needs is taken.

    Long names are truncated, so it may belong to another machine or to a user. Applied over a user's Secret, that
    user's variables would reach the Job.
    """
    for kind, name in (
        (SECRET_METADATA, names.environment_secret(scope.name)),
        (SECRET_METADATA, work.job_name),
        (JOB, work.job_name),
    ):
        found = scope.view.get(kind, name)
        owners = (found["metadata"].get("ownerReferences") or ()) if found is not None else ()
        if found is not None and not any(each.get("controller") and each["uid"] == scope.uid for each in owners):
            where = f"{kind.kind} {scope.namespace}/{name}"
            return f"{where} is needed for the Job but has another owner; delete it, or delete the Machine"
    return ""


def _new_state(scope: ProvisionScope) -> tuple[Write, ...]:
    if scope.state is not None:
        return ()
    secret = jobs.state_secret(scope.infra, scope.kind, scope.machine_name, str(credential_key(scope.infra) or ""))
    return (Create(SECRET, secret, "create the state Secret of the machine"),)


def _job_dependencies(work: JobInputs) -> tuple[Write, ...]:
    files = [(SECRET, jobs.files_secret(work))] if work.files else []
    dependencies = [
        (SECRET, jobs.environment_secret(work)),
        *files,
        (jobs.SERVICE_ACCOUNT, jobs.service_account(work)),
        (jobs.ROLE, jobs.role(work)),
        *((jobs.ROLE_BINDING, binding) for binding in jobs.role_bindings(work)),
    ]
    return tuple(Apply(kind, obj, "the Job needs it") for kind, obj in dependencies)


def _removal_record(scope: ProvisionScope, work: JobInputs) -> dict[str, str]:
    """What the removal needs in case the NodeDriver no longer exists."""
    common = (scope.infra.get("spec") or {}).get("common") or {}
    credential = common.get("cloudCredentialSecretName") or scope.status.get("cloudCredentialSecretName")
    return {
        "jobName": work.job_name,
        "driverUrl": work.download.url,
        "driverHash": work.download.checksum,
        "cloudCredentialSecretName": credential or "",
    }


# --- progress -------------------------------------------------------------------------------------------------------


def track_job(scope: ProvisionScope, job: Object) -> Decision:
    match job_outcome(job):
        case JobOutcome.COMPLETE:
            return conditions.created(scope) + clean_up(scope)
        case JobOutcome.FAILED:
            return _failed(scope, job)
    blocked = blocked_by(scope, job)
    decision = conditions.creating(scope, blocked, jobName=job["metadata"]["name"])
    return decision + waiting(blocked or "the machine is being created", ref(JOB, job))


def _failed(scope: ProvisionScope, job: Object) -> Decision:
    if (awaited := wait_for_pod(scope, job)) is not None:
        return awaited
    message, pending = logs.termination_message(scope, job)
    if pending is not None:
        return pending
    return conditions.not_created(scope, message) + clean_up(scope)


def wait_for_pod(scope: ProvisionScope, job: Object) -> Decision | None:
    """None once the pod of a failed Job is seen to have ended, or will not be."""
    pod = newest_pod(scope.view, job)
    if pod is not None and (pod.get("status") or {}).get("phase") in FINISHED_PODS:
        return None
    since = ended_at(job)
    if not since or scope.view.now >= (until := datetime.fromisoformat(since) + POD_GRACE):
        return None
    return waiting("the Job failed; waiting for its pod to report why", ref(JOB, job), wake_at=until)


def blocked_by(scope: ProvisionScope, job: Object) -> str:
    """Why the Job does not run, from its pod: image pull errors, or no schedulable node."""
    status = (newest_pod(scope.view, job) or {}).get("status") or {}
    containers = status.get("containerStatuses") or ()
    waits = [(container.get("state") or {}).get("waiting") or {} for container in containers]
    known_of = status.get("conditions") or ()
    unscheduled = [known for known in known_of if known["type"] == "PodScheduled" and known["status"] == "False"]
    messages = [cause["message"] for cause in (*waits, *unscheduled) if cause.get("message")]
    return f"{POD_WAITS}{messages[0]}" if messages else ""


# --- cleanup --------------------------------------------------------------------------------------------------------


def clean_up(scope: ProvisionScope) -> Decision:
    """Delete the Job and its dependencies once its log is archived; only the state Secret stays."""
    job = scope.job
    if job is None or job_outcome(job) is None or is_deleting(job):
        return DONE
    if not logs.is_saved(scope, job):
        return logs.save(scope, job)
    return Decision(writes=logs.delete_job(scope, job, "the creation has finished"))


def _delete_failed_machine(scope: ProvisionScope) -> Decision:
    """Delete a Machine without an instance, so that its MachineSet replaces it."""
    machine = scope.machine
    if machine is None or is_deleting(machine) or not scope.machine_set:
        return DONE
    timeout = timedelta(seconds=settings.parse_duration(scope.view.setting(settings.DELETE_FAILED_MACHINES_AFTER)))
    failed = conditions.failed_at(scope.infra)
    at = failed + max(timeout, _backoff(scope, failed))
    if at > scope.view.now:
        return waiting("the server could not be created; the MachineSet replaces it", ref(MACHINE, machine), wake_at=at)
    message = f"Machine {scope.machine_name} has failed; its MachineSet replaces it"
    replaced = warning(MACHINE, machine, "MachineReplaced", message)
    return Decision(writes=(recording(delete(MACHINE, machine, "the server could not be created"), replaced),))


def _backoff(scope: ProvisionScope, until: datetime) -> timedelta:
    """How long to keep a failed Machine: as long as Machines of its MachineSet have been failing recently.

    Waiting that long each time makes retries exponentially rarer: a pool that cannot work must not fill the archive,
    and its failed Machine stays visible. An edit of the pool creates another MachineSet, which begins anew.
    """
    logs_of_failures = scope.view.select(
        CONFIG_MAP_METADATA, index=(BY_MACHINE_SET, f"{scope.namespace}/{scope.machine_set}")
    )
    ends = [parse_time(annotations_of(log).get(FINISHED_AT)) for log in logs_of_failures]
    first = min((time for time in ends if time and until - FAILURE_WINDOW < time < until), default=until)
    return min(max(until - first, MIN_BACKOFF), MAX_BACKOFF)
