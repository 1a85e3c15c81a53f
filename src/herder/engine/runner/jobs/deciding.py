"""What a Job needs next, from the Job, its pods and the time: pure.

Counting is exact over crashes: a finished pod's uid is first noted in the status, then its tracking finalizer goes,
and only a noted uid whose pod has lost the finalizer (or is gone) becomes part of a counter.
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
MAX_PODS_AT_ONCE = 20
"""Created or deleted before other Jobs get their turn: those that create machines wait behind those of any user."""
MAX_ACTIVE_PODS = 110
"""As many as a kubelet runs by default: there is one node, and more pods would only fill the store."""
_FINAL = ("Complete", "Failed")
_CENTURY = 100 * 366 * 86400  # seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures in a row, and when the last of them was."""

    failures: int = 0
    last: datetime | None = None

    def until(self) -> datetime | None:
        if not self.failures or self.last is None:
            return None
        doubled: int = 2 ** min(self.failures - 1, 30)
        return self.last + min(BACKOFF_FIRST * doubled, BACKOFF_LIMIT)


@dataclass(slots=True)
class Plan:
    """Carried out in this order; `status` is None where it stays as it is."""

    delete: list[Object] = field(default_factory=list)
    create: list[int | None] = field(default_factory=list)  # completion indexes; None where there are none
    status: Object | None = None
    release: list[Object] = field(default_factory=list)  # pods to take the tracking finalizer from
    remove_job: bool = False  # its time to live is over
    wake_at: datetime | None = None
    backoff: Backoff = field(default_factory=Backoff)
    events: list[tuple[str, str, str]] = field(default_factory=list)  # type, reason, message

    def wake(self, when: datetime) -> None:
        self.wake_at = when if self.wake_at is None else min(self.wake_at, when)


def decide(job: Object, pods: Sequence[Object], now: datetime, backoff: Backoff) -> Plan:
    return _Decision(job, pods, now, backoff).made()


