"""From a machine that exists, or may exist, to nothing.

A machine's object is let go only when its provider has nothing of it any more: a Job said so, or the state Secret holds
no record, in which the machine CLI writes down everything before it makes it. Or a person insists.
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
from herder.api.machines.credentials import Place, Problem, place_of
from herder.api.machines.jobs import JOB
from herder.api.machines.state import STATE_FINALIZER, Recorded, recorded
from herder.api.numbers import integer
from herder.api.writing import delete, object_patch, ref
from herder.controllers.machines.provision import logs, reports
from herder.controllers.machines.provision.creation import follow, held_up, launch, pod_is_awaited
from herder.controllers.machines.provision.preparing import Pending, prepare
from herder.controllers.machines.provision.reading import Read, is_state, read
from herder.controllers.machines.provision.scene import (
    Ended,
    Scene,
    ended,
    ended_at,
    has_begun,
    is_forced,
    live_pod,
    removes,
    state_of_another,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Apply, Decision, Patch, Ref, Writes, waiting
from herder.engine.runtime.view import View

FINALIZER = "wrangler.cattle.io/machine-provision-remove"
ATTEMPTS = "machine.herder.io/removal-attempts"  # how many failed, the uid of the last such Job, what it was told
RETRY_FIRST, RETRY_LIMIT = timedelta(seconds=30), timedelta(minutes=30)

BEGIN_PATIENCE = timedelta(minutes=1)
"""For a Job that is to create what is not wanted any more: one that has no place to run by then is not waited for."""


def remove(scene: Scene, passed: Mapping[str, str]) -> Decision:
    if FINALIZER not in (scene.infra["metadata"].get("finalizers") or ()):
        return DONE
    if _namespace_goes(scene):
        return _abandon(scene)
    job = scene.job
    if job is None:
        return _begin(scene, passed)
    if is_deleting(job):
        return waiting("its last Job is being deleted", ref(JOB, job))
    return _after_removal(scene, job) if removes(job) else _after_creation(scene, job)


# --- the Job that created it ----------------------------------------------------------------------------------------


def _after_creation(scene: Scene, job: Object) -> Decision:
    """Halfway through, nobody could tell what there is to remove: it is let to its end, unless it never began."""
    if ended(job) is None:
        return _unfinished(scene, job)
    if not logs.is_kept(scene, job):
        return logs.keep(scene, job)
    return Decision(writes=logs.clear(scene, job, "its machine is to be removed"))


def _unfinished(scene: Scene, job: Object) -> Decision:
    if is_forced(scene.infra):
        return Decision(writes=logs.clear(scene, job, f"annotation {names.FORCE_REMOVE} gives it up"))
    if has_begun(scene, job):
        return follow(scene, job)
    hopeless = datetime.fromisoformat(job["metadata"]["creationTimestamp"]) + BEGIN_PATIENCE
    if scene.view.now < hopeless:
        return follow(scene, job) + Decision(wake_at=hopeless)
    return Decision(writes=logs.clear(scene, job, "it never began, and its machine is not wanted any more"))


# --- the Job that removes it ----------------------------------------------------------------------------------------


def _begin(scene: Scene, passed: Mapping[str, str]) -> Decision:
    if (pod := live_pod(scene)) is not None:
        return waiting("its Job is gone, and a pod of it still runs", ref(POD, pod))
    if state_of_another(scene):
        return _release(scene, "nothing was made for it")
    secret, pending = _record(scene)
    if pending is not None:
        return pending
    if not is_state(secret):
        return _release(replace(scene, state=None), "nothing was made for it")
    if recorded(secret) is Recorded.NOTHING:
        return _release(scene, "nothing was made for it, or all that was is removed")
    try:
        work = prepare(scene, passed, removes=True)
    except Pending as pending_read:
        return pending_read.decision
    except Problem as problem:
        if is_forced(scene.infra):
            return _release(scene, f"annotation {names.FORCE_REMOVE} gives it up: {problem}")
        message = f"{problem}; or give the machine up with annotation {names.FORCE_REMOVE}: true"
        return reports.not_prepared(scene, message, removes=True) + waiting(message)
    return launch(scene, work)


def _record(scene: Scene) -> Read:
    """Read for this occasion: what was read before the last Job ended tells nothing. That there is none must be true,
    and not only look so from here."""
    return read(scene, Place(scene.namespace, names.state_secret(scene.name)), "remove", though_unseen=True)


def _after_removal(scene: Scene, job: Object) -> Decision:
    outcome = ended(job)
    if outcome is None:
        hindrance = held_up(scene, job)
        decision = reports.deleting(scene, hindrance, jobName=job["metadata"]["name"])
        return decision + waiting(hindrance or "the machine is being removed", ref(JOB, job))
    if outcome is Ended.FAILED and not is_forced(scene.infra):
        return _again(scene, job)
    if not logs.is_kept(scene, job):
        return (reports.deleted(scene) if outcome is Ended.COMPLETE else DONE) + logs.keep(scene, job)
    if outcome is Ended.COMPLETE:
        return _release(scene, "its machine is removed")
    return _release(scene, f"annotation {names.FORCE_REMOVE} gives it up")


def _again(scene: Scene, job: Object) -> Decision:
    """A removal that failed is tried again: ever more rarely, and at once when somebody has changed something."""
    count, last_job, told_then = _attempts(scene.infra)
    told_now = _told_to_job(scene)
    if last_job != job["metadata"]["uid"]:
        return _note_attempt(scene, f"{count + 1} {job['metadata']['uid']} {told_now}")
    if (pause := pod_is_awaited(scene, job)) is not None:
        return pause
    words, pending = logs.last_words(scene, job)
    if pending is not None:
        return pending
    report_status = reports.not_deleted(scene, words)
    if not logs.is_kept(scene, job):
        return report_status + logs.keep(scene, job)
    since = datetime.fromisoformat(ended_at(job)) if ended_at(job) else scene.view.now
    due = since + min(RETRY_FIRST * 2.0 ** min(count - 1, 10), RETRY_LIMIT)
    if scene.view.now < due and told_now == told_then:
        return report_status + waiting(f"its machine could not be removed, and is tried again: {words}", wake_at=due)
    return Decision(writes=logs.clear(scene, job, "its machine could not be removed, and is tried again"))


def _attempts(infra: Object) -> tuple[int, str, str]:
    noted = annotations_of(infra).get(ATTEMPTS, "").split(" ")
    return (max(integer(noted[0]), 0), noted[1], noted[2]) if len(noted) == 3 else (0, "", "")


def _note_attempt(scene: Scene, noted: str) -> Decision:
    patch = {"metadata": {"annotations": {ATTEMPTS: noted}}}
    return Decision(writes=(Patch(ref(scene.kind, scene.infra), patch, "its machine could not be removed"),))


def _told_to_job(scene: Scene) -> str:
    """Stands for all by which another attempt could differ from the last."""
    place = place_of(scene.infra)
    credential = scene.view.get(SECRET_METADATA, place.name, place.namespace) if place else None
    marks = {name: value for name, value in annotations_of(scene.infra).items() if name != ATTEMPTS}
    all_of_it = [scene.infra.get("spec"), marks, credential and credential["metadata"]["resourceVersion"]]
    return hashlib.sha256(msgspec.json.encode(all_of_it, order="sorted")).hexdigest()[:12]


# --- letting go -----------------------------------------------------------------------------------------------------


def _release(scene: Scene, why: str) -> Decision:
    """The state Secret, then the machine's object: the record outlives what it is about, never the other way round."""
    cleared = logs.clear(scene, scene.job, why) if scene.job is not None else ()
    state = scene.state if scene.state is not None and not state_of_another(scene) else None
    dropped = (*without_finalizer(state, why), delete(SECRET, state, why)) if state is not None else ()
    left = [name for name in scene.infra["metadata"]["finalizers"] if name != FINALIZER]
    wanted = {**scene.infra, "metadata": {**scene.infra["metadata"], "finalizers": left}}
    return Decision(writes=(*cleared, *dropped, *object_patch(scene.kind, scene.infra, wanted, why)))


