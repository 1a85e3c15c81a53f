"""What a Job said, kept after the Job and its machine are gone; and the Job itself, cleared away once that is done."""

from __future__ import annotations

from typing import NamedTuple

from herder.api.capi.kinds import NAMESPACE, SECRET, SECRET_METADATA
from herder.api.machines import names
from herder.api.machines.archive import CONFIG_MAP, CONFIG_MAP_METADATA, LARGEST_LOG, kept_for, log_object
from herder.api.machines.arguments import spec_fields
from herder.api.machines.credentials import Place, hidden
from herder.api.machines.jobs import CONTAINER, JOB, attendants
from herder.api.writing import delete
from herder.controllers.machines.provision.reading import read, texts
from herder.controllers.machines.provision.scene import Ended, Scene, ended, ended_at, newest_pod, removes
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Apply, Decision, Delete, Effect, Parallel, Ref, Writes, waiting

TRIES = 3
"""To read a log: a pod that is gone must not hold anything up."""

POD_IS_GONE = "(its pod is gone, and what it said is lost)\n"
NOTHING_TO_HIDE_BY = "(what it said is not kept: the Secret is gone that tells which words in it are secret)\n"


def is_kept(scene: Scene, job: Object) -> bool:
    kept = scene.view.get(CONFIG_MAP_METADATA, names.archived_log(scene.namespace, scene.name), names.ARCHIVE_NAMESPACE)
    return kept is not None and kept_for(kept, _key(job)) == job["metadata"]["uid"]


def keep(scene: Scene, job: Object) -> Decision:
    """Read the log and write it to the archive."""
    text, pending = _text(scene, job)
    if pending is not None:
        return pending
    failed_in = scene.machine_set if ended(job) is Ended.FAILED and not removes(job) else ""
    uid, at = job["metadata"]["uid"], ended_at(job)
    log = log_object(scene.infra, scene.kind, _key(job), uid, text, at, failed_in=failed_in)
    writer = f"machine-log-{_key(job)}"  # so that one log does not take the other's place
    write = Apply(CONFIG_MAP, log, "what its Job said is kept", manager=writer)
    return Decision(writes=(*archive_namespace(scene), write))


def archive_namespace(scene: Scene) -> tuple[Apply, ...]:
    """Made where it is not there yet."""
    if scene.view.get(NAMESPACE.metadata_only(), names.ARCHIVE_NAMESPACE) is not None:
        return ()
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.ARCHIVE_NAMESPACE}}
    return (Apply(NAMESPACE, space, "what outlives machines is kept here"),)


def _key(job: Object) -> str:
    return names.REMOVE_LOG if removes(job) else names.CREATE_LOG


class _Text(NamedTuple):
    text: str = ""
    pending: Decision | None = None


def _text(scene: Scene, job: Object) -> _Text:
    pod = newest_pod(scene.view, job)
    if pod is None:
        return _Text(POD_IS_GONE)
    effect = _reading(scene, job, pod)
    result = scene.view.result(effect.key)
    words = secret_words(scene)
    if result is None or words.pending is not None or (not result.done and result.attempts < TRIES):
        waits = Decision(effects=(effect,)) + waiting("its Job's log is being kept", Ref(JOB, job["metadata"]["name"]))
        return _Text(pending=waits + (words.pending or Decision()))
    if not result.done:
        return _Text(f"(its log could not be read: {result.error})\n")
    if words.values is None:
        return _Text(NOTHING_TO_HIDE_BY)
    return _Text(scrubbed(scene, result.value, words.values))


def _reading(scene: Scene, job: Object, pod: Object) -> Effect:
    meta = pod["metadata"]
    arguments = {
        "namespace": meta["namespace"],
        "pod": meta["name"],
        "container": CONTAINER,
        "limit_bytes": LARGEST_LOG,
    }
    key = ("pod-log", scene.uid, job["metadata"]["uid"], meta["uid"])
    return Effect("pod-log", key, arguments, "what its Job said is kept")


# --- what must not be told ------------------------------------------------------------------------------------------


class Words(NamedTuple):
    """None: they are not known any more."""

    values: tuple[str, ...] | None = None
    pending: Decision | None = None


def secret_words(scene: Scene) -> Words:
    """All that its Job was told in confidence."""
    secret, pending = read(scene, Place(scene.namespace, names.environment_secret(scene.name)))
    if pending is not None:
        return Words(pending=pending)
    return Words(tuple(texts(secret).values()) if secret is not None else None)


def scrubbed(scene: Scene, text: str, words: tuple[str, ...]) -> str:
    """What stands in the spec for everybody to read, such as a region, stays readable."""
    return hidden(text, words, known=[value for value in spec_fields(scene.infra).values() if isinstance(value, str)])


def last_words(scene: Scene, job: Object) -> _Text:
    """Why a Job failed, as its newest pod says."""
    pod = newest_pod(scene.view, job)
    text = _termination(pod) if pod is not None else ""
    if not text:
        return _Text(_without_words(job))
    words = secret_words(scene)
    if words.pending is not None:
        return _Text(pending=words.pending)
    return _Text(scrubbed(scene, text, words.values) if words.values is not None else NOTHING_TO_HIDE_BY.strip())


def _termination(pod: Object) -> str:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        terminated = (status.get("state") or {}).get("terminated") or {}
        if status["name"] == CONTAINER and terminated.get("message"):
            return str(terminated["message"]).strip()
    return str((pod.get("status") or {}).get("message") or "")


def _without_words(job: Object) -> str:
    conditions = (job.get("status") or {}).get("conditions") or ()
    message = next((known.get("message") for known in conditions if known["type"] == "Failed"), "") or "its Job failed"
    return f"{message}; its pod is gone or said nothing"


# --- clearing away --------------------------------------------------------------------------------------------------


def clear(scene: Scene, job: Object, why: str) -> Writes:
    """What serves the Job first, the Job last: while it is there, there is something to clear away."""
    served = tuple(write for kind, name in attendants(scene.name) for write in _unserve(scene, kind, name, why))
    return (Parallel(served), delete(JOB, job, why))


def _unserve(scene: Scene, kind: Kind, name: str, why: str) -> tuple[Delete, ...]:
    """Only of Secrets is it known here whether they are there."""
    if kind != SECRET:
        return (Delete(Ref(kind, name, scene.namespace), "", why),)
    known = scene.view.get(SECRET_METADATA, name)
    return (delete(SECRET, known, why),) if known is not None else ()