class _Decision:
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

    def made(self) -> Plan:
        if (final := condition_of(self.before, *_FINAL)) is not None:
            self.plan.release = list(self.tracked)
            self._time_to_live(final)
            return self.plan
        self._count_settled()
        self._look_at_finished()
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

    def _count_settled(self) -> None:
        held = {pod["metadata"]["uid"] for pod in self.tracked}
        for kind, uids in self.uncounted.items():
            settled = [uid for uid in uids if uid not in held]
            if settled:
                self.status[kind] = self.status.get(kind, 0) + len(settled)
                self.uncounted[kind] = [uid for uid in uids if uid in held]

    def _look_at_finished(self) -> None:
        noted = {*self.uncounted["succeeded"], *self.uncounted["failed"]}
        fresh = [pod for pod in self.tracked if pod["metadata"]["uid"] not in noted]
        self.new_succeeded = [pod for pod in fresh if _phase(pod) == "Succeeded"]
        self.new_failed = [pod for pod in fresh if self._failed(pod)]
        counting = [pod for pod in self.new_failed if failure_policy.judge(self.job, pod)[1]]
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
            later = [when for when in failures if when > last_success]
            return Backoff(len(later), later[-1] if later else None)
        return Backoff(before.failures + len(failures), failures[-1]) if failures else before

    def _failed(self, pod: Object) -> bool:
        if _phase(pod) == "Failed":
            return True
        if self.spec.get("podReplacementPolicy") == "Failed":
            return False
        return "deletionTimestamp" in pod["metadata"] and _phase(pod) != "Succeeded"

    # --- how it ends ------------------------------------------------------------------------------------------------

    def _target(self) -> tuple[str, str, str] | None:
        """The interim condition that says how the Job is going to end: type, reason, message."""
        if (reported := condition_of(self.before, "SuccessCriteriaMet", "FailureTarget")) is not None:
            return reported["type"], reported.get("reason", ""), reported.get("message", "")
        for pod in self.pods:
            if self._failed(pod) and (why := failure_policy.judge(self.job, pod)[0]):
                return "FailureTarget", "PodFailurePolicy", why
        if self.failed > self.spec.get("backoffLimit", 6) or self._restarted_too_often():
            return "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        seconds = self.spec.get("activeDeadlineSeconds")
        if seconds is not None and not self.spec.get("suspend") and self.status.get("startTime"):
            end = _later(self.status["startTime"], seconds)
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
        enough = self.succeeded > 0 if wanted is None else self.succeeded >= wanted
        if enough and not self._remaining():
            return "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
        return None

    # --- how many pods ------------------------------------------------------------------------------------------------

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
            self.plan.delete = surplus[:MAX_PODS_AT_ONCE]
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
        self.plan.create = self._next_pods(min(missing, MAX_PODS_AT_ONCE))

    def _surplus(self, count: int) -> list[Object]:
        """The youngest and least advanced go first; of an Indexed Job, all that nobody asked for."""
        useless: list[Object] = []
        rest: list[Object] = []
        seen: set[int] = set()
        for pod in self.active:
            index = indexes.index_of(pod) if self.indexed else None
            if self.indexed and (index is None or index in seen or index >= (self.spec.get("completions") or 0)):
                useless.append(pod)
            else:
                rest.append(pod)
                seen.update(() if index is None else (index,))
        rest.sort(key=lambda pod: (_phase(pod) == "Running", _age(pod)))
        return useless + rest[: max(count - len(useless), 0)]

    def _next_pods(self, count: int) -> list[int | None]:
        if not self.indexed:
            return [None] * count
        taken = self.done_indexes | {index for pod in self.active if (index := indexes.index_of(pod)) is not None}
        return list(indexes.first_free(taken, count, self.spec.get("completions") or 0))

    def _remaining(self) -> int:
        return len(self.active) - len(self.plan.delete) + len(self.plan.create)

    def _terminating(self) -> int:
        return sum(1 for pod in self.pods if _is_terminating(pod))

    # --- what is written ----------------------------------------------------------------------------------------------

    def _suspension(self) -> None:
        if self.spec.get("suspend"):
            if self._set("Suspended", "True", "JobSuspended", "Job suspended"):
                self.plan.events.append(("Normal", "Suspended", "Job suspended"))
                self.status.pop("startTime", None)
        elif self._has("Suspended") and self._set("Suspended", "False", "JobResumed", "Job resumed"):
            self.plan.events.append(("Normal", "Resumed", "Job resumed"))
            self.status["startTime"] = timestamp(self.now)

    def _track(self, target: tuple[str, str, str] | None) -> None:
        """Note what has finished, and let those pods go."""
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
                if not self.indexed:  # for others the index itself keeps it from being counted twice
                    self.uncounted["succeeded"].append(uid)
            elif (failed or failing) and failure_policy.judge(self.job, pod)[1]:
                self.uncounted["failed"].append(uid)
        if self.indexed and self.done_indexes:
            self.status["completedIndexes"] = indexes.render(self.done_indexes)
            self.status["succeeded"] = len(self.done_indexes)

    def _finish(self, target: tuple[str, str, str] | None) -> None:
        if target is None:
            return
        kind, reason, message = target
        self._set(kind, "True", reason, message)
        waiting = self._terminating() + len(self.plan.delete)
        if waiting or self.tracked or any(self.uncounted.values()):
            return
        if kind == "FailureTarget":
            self._set("Failed", "True", reason, message)
            self.plan.events.append(("Warning", reason, message))
        else:
            self._set("Complete", "True", reason, message)
            self.status["completionTime"] = timestamp(self.now)
            self.plan.events.append(("Normal", "Completed", "Job completed"))

    def _write_status(self) -> None:
        status = self.status
        leaving = {pod["metadata"]["uid"] for pod in self.plan.delete}
        ready = sum(1 for pod in self.active if _is_ready(pod) and pod["metadata"]["uid"] not in leaving)
        counts: dict[str, int] = {
            "active": self._remaining(),
            "ready": ready,
            "terminating": self._terminating() + len(self.plan.delete),
        }
        status |= counts
        if not status["active"]:
            del status["active"]
        noted = {kind: uids for kind, uids in self.uncounted.items() if uids}
        status["uncountedTerminatedPods"] = noted
        if status != self.before:
            self.plan.status = status

    def _has(self, kind: str) -> bool:
        return any(condition["type"] == kind for condition in self.status.get("conditions") or ())

    def _set(self, kind: str, value: str, reason: str, message: str) -> bool:
        conditions: list[Object] = self.status.setdefault("conditions", [])
        known: Any = next((one for one in conditions if one["type"] == kind), None)
        if known is not None and known["status"] == value:
            return False
        if known is not None:
            conditions.remove(known)
        when = timestamp(self.now)
        fresh = {"type": kind, "status": value, "lastProbeTime": when, "lastTransitionTime": when}
        conditions.append({**fresh, "reason": reason, "message": message})
        return True

    def _time_to_live(self, final: Object) -> None:
        seconds = self.spec.get("ttlSecondsAfterFinished")
        if seconds is None or "deletionTimestamp" in self.job["metadata"]:
            return
        end = _later(final["lastTransitionTime"], seconds)
        if self.now >= end:
            self.plan.remove_job = True
        else:
            self.plan.wake(end)


def _later(start: str, seconds: int) -> datetime:
    """Users set any 64-bit number of seconds: what is beyond all calendars is in a hundred years, hence never."""
    return parse_time(start) + timedelta(seconds=min(seconds, _CENTURY))


def condition_of(status: Object, *kinds: str) -> Object | None:
    """The first of these conditions that holds."""
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
