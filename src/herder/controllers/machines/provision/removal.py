"""Remove a machine from its provider.

The object is released only when nothing of the machine is left: a Job succeeded, or the state Secret has no record, in
which the machine CLI stores every resource before it creates it. A user can force the release by annotation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from herder.api.capi.kinds import NAMESPACE, POD, SECRET, SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.machines import names
from herder.api.machines.archive import state_copy
from herder.api.machines.credentials import Problem, SecretKey, credential_key
from herder.api.machines.jobs import JOB
from herder.api.machines.state import STATE_FINALIZER, Recorded, recorded
from herder.api.numbers import parse_int64
from herder.api.writes import delete, object_patch, ref
from herder.controllers.machines.provision import conditions, logs
from herder.controllers.machines.provision.creation import blocked_by, launch, track_job, wait_for_pod
from herder.controllers.machines.provision.preparation import Pending, prepare
from herder.controllers.machines.provision.scope import (
    JobOutcome,
    ProvisionScope,
    ended_at,
    foreign_state_owner,
    has_started,
    is_forced,
    job_outcome,
    live_pod,
    removes,
)
from herder.controllers.machines.provision.secret_reader import Read, is_state, read
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Apply, Decision, Patch, Ref, Writes, waiting
from herder.engine.runtime.view import View

FINALIZER = "wrangler.cattle.io/machine-provision-remove"
ATTEMPTS = "machine.herder.io/removal-attempts"  # failed attempts, UID of the last failed Job, digest of its inputs
RETRY_FIRST, RETRY_LIMIT = timedelta(seconds=30), timedelta(minutes=30)

START_GRACE = timedelta(minutes=1)
"""How long to wait for a creating Job that has not started yet when its machine is deleted."""


def remove(scope: ProvisionScope, manager_env: Mapping[str, str]) -> Decision:
    if FINALIZER not in (scope.infra["metadata"].get("finalizers") or ()):
        return DONE
    if _namespace_is_deleting(scope):
        return _abandon(scope)
    job = scope.job
    if job is None:
        return _start(scope, manager_env)
    if is_deleting(job):
        return waiting("waiting for the previous Job to be deleted", ref(JOB, job))
    return _after_removal(scope, job) if removes(job) else _after_creation(scope, job)


# --- creating Job ---------------------------------------------------------------------------------------------------


def _after_creation(scope: ProvisionScope, job: Object) -> Decision:
    """Let the Job finish unless it never started: halfway through, it is unknown what must be removed."""
    if job_outcome(job) is None:
        return _unfinished(scope, job)
    if not logs.is_saved(scope, job):
        return logs.save(scope, job)
    return Decision(writes=logs.delete_job(scope, job, "the machine is being removed"))


def _unfinished(scope: ProvisionScope, job: Object) -> Decision:
    if is_forced(scope.infra):
        return Decision(writes=logs.delete_job(scope, job, f"annotation {names.FORCE_REMOVE} forces the removal"))
    if has_started(scope, job):
        return track_job(scope, job)
    deadline = datetime.fromisoformat(job["metadata"]["creationTimestamp"]) + START_GRACE
    if scope.view.now < deadline:
        return track_job(scope, job) + Decision(wake_at=deadline)
    return Decision(writes=logs.delete_job(scope, job, "the Job never started, and its machine is being deleted"))


# --- removing Job ---------------------------------------------------------------------------------------------------


def _start(scope: ProvisionScope, manager_env: Mapping[str, str]) -> Decision:
    if (pod := live_pod(scope)) is not None:
        return waiting("the Job is deleted, but its pod is still running", ref(POD, pod))
    if foreign_state_owner(scope):
        return _release(scope, "nothing was created for it")
    secret, pending = _record(scope)
    if pending is not None:
        return pending
    if not is_state(secret):
        return _release(replace(scope, state=None), "nothing was created for it")
    if recorded(secret) is Recorded.NOTHING:
        return _release(scope, "nothing was created for it, or everything is removed")
    try:
        work = prepare(scope, manager_env, removes=True)
    except Pending as pending_read:
        return pending_read.decision
    except Problem as problem:
        if is_forced(scope.infra):
            return _release(scope, f"annotation {names.FORCE_REMOVE} forces the removal: {problem}")
        message = f"{problem}; or set annotation {names.FORCE_REMOVE}: true to abandon the machine"
        return conditions.not_prepared(scope, message, removes=True) + waiting(message)
    return launch(scope, work)


def _record(scope: ProvisionScope) -> Read:
    """Read the state Secret past the cache: it must not be stale, nor its absence an artifact of the cache."""
    return read(scope, SecretKey(scope.namespace, names.state_secret(scope.name)), "remove", bypass_cache=True)


def _after_removal(scope: ProvisionScope, job: Object) -> Decision:
    outcome = job_outcome(job)
    if outcome is None:
        blocked = blocked_by(scope, job)
        decision = conditions.deleting(scope, blocked, jobName=job["metadata"]["name"])
        return decision + waiting(blocked or "the machine is being removed", ref(JOB, job))
    if outcome is JobOutcome.FAILED and not is_forced(scope.infra):
        return _retry(scope, job)
    if not logs.is_saved(scope, job):
        return (conditions.deleted(scope) if outcome is JobOutcome.COMPLETE else DONE) + logs.save(scope, job)
    if outcome is JobOutcome.COMPLETE:
        return _release(scope, "the machine is removed")
    return _release(scope, f"annotation {names.FORCE_REMOVE} forces the removal")


def _retry(scope: ProvisionScope, job: Object) -> Decision:
    """Retry a failed removal with exponential backoff, or at once if its inputs changed."""
    count, last_job, inputs_then = _attempts(scope.infra)
    inputs_now = _job_inputs_digest(scope)
    if last_job != job["metadata"]["uid"]:
        return _record_attempt(scope, f"{count + 1} {job['metadata']['uid']} {inputs_now}")
    if (awaited := wait_for_pod(scope, job)) is not None:
        return awaited
    message, pending = logs.termination_message(scope, job)
    if pending is not None:
        return pending
    report_status = conditions.not_deleted(scope, message)
    if not logs.is_saved(scope, job):
        return report_status + logs.save(scope, job)
    since = datetime.fromisoformat(ended_at(job)) if ended_at(job) else scope.view.now
    due = since + min(RETRY_FIRST * 2.0 ** min(count - 1, 10), RETRY_LIMIT)
    if scope.view.now < due and inputs_now == inputs_then:
        return report_status + waiting(f"the machine could not be removed; retrying: {message}", wake_at=due)
    return Decision(writes=logs.delete_job(scope, job, "the machine could not be removed; retrying"))


def _attempts(infra: Object) -> tuple[int, str, str]:
    recorded_attempt = annotations_of(infra).get(ATTEMPTS, "").split(" ")
    return (
        (max(parse_int64(recorded_attempt[0]), 0), recorded_attempt[1], recorded_attempt[2])
        if len(recorded_attempt) == 3
        else (0, "", "")
    )


def _record_attempt(scope: ProvisionScope, recorded_attempt: str) -> Decision:
    patch = {"metadata": {"annotations": {ATTEMPTS: recorded_attempt}}}
    return Decision(writes=(Patch(ref(scope.kind, scope.infra), patch, "the machine could not be removed"),))


def _job_inputs_digest(scope: ProvisionScope) -> str:
    """Digest of everything by which another attempt could differ from the last."""
    place = credential_key(scope.infra)
    credential = scope.view.get(SECRET_METADATA, place.name, place.namespace) if place else None
    marks = {name: value for name, value in annotations_of(scope.infra).items() if name != ATTEMPTS}
    inputs = [scope.infra.get("spec"), marks, credential and credential["metadata"]["resourceVersion"]]
    return hashlib.sha256(msgspec.json.encode(inputs, order="sorted")).hexdigest()[:12]


# --- release --------------------------------------------------------------------------------------------------------


def _release(scope: ProvisionScope, why: str) -> Decision:
    """Delete the state Secret, then release the object: the record is never deleted before what it describes."""
    cleared = logs.delete_job(scope, scope.job, why) if scope.job is not None else ()
    state = scope.state if scope.state is not None and not foreign_state_owner(scope) else None
    dropped = (*without_finalizer(state, why), delete(SECRET, state, why)) if state is not None else ()
    left = [name for name in scope.infra["metadata"]["finalizers"] if name != FINALIZER]
    wanted = {**scope.infra, "metadata": {**scope.infra["metadata"], "finalizers": left}}
    return Decision(writes=(*cleared, *dropped, *object_patch(scope.kind, scope.infra, wanted, why)))


def without_finalizer(state: Object, why: str) -> Writes:
    left = [name for name in state["metadata"].get("finalizers") or () if name != STATE_FINALIZER]
    wanted = {**state, "metadata": {**state["metadata"], "finalizers": left}}
    return object_patch(SECRET, state, wanted, why)


def release_orphan(view: View, state: Object) -> Decision:
    """State Secret whose machine object was force-deleted; it is kept until a user deletes it."""
    if not is_deleting(state):
        return waiting(
            "the machine was never removed from its provider; delete the Secret once it is", Ref(SECRET, view.name)
        )
    return Decision(writes=without_finalizer(state, "the machine object does not exist and a user deleted the Secret"))


# --- namespace deletion ---------------------------------------------------------------------------------------------


def _namespace_is_deleting(scope: ProvisionScope) -> bool:
    namespace = scope.view.get(NAMESPACE.metadata_only(), scope.namespace)
    return namespace is not None and is_deleting(namespace)


def _abandon(scope: ProvisionScope) -> Decision:
    """No Job can be created in a namespace being deleted; copy the machine's record to the archive for manual
    removal."""
    if scope.job is not None and job_outcome(scope.job) is None:
        return waiting("its namespace is being deleted, and its last Job with it", ref(JOB, scope.job))
    if foreign_state_owner(scope):
        return _release(scope, "nothing was created for it")
    secret, pending = _record(scope)
    if pending is not None:
        return pending
    if not is_state(secret):
        return _release(replace(scope, state=None), "nothing was created for it")
    if secret is None or recorded(secret) is Recorded.NOTHING:
        return _release(scope, "nothing was created for it")
    kept = Apply(
        SECRET,
        state_copy(secret, scope.infra, scope.kind),
        "archive the state of a machine whose namespace is being deleted",
    )
    released = _release(scope, "its namespace is being deleted")
    return Decision(writes=(*logs.archive_namespace(scope), kept)) + released
