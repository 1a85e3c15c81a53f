"""Plan the next actions of a Job from the Job, its pods and the time; a pure function.

Counting is exact across crashes. The UID of a finished pod is first recorded in the status, then its tracking finalizer
is removed. A counter includes a recorded UID only after its pod has lost the finalizer or was deleted.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from herder.engine.meta.kinds import Object
from herder.engine.runner.jobs import failure_policy, indexes
from herder.engine.runner.jobs.template import FINALIZER
from herder.engine.runner.kinds import parse_time, timestamp

BACKOFF_FIRST, BACKOFF_LIMIT = timedelta(seconds=10), timedelta(minutes=10)
MAX_PODS_PER_RECONCILE = 20
"""Pods created or deleted per reconcile, so that Jobs of machines do not wait behind large Jobs of users."""
MAX_ACTIVE_PODS = 110
"""A kubelet's default limit: there is one node, and more pods would only fill the store."""
_FINAL = ("Complete", "Failed")
_CENTURY = 100 * 366 * 86400  # seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """Number of consecutive failures, and the time of the last one."""

    failures: int = 0
    last: datetime | None = None

    def until(self) -> datetime | None:
        if not self.failures or self.last is None:
            return None
        doubled: int = 2 ** min(self.failures - 1, 30)
        return self.last + min(BACKOFF_FIRST * doubled, BACKOFF_LIMIT)


@dataclass(slots=True)
class Plan:
    """Actions in order of execution; `status` is None if unchanged."""

    delete: list[Object] = field(default_factory=list)
    create: list[int | None] = field(default_factory=list)  # completion indexes; None for non-indexed Jobs
    status: Object | None = None
    release: list[Object] = field(default_factory=list)  # pods whose tracking finalizer is removed
    remove_job: bool = False  # ttlSecondsAfterFinished has passed
    wake_at: datetime | None = None
    backoff: Backoff = field(default_factory=Backoff)
    events: list[tuple[str, str, str]] = field(default_factory=list)  # type, reason, message

    def wake(self, when: datetime) -> None:
        self.wake_at = when if self.wake_at is None else min(self.wake_at, when)


def decide(job: Object, pods: Sequence[Object], now: datetime, backoff: Backoff) -> Plan:
    """Return the next actions for a Job."""
    return _Planner(job, pods, now, backoff).compute()


