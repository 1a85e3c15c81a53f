"""From a machine that is only asked for to one that exists: one Job, what became of it, and what is left afterwards.

A Job is started only where nothing says that there was one: no Job, no pod of one, no record in the state Secret. So
whatever is lost on the way, a machine is not created twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from herder.api import settings
from herder.api.capi.kinds import MACHINE, POD, SECRET, SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting, labels_of
from herder.api.machines import jobs, names
from herder.api.machines.archive import CONFIG_MAP_METADATA, FINISHED_AT
from herder.api.machines.credentials import Place, Problem, place_of
from herder.api.machines.jobs import JOB, Work
from herder.api.machines.state import STATE_FINALIZER, Recorded, recorded
from herder.api.moments import moment
from herder.api.writing import delete, object_patch, ref
from herder.controllers.machines.provision import logs, reports
from herder.controllers.machines.provision.preparing import Pending, prepare
from herder.controllers.machines.provision.reading import is_state, read
from herder.controllers.machines.provision.scene import (
    BY_MACHINE_SET,
    FINISHED_PODS,
    Ended,
    Scene,
    ended,
    ended_at,
    live_pod,
    newest_pod,
    state_of_another,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Apply, Create, Decision, Parallel, Write, waiting

POD_PATIENCE = timedelta(seconds=10)
"""A Job may be seen to have failed before its pod is; one that is gone is not waited for any longer."""

LATELY, LONGEST_PAUSE = timedelta(minutes=30), timedelta(minutes=10)
"""What counts as failing lately, and how long a failed Machine stays at most on that account."""

JOB_IS_LOST = (
    "its Job is gone, and nobody knows how it ended; what it made is removed with the machine: delete the Machine"
)


def create(scene: Scene, passed: Mapping[str, str]) -> Decision:
    if (unguarded := _guard(scene)) is not None:
        return unguarded
    if reports.is_created(scene.infra):
        return reports.provisioned(scene) + tidy(scene)
    if reports.has_failed(scene.infra):
        return tidy(scene) + _give_up(scene)
    if scene.job is not None:
        return follow(scene, scene.job)
    return _begin(scene, passed)


def _guard(scene: Scene) -> Decision | None:
    """A record that came from elsewhere, or whose finalizer somebody took away, is held as our own are."""
    state = scene.state
    if state is None or is_deleting(state) or state_of_another(scene):
        return None
    meta = state["metadata"]
    if STATE_FINALIZER in (meta.get("finalizers") or ()):
        return None
    secret, pending = read(scene, Place(scene.namespace, meta["name"]), "create")
    if pending is not None or not is_state(secret):
        return pending
    own = jobs.state_secret(scene.infra, scene.kind, scene.machine_name, str(place_of(scene.infra) or ""))["metadata"]
    wanted = {
        **meta,
        "finalizers": [*(meta.get("finalizers") or ()), STATE_FINALIZER],
        "labels": {**labels_of(state), **own["labels"]},
        "annotations": {**annotations_of(state), **own["annotations"]},
    }
    patch = object_patch(SECRET, state, {**state, "metadata": wanted}, "what is known of the machine must not be lost")
    return Decision(writes=patch) if patch else None


# --- beginning ------------------------------------------------------------------------------------------------------


def _begin(scene: Scene, passed: Mapping[str, str]) -> Decision:
    if other := state_of_another(scene):
        return _not_prepared(scene, f"{other} has the same state Secret, which is named after the machine; rename one")
    if scene.state is not None:
        if (pod := live_pod(scene)) is not None:
            return waiting("its Job is gone, and a pod of it still runs", ref(POD, pod))
        secret, pending = read(scene, Place(scene.namespace, scene.state["metadata"]["name"]), "create")
        if pending is not None:
            return pending
        if secret is not None and not is_state(secret):
            where, type_ = f"Secret {scene.namespace}/{scene.state['metadata']['name']}", secret.get("type")
            reason = f"{where} is of type {type_}, so it is no state of a machine; delete it, or delete the Machine"
            return _not_prepared(scene, reason)
        if (taken_up := _take_up(scene, recorded(secret))) is not None:
            return taken_up
    try:
        work = prepare(scene, passed, removes=False)
    except Problem as problem:
        return _not_prepared(scene, str(problem))
    except Pending as pending_read:
        return pending_read.decision
    return launch(scene, work)


def _take_up(scene: Scene, record: Recorded) -> Decision | None:
    """What a record says of a machine whose Job is not there (any more); None: it is to be created."""
    match record:
        case Recorded.CREATED:
            return reports.created(scene)
        case Recorded.FOREIGN if reports.is_under_way(scene.infra):
            return reports.not_created(scene, JOB_IS_LOST)
        case Recorded.FOREIGN:
            return reports.created(scene)
        case Recorded.UNREADABLE:
            where = f"Secret {scene.namespace}/{names.state_secret(scene.name)}"
            return _not_prepared(scene, f"{where} cannot be read; restore it from a backup, or delete the Machine")
    return None


def _not_prepared(scene: Scene, problem: str) -> Decision:
    return reports.not_prepared(scene, problem, removes=False) + waiting(problem)


def launch(scene: Scene, work: Work) -> Decision:
    """The Job comes last: after all that it needs, and after what a successor of ours must know of it."""
    if taken := _taken(scene, work):
        return reports.not_prepared(scene, taken, removes=work.removes) + waiting(taken)
    report_status = reports.deleting if work.removes else reports.creating
    needed = Decision(writes=(Parallel((*_new_state(scene), *_attendants(work))),))
    begun = Create(JOB, jobs.job(work), "its machine is removed" if work.removes else "its machine is created")
    return needed + report_status(scene, **_noted(scene, work)) + Decision(writes=(begun,))


def _taken(scene: Scene, work: Work) -> str:
    """Long names are cut, so what this Job needs can have the name of another machine's, or of a Secret that a user
    created. Applied over a user's Secret, variables of that user would reach the Job too."""
    for kind, name in (
        (SECRET_METADATA, names.environment_secret(scene.name)),
        (SECRET_METADATA, work.job_name),
        (JOB, work.job_name),
    ):
        found = scene.view.get(kind, name)
        owners = (found["metadata"].get("ownerReferences") or ()) if found is not None else ()
        if found is not None and not any(each.get("controller") and each["uid"] == scene.uid for each in owners):
            where = f"{kind.kind} {scene.namespace}/{name}"
            return f"{where} is needed for its Job and belongs to something else; delete it, or delete the Machine"
    return ""


