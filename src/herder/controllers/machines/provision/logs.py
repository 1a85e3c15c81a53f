"""Archive the log of a Job with sensitive values redacted, then delete the Job and its dependencies."""

from __future__ import annotations

from typing import NamedTuple

from herder.api.capi.kinds import NAMESPACE, SECRET, SECRET_METADATA
from herder.api.machines import names
from herder.api.machines.archive import CONFIG_MAP, CONFIG_MAP_METADATA, MAX_LOG_BYTES, archived_job_uid, log_object
from herder.api.machines.credentials import SecretKey, redact
from herder.api.machines.drivers.arguments import spec_fields
from herder.api.machines.jobs import CONTAINER, JOB, job_dependents
from herder.api.writes import delete
from herder.controllers.machines.provision.scope import (
    JobOutcome,
    ProvisionScope,
    ended_at,
    job_outcome,
    newest_pod,
    removes,
)
from herder.controllers.machines.provision.secret_reader import read, texts
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Decision, Delete, Effect, Parallel, Ref, Writes, waiting

TRIES = 3
"""Attempts to read a log; a missing pod must not block anything."""

POD_IS_GONE = "(the pod does not exist anymore; its log is lost)\n"
NOT_REDACTABLE = "(log not archived: the Secret that lists the values to redact does not exist anymore)\n"


def is_saved(scope: ProvisionScope, job: Object) -> bool:
    kept = scope.view.get(CONFIG_MAP_METADATA, names.archived_log(scope.namespace, scope.name), names.ARCHIVE_NAMESPACE)
    return kept is not None and archived_job_uid(kept, _key(job)) == job["metadata"]["uid"]


def save(scope: ProvisionScope, job: Object) -> Decision:
    """Read the log and write it to the archive."""
    text, pending = _text(scope, job)
    if pending is not None:
        return pending
    failed_in = scope.machine_set if job_outcome(job) is JobOutcome.FAILED and not removes(job) else ""
    uid, at = job["metadata"]["uid"], ended_at(job)
    log = log_object(scope.infra, scope.kind, _key(job), uid, text, at, failed_in=failed_in)
    writer = f"machine-log-{_key(job)}"  # a field manager per log, so that one does not remove the other
    write = Apply(CONFIG_MAP, log, "archive the log of the Job", manager=writer)
    return Decision(writes=(*archive_namespace(scope), write))


def archive_namespace(scope: ProvisionScope) -> tuple[Apply, ...]:
    """Create the archive namespace if it does not exist."""
    if scope.view.get(NAMESPACE.metadata_only(), names.ARCHIVE_NAMESPACE) is not None:
        return ()
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.ARCHIVE_NAMESPACE}}
    return (Apply(NAMESPACE, space, "create the namespace of the archive"),)


def _key(job: Object) -> str:
    return names.REMOVE_LOG if removes(job) else names.CREATE_LOG


class _Text(NamedTuple):
    text: str = ""
    pending: Decision | None = None


def _text(scope: ProvisionScope, job: Object) -> _Text:
    pod = newest_pod(scope.view, job)
    if pod is None:
        return _Text(POD_IS_GONE)
    effect = _log_effect(scope, job, pod)
    result = scope.view.result(effect.key)
    sensitive = sensitive_values(scope)
    if result is None or sensitive.pending is not None or (not result.done and result.attempts < TRIES):
        waits = Decision(effects=(effect,)) + waiting("reading the log of the Job", Ref(JOB, job["metadata"]["name"]))
        return _Text(pending=waits + (sensitive.pending or Decision()))
    if not result.done:
        return _Text(f"(the log could not be read: {result.error})\n")
    if sensitive.values is None:
        return _Text(NOT_REDACTABLE)
    return _Text(redacted(scope, result.value, sensitive.values))


def _log_effect(scope: ProvisionScope, job: Object, pod: Object) -> Effect:
    meta = pod["metadata"]
    arguments = {
        "namespace": meta["namespace"],
        "pod": meta["name"],
        "container": CONTAINER,
        "limit_bytes": MAX_LOG_BYTES,
    }
    key = ("pod-log", scope.uid, job["metadata"]["uid"], meta["uid"])
    return Effect("pod-log", key, arguments, "archive the log of the Job")


# --- redaction ------------------------------------------------------------------------------------------------------


class SensitiveValues(NamedTuple):
    """Values to redact; None if they are no longer known."""

    values: tuple[str, ...] | None = None
    pending: Decision | None = None


def sensitive_values(scope: ProvisionScope) -> SensitiveValues:
    """All values in the environment Secret of the Job."""
    secret, pending = read(scope, SecretKey(scope.namespace, names.environment_secret(scope.name)))
    if pending is not None:
        return SensitiveValues(pending=pending)
    return SensitiveValues(tuple(texts(secret).values()) if secret is not None else None)


def redacted(scope: ProvisionScope, text: str, sensitive: tuple[str, ...]) -> str:
    """Redact sensitive values, but keep those that the spec shows anyway, such as a region."""
    return redact(
        text, sensitive, known=[value for value in spec_fields(scope.infra).values() if isinstance(value, str)]
    )


def termination_message(scope: ProvisionScope, job: Object) -> _Text:
    """Why a Job failed, from the termination message of its newest pod."""
    pod = newest_pod(scope.view, job)
    text = _termination(pod) if pod is not None else ""
    if not text:
        return _Text(_job_message(job))
    sensitive = sensitive_values(scope)
    if sensitive.pending is not None:
        return _Text(pending=sensitive.pending)
    return _Text(redacted(scope, text, sensitive.values) if sensitive.values is not None else NOT_REDACTABLE.strip())


def _termination(pod: Object) -> str:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        terminated = (status.get("state") or {}).get("terminated") or {}
        if status["name"] == CONTAINER and terminated.get("message"):
            return str(terminated["message"]).strip()
    return str((pod.get("status") or {}).get("message") or "")


def _job_message(job: Object) -> str:
    conditions = (job.get("status") or {}).get("conditions") or ()
    message = next((known.get("message") for known in conditions if known["type"] == "Failed"), "") or "the Job failed"
    return f"{message}; its pod does not exist or reported no message"


# --- cleanup --------------------------------------------------------------------------------------------------------


def delete_job(scope: ProvisionScope, job: Object, why: str) -> Writes:
    """Delete the dependencies first and the Job last: while it exists, cleanup continues."""
    dependencies = tuple(
        write for kind, name in job_dependents(scope.name) for write in _delete_dependency(scope, kind, name, why)
    )
    return (Parallel(dependencies), delete(JOB, job, why))


def _delete_dependency(scope: ProvisionScope, kind: Kind, name: str, why: str) -> tuple[Delete, ...]:
    """Only Secrets are cached here; everything else is deleted without checking whether it exists."""
    if kind != SECRET:
        return (Delete(Ref(kind, name, scope.namespace), "", why),)
    known = scope.view.get(SECRET_METADATA, name)
    return (delete(SECRET, known, why),) if known is not None else ()