class _Planner:
    """Computes the plan of one Job."""

    def __init__(self, job: Object, pods: Sequence[Object], now: datetime, backoff: Backoff) -> None:
        self.job, self.spec, self.pods, self.now = job, job["spec"], pods, now
        self.before: Object = job.get("status") or {}
        self.status: Object = copy.deepcopy(self.before)
        self.plan = Plan(backoff=backoff)
        self.uncounted: dict[str, list[str]] = {
            kind: list((self.status.get("uncountedTerminatedPods") or {}).get(kind) or ())
            for kind in ("succeeded", "failed")
        }
        self.indexed = self.spec.get("completionMode") == "Indexed"
        self.done_indexes = indexes.parse(self.status.get("completedIndexes") or "")
        self.tracked = [pod for pod in pods if FINALIZER in (pod["metadata"].get("finalizers") or ())]
        self.active = [pod for pod in pods if _is_active(pod)]

    def compute(self) -> Plan:
        if (final := condition_of(self.before, *_FINAL)) is not None:
            self.plan.release = list(self.tracked)
            self._time_to_live(final)
            return self.plan
        self._count_released()
        self._classify_finished()
        if not self.status.get("startTime") and not self.spec.get("suspend"):
            self.status["startTime"] = timestamp(self.now)
        target = self._target()
        if target is None and "deletionTimestamp" not in self.job["metadata"]:
            self._manage()
            target = self._completed()
            if target is None:
                self._suspension()
        elif target is not None:
            self.plan.delete = list(self.active)
        self._track(target)
        self._finish(target)
        self._write_status()
        return self.plan

    # --- counting -------------------------------------------------------------------------------------------------

    def _count_released(self) -> None:
        tracked_uids = {pod["metadata"]["uid"] for pod in self.tracked}
        for kind, uids in self.uncounted.items():
            released = [uid for uid in uids if uid not in tracked_uids]
            if released:
                self.status[kind] = self.status.get(kind, 0) + len(released)
                self.uncounted[kind] = [uid for uid in uids if uid in tracked_uids]

    def _classify_finished(self) -> None:
        recorded = {*self.uncounted["succeeded"], *self.uncounted["failed"]}
        unrecorded = [pod for pod in self.tracked if pod["metadata"]["uid"] not in recorded]
        self.new_succeeded = [pod for pod in unrecorded if _phase(pod) == "Succeeded"]
        self.new_failed = [pod for pod in unrecorded if self._failed(pod)]
        counting = [pod for pod in self.new_failed if failure_policy.evaluate(self.job, pod)[1]]
        self.failed = self.status.get("failed", 0) + len(self.uncounted["failed"]) + len(counting)
        if self.indexed:
            found = {indexes.index_of(pod) for pod in self.new_succeeded}
            self.done_indexes |= {
                index for index in found if index is not None and index < (self.spec.get("completions") or 0)
            }
            self.succeeded = len(self.done_indexes)
        else:
            self.succeeded = (
                self.status.get("succeeded", 0) + len(self.uncounted["succeeded"]) + len(self.new_succeeded)
            )
        self.plan.backoff = self._backoff(self.plan.backoff)

    def _backoff(self, before: Backoff) -> Backoff:
        failures = sorted(_finished_at(pod) for pod in self.new_failed)
        if self.new_succeeded:
            last_success = max(_finished_at(pod) for pod in self.new_succeeded)
            after_success = [when for when in failures if when > last_success]
            return Backoff(len(after_success), after_success[-1] if after_success else None)
        return Backoff(before.failures + len(failures), failures[-1]) if failures else before

    def _failed(self, pod: Object) -> bool:
        if _phase(pod) == "Failed":
            return True
        if self.spec.get("podReplacementPolicy") == "Failed":
            return False
        return "deletionTimestamp" in pod["metadata"] and _phase(pod) != "Succeeded"

    # --- terminal conditions ----------------------------------------------------------------------------------------

    def _target(self) -> tuple[str, str, str] | None:
        """Return the interim condition (type, reason, message) that determines how the Job ends."""
        if (reported := condition_of(self.before, "SuccessCriteriaMet", "FailureTarget")) is not None:
            return reported["type"], reported.get("reason", ""), reported.get("message", "")
        for pod in self.pods:
            if self._failed(pod) and (message := failure_policy.evaluate(self.job, pod)[0]):
                return "FailureTarget", "PodFailurePolicy", message
        if self.failed > self.spec.get("backoffLimit", 6) or self._restarted_too_often():
            return "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        seconds = self.spec.get("activeDeadlineSeconds")
        if seconds is not None and not self.spec.get("suspend") and self.status.get("startTime"):
            end = _add_seconds(self.status["startTime"], seconds)
            if self.now >= end:
                return "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
            self.plan.wake(end)
        return None

    def _restarted_too_often(self) -> bool:
        if self.spec["template"]["spec"].get("restartPolicy") != "OnFailure":
            return False
        restarts = sum(
            status.get("restartCount", 0)
            for pod in self.pods
            if _phase(pod) in {"Running", "Pending"}
            for kind in ("initContainerStatuses", "containerStatuses")
            for status in pod.get("status", {}).get(kind) or ()
        )
        limit = self.spec.get("backoffLimit", 6)
        return bool(restarts > 0 if limit == 0 else restarts >= limit)

    def _completed(self) -> tuple[str, str, str] | None:
        wanted = self.spec.get("completions")
        is_complete = self.succeeded > 0 if wanted is None else self.succeeded >= wanted
        if is_complete and not self._remaining():
            return "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
        return None

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _manage(self) -> None:
        if self.spec.get("suspend"):
            self.plan.delete = list(self.active)
            return
        parallelism, completions = self.spec.get("parallelism", 1), self.spec.get("completions")
        if completions is not None:
            wanted = max(min(completions - self.succeeded, parallelism), 0)
        else:
            wanted = len(self.active) if self.succeeded else parallelism
        wanted = min(wanted, MAX_ACTIVE_PODS)
        surplus = self._surplus(max(len(self.active) - wanted, 0))
        if surplus:
            self.plan.delete = surplus[:MAX_PODS_PER_RECONCILE]
            return
        missing = wanted - len(self.active)
        if self.spec.get("podReplacementPolicy") == "Failed":
            missing -= self._terminating()
        if missing <= 0:
            return
        until = self.plan.backoff.until()
        if until is not None and until > self.now:
            self.plan.wake(until)
            return
        self.plan.create = self._next_pods(min(missing, MAX_PODS_PER_RECONCILE))

    def _surplus(self, count: int) -> list[Object]:
        """Return the pods to delete: redundant pods of an Indexed Job first, then the youngest and least advanced."""
        redundant: list[Object] = []
        rest: list[Object] = []
        seen: set[int] = set()
        for pod in self.active:
            index = indexes.index_of(pod) if self.indexed else None
            if self.indexed and (index is None or index in seen or index >= (self.spec.get("completions") or 0)):
                redundant.append(pod)
            else:
                rest.append(pod)
                seen.update(() if index is None else (index,))
        rest.sort(key=lambda pod: (_phase(pod) == "Running", _age(pod)))
        return redundant + rest[: max(count - len(redundant), 0)]

    def _next_pods(self, count: int) -> list[int | None]:
        if not self.indexed:
            return [None] * count
        taken = self.done_indexes | {index for pod in self.active if (index := indexes.index_of(pod)) is not None}
        return list(indexes.first_free(taken, count, self.spec.get("completions") or 0))

    def _remaining(self) -> int:
        return len(self.active) - len(self.plan.delete) + len(self.plan.create)

    def _terminating(self) -> int:
        return sum(1 for pod in self.pods if _is_terminating(pod))

    # --- status -------------------------------------------------------------------------------------------------------

    def _suspension(self) -> None:
        if self.spec.get("suspend"):
            if self._set_condition("Suspended", "True", "JobSuspended", "Job suspended"):
                self.plan.events.append(("Normal", "Suspended", "Job suspended"))
                self.status.pop("startTime", None)
        elif self._has_condition("Suspended") and self._set_condition(
            "Suspended", "False", "JobResumed", "Job resumed"
        ):
            self.plan.events.append(("Normal", "Resumed", "Job resumed"))
            self.status["startTime"] = timestamp(self.now)

    def _track(self, target: tuple[str, str, str] | None) -> None:
        """Record finished pods, and release them."""
        ending = target is not None or "deletionTimestamp" in self.job["metadata"]
        failing = target is not None and target[0] == "FailureTarget"
        for pod in self.tracked:
            uid, failed = pod["metadata"]["uid"], self._failed(pod)
            if not (ending or failed or _phase(pod) == "Succeeded"):
                continue
            self.plan.release.append(pod)
            if uid in self.uncounted["succeeded"] or uid in self.uncounted["failed"]:
                continue
            if _phase(pod) == "Succeeded":
                if not self.indexed:  # indexed pods are counted once by their index
                    self.uncounted["succeeded"].append(uid)
            elif (failed or failing) and failure_policy.evaluate(self.job, pod)[1]:
                self.uncounted["failed"].append(uid)
        if self.indexed and self.done_indexes:
            self.status["completedIndexes"] = indexes.render(self.done_indexes)
            self.status["succeeded"] = len(self.done_indexes)

    def _finish(self, target: tuple[str, str, str] | None) -> None:
        if target is None:
            return
        kind, reason, message = target
        self._set_condition(kind, "True", reason, message)
        waiting = self._terminating() + len(self.plan.delete)
        if waiting or self.tracked or any(self.uncounted.values()):
            return
        if kind == "FailureTarget":
            self._set_condition("Failed", "True", reason, message)
            self.plan.events.append(("Warning", reason, message))
        else:
            self._set_condition("Complete", "True", reason, message)
            self.status["completionTime"] = timestamp(self.now)
            self.plan.events.append(("Normal", "Completed", "Job completed"))

    def _write_status(self) -> None:
        status = self.status
        deleting = {pod["metadata"]["uid"] for pod in self.plan.delete}
        ready = sum(1 for pod in self.active if _is_ready(pod) and pod["metadata"]["uid"] not in deleting)
        counts: dict[str, int] = {
            "active": self._remaining(),
            "ready": ready,
            "terminating": self._terminating() + len(self.plan.delete),
        }
        status |= counts
        if not status["active"]:
            del status["active"]
        recorded = {kind: uids for kind, uids in self.uncounted.items() if uids}
        status["uncountedTerminatedPods"] = recorded
        if status != self.before:
            self.plan.status = status

    def _has_condition(self, kind: str) -> bool:
        return any(condition["type"] == kind for condition in self.status.get("conditions") or ())

    def _set_condition(self, kind: str, value: str, reason: str, message: str) -> bool:
        conditions: list[Object] = self.status.setdefault("conditions", [])
        known: Any = next((one for one in conditions if one["type"] == kind), None)
        if known is not None and known["status"] == value:
            return False
        if known is not None:
            conditions.remove(known)
        when = timestamp(self.now)
        condition = {"type": kind, "status": value, "lastProbeTime": when, "lastTransitionTime": when}
        conditions.append({**condition, "reason": reason, "message": message})
        return True

    def _time_to_live(self, final: Object) -> None:
        seconds = self.spec.get("ttlSecondsAfterFinished")
        if seconds is None or "deletionTimestamp" in self.job["metadata"]:
            return
        end = _add_seconds(final["lastTransitionTime"], seconds)
        if self.now >= end:
            self.plan.remove_job = True
        else:
            self.plan.wake(end)


