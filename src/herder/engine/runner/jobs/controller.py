"""Carries out what is decided for each Job, one Job at a time, each from fresh state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import datetime

from herder.engine.client.client import JSON_PATCH, Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import Conflict, Forbidden, Invalid, NotFound, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runner.following import Following, Name
from herder.engine.runner.jobs.deciding import Backoff, Plan, decide
from herder.engine.runner.jobs.template import FINALIZER, pod_for
from herder.engine.runner.kinds import JOBS, PODS, Clock, identity
from herder.engine.runner.recorder import Recorder

log = get_logger(__name__)

_NOT_HEEDED = ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy")
_AGAIN_FIRST, _AGAIN_LIMIT = 0.1, 30.0


class JobController:
    def __init__(self, client: Client, *, clock: Clock, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._client = client
        self._clock = clock
        self._recorder = Recorder(client, component="job-controller", clock=clock, entropy=entropy)
        self._jobs = Following(client, JOBS, self._job_changed)
        self._pods = Following(client, PODS, self._pod_changed)
        self._queue: asyncio.Queue[Name] = asyncio.Queue()
        self._queued: set[Name] = set()
        self._alarms: dict[Name, asyncio.TimerHandle] = {}
        self._backoffs: dict[Name, tuple[str, Backoff]] = {}  # with the uid of the Job that they are about
        self._pods_of: dict[Name, set[Name]] = {}
        self._job_of: dict[Name, Name] = {}
        self._failures: dict[Name, int] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._jobs.run())
            tasks.create_task(self._pods.run())
            await self._jobs.synced.wait()
            await self._pods.synced.wait()
            while True:
                name = await self._queue.get()
                self._queued.discard(name)
                await self._tend(name)
                await asyncio.sleep(0)  # calls within the process may never have waited: let others on

    # --- what wakes it ----------------------------------------------------------------------------------------------

    def _job_changed(self, name: Name, job: Object | None) -> None:
        self._enqueue(name)

    def _pod_changed(self, name: Name, pod: Object | None) -> None:
        owner = _owner(pod) if pod is not None else None
        job = (name[0], owner["name"]) if owner is not None else None
        before = self._job_of.get(name)
        if before is not None and before != job:
            self._disown(name, before)
            self._enqueue(before)
        if job is not None:
            self._own(name, job)
            self._enqueue(job)

    def _own(self, pod: Name, job: Name) -> None:
        self._job_of[pod] = job
        self._pods_of.setdefault(job, set()).add(pod)

    def _disown(self, pod: Name, job: Name) -> None:
        del self._job_of[pod]
        self._pods_of[job].discard(pod)
        if not self._pods_of[job]:
            del self._pods_of[job]

    def _enqueue(self, name: Name) -> None:
        if name not in self._queued:
            self._queued.add(name)
            self._queue.put_nowait(name)

    def _wake(self, name: Name, seconds: float) -> None:
        if (alarm := self._alarms.pop(name, None)) is not None:
            alarm.cancel()
        self._alarms[name] = asyncio.get_running_loop().call_later(max(seconds, 0.01), self._enqueue, name)

    # --- one Job ----------------------------------------------------------------------------------------------------

    async def _tend(self, name: Name) -> None:
        try:
            await self._sync(name)
            self._failures.pop(name, None)
        except (StatusError, OSError) as error:
            failures = self._failures[name] = self._failures.get(name, 0) + 1
            if not isinstance(error, Conflict):
                log.warning("job waits", job="/".join(name), error=str(error))
            self._wake(name, min(_AGAIN_FIRST * 2.0 ** min(failures - 1, 10), _AGAIN_LIMIT))
        except Exception:  # an object that defies sense must not take the other Jobs down with it
            log.exception("job failed", job="/".join(name))
            self._wake(name, _AGAIN_LIMIT)

    async def _sync(self, name: Name) -> None:
        job = self._jobs.get(name)
        known = [pod for pod_name in self._pods_of.get(name, ()) if (pod := self._pods.get(pod_name)) is not None]
        uid = job["metadata"]["uid"] if job is not None else ""
        pods = [pod for pod in known if (_owner(pod) or {}).get("uid") == uid]
        for pod in known:
            if (_owner(pod) or {}).get("uid") != uid:  # of a Job that is gone: nobody else would let it go
                await self._release(pod)
        if job is None:
            self._forget(name)
            return
        if job["spec"].get("managedBy") not in (None, "kubernetes.io/job-controller"):
            return
        self._say_what_is_missing(job)
        now = self._clock()
        about, backoff = self._backoffs.get(name, (uid, Backoff()))
        plan = decide(job, pods, now, backoff if about == uid else Backoff())
        await self._carry_out(job, plan, now)

    def _forget(self, name: Name) -> None:
        self._backoffs.pop(name, None)
        if (alarm := self._alarms.pop(name, None)) is not None:
            alarm.cancel()

    def _say_what_is_missing(self, job: Object) -> None:
        unknown = [field for field in _NOT_HEEDED if field in job["spec"]]
        if unknown and "startTime" not in (job.get("status") or {}):
            self._recorder.warning(job, "NotSupported", f"not heeded by this Job controller: {', '.join(unknown)}")

    async def _carry_out(self, job: Object, plan: Plan, now: datetime) -> None:
        name, meta, moved = identity(job), job["metadata"], bool(plan.release)
        if plan.remove_job:
            await self._ignoring_absence(
                self._client.delete(
                    JOBS, meta["name"], namespace=meta["namespace"], uid=meta["uid"], propagation="Foreground"
                )
            )
            return
        for pod in plan.delete:
            await self._delete(job, pod)
        for index in plan.create:
            await self._create(job, index)
        if plan.status is not None:
            written = await self._client.update(JOBS, {**job, "status": plan.status}, subresource="status")
            self._jobs.learn(written)
            moved = moved or written["metadata"]["resourceVersion"] != meta["resourceVersion"]
            for kind, reason, message in plan.events:
                record = self._recorder.normal if kind == "Normal" else self._recorder.warning
                record(job, reason, message)
        self._backoffs[name] = meta["uid"], plan.backoff
        for pod in plan.release:
            await self._release(pod)
        if moved:
            self._enqueue(name)  # what was noted can be counted now
        elif plan.wake_at is not None:
            self._wake(name, (plan.wake_at - now).total_seconds())

    async def _create(self, job: Object, index: int | None) -> None:
        try:
            pod = await self._client.create(PODS, pod_for(job, index), namespace=job["metadata"]["namespace"])
        except (Forbidden, Invalid) as error:
            self._recorder.warning(job, "FailedCreate", f"Error creating: {error}")
            raise
        self._own(identity(pod), identity(job))
        self._pods.learn(pod)
        self._recorder.normal(job, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")

    async def _delete(self, job: Object, pod: Object) -> None:
        meta = pod["metadata"]
        gone = await self._ignoring_absence(
            self._client.delete(PODS, meta["name"], namespace=meta["namespace"], uid=meta["uid"])
        )
        if gone is not None:
            if gone.get("kind") == "Pod":
                self._pods.learn(gone)
            self._recorder.normal(job, "SuccessfulDelete", f"Deleted pod: {meta['name']}")

    async def _release(self, pod: Object) -> None:
        """Take our finalizer off, and only that, and only from this very pod."""
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
            freed = await self._client.patch(
                PODS, meta["name"], patch, namespace=meta["namespace"], content_type=JSON_PATCH
            )
        except (NotFound, Invalid):
            return  # gone, or changed meanwhile: the watch brings the news and with it the next try
        self._pods.learn(freed)

    async def _ignoring_absence(self, call: Awaitable[Object]) -> Object | None:
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