def without_finalizer(state: Object, why: str) -> Writes:
    left = [name for name in state["metadata"].get("finalizers") or () if name != STATE_FINALIZER]
    wanted = {**state, "metadata": {**state["metadata"], "finalizers": left}}
    return object_patch(SECRET, state, wanted, why)


def orphaned(view: View, state: Object) -> Decision:
    """A state Secret without its machine's object, which somebody has let go by force: it is kept until somebody
    deletes it too."""
    if not is_deleting(state):
        return waiting("its machine was never removed; delete the Secret when it is", Ref(SECRET, view.name))
    return Decision(writes=without_finalizer(state, "its machine's object is gone, and somebody deletes it"))


# --- a namespace that goes ------------------------------------------------------------------------------------------


def _namespace_goes(scene: Scene) -> bool:
    namespace = scene.view.get(NAMESPACE.metadata_only(), scene.namespace)
    return namespace is not None and is_deleting(namespace)


def _abandon(scene: Scene) -> Decision:
    """No Job can be made there any more. What is known of the machine is kept where a person can remove it with."""
    if scene.job is not None and ended(scene.job) is None:
        return waiting("its namespace is being deleted, and its last Job with it", ref(JOB, scene.job))
    if state_of_another(scene):
        return _release(scene, "nothing was made for it")
    secret, pending = _record(scene)
    if pending is not None:
        return pending
    if not is_state(secret):
        return _release(replace(scene, state=None), "nothing was made for it")
    if secret is None or recorded(secret) is Recorded.NOTHING:
        return _release(scene, "nothing was made for it")
    kept = Apply(SECRET, state_copy(secret, scene.infra, scene.kind), "its namespace goes, and its machine is left")
    released = _release(scene, "its namespace is being deleted")
    return Decision(writes=(*logs.archive_namespace(scene), kept)) + released