def _add_seconds(start: str, seconds: int) -> datetime:
    """Add seconds to a timestamp. Users may set any 64-bit number, so the sum is capped at a hundred years."""
    return parse_time(start) + timedelta(seconds=min(seconds, _CENTURY))


def condition_of(status: Object, *kinds: str) -> Object | None:
    """Return the first of these conditions that is True."""
    for condition in status.get("conditions") or ():
        if condition["type"] in kinds and condition["status"] == "True":
            found: Object = condition
            return found
    return None


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _is_active(pod: Object) -> bool:
    return _phase(pod) not in {"Succeeded", "Failed"} and "deletionTimestamp" not in pod["metadata"]


def _is_terminating(pod: Object) -> bool:
    return _phase(pod) not in {"Succeeded", "Failed"} and "deletionTimestamp" in pod["metadata"]


def _is_ready(pod: Object) -> bool:
    return condition_of(pod.get("status", {}), "Ready") is not None


def _age(pod: Object) -> float:
    return -parse_time(pod["metadata"]["creationTimestamp"]).timestamp()


def _finished_at(pod: Object) -> datetime:
    ends = [
        (one.get("state") or {}).get("terminated", {}).get("finishedAt")
        for one in pod.get("status", {}).get("containerStatuses") or ()
    ]
    if ends and all(ends):
        return max(parse_time(end) for end in ends)
    meta = pod["metadata"]
    if "deletionTimestamp" in meta:
        return parse_time(meta["deletionTimestamp"]) - timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0)
    return parse_time(meta["creationTimestamp"])