def _new_state(scene: Scene) -> tuple[Write, ...]:
    if scene.state is not None:
        return ()
    secret = jobs.state_secret(scene.infra, scene.kind, scene.machine_name, str(place_of(scene.infra) or ""))
    return (Create(SECRET, secret, "what is known of the machine is kept here"),)


def _attendants(work: Work) -> tuple[Write, ...]:
    files = [(SECRET, jobs.files_secret(work))] if work.files else []
    served = [
        (SECRET, jobs.environment_secret(work)),
        *files,
        (jobs.SERVICE_ACCOUNT, jobs.service_account(work)),
        (jobs.ROLE, jobs.role(work)),
        *((jobs.ROLE_BINDING, binding) for binding in jobs.role_bindings(work)),
    ]
    return tuple(Apply(kind, obj, "its Job needs it") for kind, obj in served)


def _noted(scene: Scene, work: Work) -> dict[str, str]:
    """What its removal needs, should the NodeDriver be gone by then."""
    common = (scene.infra.get("spec") or {}).get("common") or {}
    credential = common.get("cloudCredentialSecretName") or scene.status.get("cloudCredentialSecretName")
    return {
        "jobName": work.job_name,
        "driverUrl": work.download.url,
        "driverHash": work.download.checksum,
        "cloudCredentialSecretName": credential or "",
    }


