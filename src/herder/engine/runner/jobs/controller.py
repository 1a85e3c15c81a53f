"""Job controller: executes the plan of each Job, based on fresh state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import datetime

from herder.engine.client.client import JSON_PATCH, Client
from herder.engine.control.cache import Cache, Change, Key, key_of
from herder.engine.control.informer import Informer
from herder.engine.control.loop import ControlLoop, Result
from herder.engine.meta.errors import Conflict, Forbidden, Invalid, NotFound
from herder.engine.meta.kinds import Object
from herder.engine.runner.jobs.plan import Backoff, Plan, decide
from herder.engine.runner.jobs.template import FINALIZER, pod_for
from herder.engine.runner.kinds import JOB, JOBS, POD, PODS, Clock
from herder.engine.runner.recorder import Recorder

_UNSUPPORTED_FIELDS = ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy")
_FIRST_RETRY, _MAX_RETRY = 0.1, 30.0
_MIN_REQUEUE = 0.01


class JobController:
    """Reconciles Jobs and their pods."""

    def __init__(self, client: Client, *, clock: Clock, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._client = client
        self._clock = clock
        self._recorder = Recorder(client, component="job-controller", clock=clock, entropy=entropy)
        self._jobs, self._pods = Cache(JOB), Cache(POD)
        self._informers = (
            Informer(client, self._jobs, lambda change: self._loop.add(change.key)),
            Informer(client, self._pods, self._pod_changed),
        )
        self._loop: ControlLoop[Key] = ControlLoop(
            "job-controller", self._reconcile, initial_retry=_FIRST_RETRY, max_retry=_MAX_RETRY
        )
        self._backoffs: dict[Key, tuple[str, Backoff]] = {}  # with the UID of the Job
        self._pods_of: dict[Key, set[Key]] = {}
        self._job_of: dict[Key, Key] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._recorder.run())
            for informer in self._informers:
                tasks.create_task(informer.run())
            for informer in self._informers:
                await informer.synced.wait()
            tasks.create_task(self._loop.run())

    # --- event handlers ---------------------------------------------------------------------------------------------

    def _pod_changed(self, change: Change) -> None:
        name, pod = change.key, change.new
        owner = _owner(pod) if pod is not None else None
        job = Key(name.namespace, owner["name"]) if owner is not None else None
        before = self._job_of.get(name)
        if before is not None and before != job:
            self._unlink(name, before)
            self._loop.add(before)
        if job is not None:
            self._link(name, job)
            self._loop.add(job)

    def _link(self, pod: Key, job: Key) -> None:
        self._job_of[pod] = job
        self._pods_of.setdefault(job, set()).add(pod)

    def _unlink(self, pod: Key, job: Key) -> None:
        del self._job_of[pod]
        self._pods_of[job].discard(pod)
        if not self._pods_of[job]:
            del self._pods_of[job]

    # --- reconcile --------------------------------------------------------------------------------------------------

    async def _reconcile(self, name: Key) -> Result | None:
        job = self._jobs.get(name)
        known = [pod for pod_name in self._pods_of.get(name, ()) if (pod := self._pods.get(pod_name)) is not None]
        uid = job["metadata"]["uid"] if job is not None else ""
        pods = [pod for pod in known if (_owner(pod) or {}).get("uid") == uid]
        for pod in known:
            if (_owner(pod) or {}).get("uid") != uid:  # its Job was deleted: nothing else would remove the finalizer
                await self._release(pod)
        if job is None:
            self._backoffs.pop(name, None)
            self._loop.queue.forget(name)
            return None
        if job["spec"].get("managedBy") not in (None, "kubernetes.io/job-controller"):
            return None
        self._warn_unsupported(job)
        now = self._clock()
        backoff_uid, backoff = self._backoffs.get(name, (uid, Backoff()))
        plan = decide(job, pods, now, backoff if backoff_uid == uid else Backoff())
        return await self._execute(job, plan, now)

    def _warn_unsupported(self, job: Object) -> None:
        unknown = [field for field in _UNSUPPORTED_FIELDS if field in job["spec"]]
        if unknown and "startTime" not in (job.get("status") or {}):
            self._recorder.warning(job, "NotSupported", f"not supported by this Job controller: {', '.join(unknown)}")

    async def _execute(self, job: Object, plan: Plan, now: datetime) -> Result | None:
        name, meta, has_changed = key_of(job), job["metadata"], bool(plan.release)
        if plan.remove_job:
            await self._ignore_missing(
                self._client.delete(
                    JOBS, meta["name"], namespace=meta["namespace"], uid=meta["uid"], propagation="Foreground"
                )
            )
            return None
        for pod in plan.delete:
            await self._delete(job, pod)
        for index in plan.create:
            await self._create(job, index)
        if plan.status is not None:
            written = await self._client.update(JOBS, {**job, "status": plan.status}, subresource="status")
            self._jobs.upsert(written)
            has_changed = has_changed or written["metadata"]["resourceVersion"] != meta["resourceVersion"]
            for kind, reason, message in plan.events:
                record = self._recorder.normal if kind == "Normal" else self._recorder.warning
                record(job, reason, message)
        self._backoffs[name] = meta["uid"], plan.backoff
        for pod in plan.release:
            await self._release(pod)
        if has_changed:
            return Result(requeue_after=0.0)  # the recorded UIDs can be counted now
        if plan.wake_at is not None:
            return Result(requeue_after=max((plan.wake_at - now).total_seconds(), _MIN_REQUEUE))
        return None

    async def _create(self, job: Object, index: int | None) -> None:
        try:
            pod = await self._client.create(PODS, pod_for(job, index), namespace=job["metadata"]["namespace"])
        except (Forbidden, Invalid) as error:
            self._recorder.warning(job, "FailedCreate", f"Error creating: {error}")
            raise
        self._link(key_of(pod), key_of(job))
        self._pods.upsert(pod)
        self._recorder.normal(job, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")

    async def _delete(self, job: Object, pod: Object) -> None:
        meta = pod["metadata"]
        deleted = await self._ignore_missing(
            self._client.delete(PODS, meta["name"], namespace=meta["namespace"], uid=meta["uid"])
        )
        if deleted is not None:
            if deleted.get("kind") == "Pod":
                self._pods.upsert(deleted)
            self._recorder.normal(job, "SuccessfulDelete", f"Deleted pod: {meta['name']}")

    async def _release(self, pod: Object) -> None:
        """Remove the tracking finalizer from exactly this pod."""
        meta = pod["metadata"]
        finalizers = meta.get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        position = finalizers.index(FINALIZER)
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
            {"op": "test", "path": f"/metadata/finalizers/{position}", "value": FINALIZER},
            {"op": "remove", "path": f"/metadata/finalizers/{position}"},
        ]
        try:
            released = await self._client.patch(
                PODS, meta["name"], patch, namespace=meta["namespace"], content_type=JSON_PATCH
            )
        except (NotFound, Invalid):
            return  # deleted or changed meanwhile: the watch event triggers the next attempt
        self._pods.upsert(released)

    async def _ignore_missing(self, call: Awaitable[Object]) -> Object | None:
        try:
            return await call
        except (NotFound, Conflict):
            return None


def _owner(pod: Object) -> Object | None:
    for reference in pod["metadata"].get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == "Job" and reference["apiVersion"] == "batch/v1":
            owner: Object = reference
            return owner
    return None