# --- what becomes of it ---------------------------------------------------------------------------------------------


def follow(scene: Scene, job: Object) -> Decision:
    match ended(job):
        case Ended.COMPLETE:
            return reports.created(scene) + tidy(scene)
        case Ended.FAILED:
            return _failed(scene, job)
    hindrance = held_up(scene, job)
    decision = reports.creating(scene, hindrance, jobName=job["metadata"]["name"])
    return decision + waiting(hindrance or "the machine is being created", ref(JOB, job))


def _failed(scene: Scene, job: Object) -> Decision:
    if (pause := pod_is_awaited(scene, job)) is not None:
        return pause
    words, pending = logs.last_words(scene, job)
    if pending is not None:
        return pending
    return reports.not_created(scene, words) + tidy(scene)


def pod_is_awaited(scene: Scene, job: Object) -> Decision | None:
    """None when the pod of a Job that failed is seen to have ended too, or will not be."""
    pod = newest_pod(scene.view, job)
    if pod is not None and (pod.get("status") or {}).get("phase") in FINISHED_PODS:
        return None
    since = ended_at(job)
    if not since or scene.view.now >= (until := datetime.fromisoformat(since) + POD_PATIENCE):
        return None
    return waiting("its Job failed, and why is not known yet", ref(JOB, job), wake_at=until)


def held_up(scene: Scene, job: Object) -> str:
    """What keeps a Job from its work, as far as its pod tells: an image that cannot be had, no node for it."""
    status = (newest_pod(scene.view, job) or {}).get("status") or {}
    containers = status.get("containerStatuses") or ()
    waits = [(container.get("state") or {}).get("waiting") or {} for container in containers]
    known_of = status.get("conditions") or ()
    unscheduled = [known for known in known_of if known["type"] == "PodScheduled" and known["status"] == "False"]
    messages = [cause["message"] for cause in (*waits, *unscheduled) if cause.get("message")]
    return f"its pod waits: {messages[0]}" if messages else ""


# --- afterwards -----------------------------------------------------------------------------------------------------


def tidy(scene: Scene) -> Decision:
    """Of what made the machine only the state Secret is left, once the log is kept."""
    job = scene.job
    if job is None or ended(job) is None or is_deleting(job):
        return DONE
    if not logs.is_kept(scene, job):
        return logs.keep(scene, job)
    return Decision(writes=logs.clear(scene, job, "its machine is created, or is not"))


def _give_up(scene: Scene) -> Decision:
    """A MachineSet makes another one in place of a Machine that has no server."""
    machine = scene.machine
    if machine is None or is_deleting(machine) or not scene.machine_set:
        return DONE
    patience = timedelta(seconds=settings.seconds(scene.view.setting(settings.DELETE_FAILED_MACHINES_AFTER)))
    failed = reports.failed_at(scene.infra)
    at = failed + max(patience, _failing_for(scene, failed))
    if at > scene.view.now:
        return waiting("its server could not be created; another takes its place", ref(MACHINE, machine), wake_at=at)
    return Decision(writes=(delete(MACHINE, machine, "its server could not be created"),))


def _failing_for(scene: Scene, until: datetime) -> timedelta:
    """How long its MachineSet has had machines fail lately. Who waits that long each time tries ever more rarely: a
    pool that cannot work must not fill the archive, and shows why it cannot."""
    logs_of_failures = scene.view.select(
        CONFIG_MAP_METADATA, index=(BY_MACHINE_SET, f"{scene.namespace}/{scene.machine_set}")
    )
    ends = [moment(annotations_of(log).get(FINISHED_AT)) for log in logs_of_failures]
    first = min((time for time in ends if time and until - LATELY < time < until), default=until)
    return min(until - first, LONGEST_PAUSE)
