"""Evict the Pods of a Node before a disruptive plan, with the options of `kubectl drain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from herder.api.capi.drain_records import controller_of, full_name, pods_of
from herder.api.capi.kinds import POD
from herder.api.writes import delete
from herder.controllers.drain.evictions import (
    EVICTIONS_AT_ONCE,
    REFUSED,
    ROUND,
    eviction,
    eviction_key,
    next_round,
    outcome_of,
    round_number,
)
from herder.controllers.drain.pods import has_daemon_set, has_local_data, is_finished, is_static, is_terminating
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, EffectResult
from herder.engine.runtime.view import Observed, Unreachable, View

DEFAULT_TIMEOUT = 600
OBJECTIONS_SHOWN = 10
_MAX_SECONDS = 2**31 - 1  # seconds


@dataclass(frozen=True)
class DrainProgress:
    """State of a drain. `problem` is reported to the user, such as a Pod that must not be evicted."""

    decision: Decision
    done: bool = False
    waiting: str = ""
    problem: str = ""


def drain_pods(
    view: View, cluster: str, node: str, options: Mapping[str, Any], started: datetime, uid: str
) -> DrainProgress:
    subscription = pods_of(cluster, node)
    needs = Decision(observe=(subscription,))
    match view.observed(subscription):
        case Observed(objects):
            remaining, objections = _classify_pods(objects, options, view.now)
        case Unreachable(reason):
            return DrainProgress(
                needs + Decision(wake_at=view.now + ROUND), problem=f"error trying to reach service: {reason}"
            )
        case None:
            return DrainProgress(needs, waiting=f"listing the Pods of Node {node}")
    if objections and not options.get("ignoreErrors"):
        return DrainProgress(needs, problem="cannot delete " + _shown(objections))
    if not remaining:
        return DrainProgress(needs, done=True)
    number = round_number(view.now, started)
    evictions = [_Eviction(pod, view.result(eviction_key(uid, pod, number))) for pod in remaining]
    refused = [refusal for each in evictions if (refusal := each.refusal)]
    timeout_message = _timeout_message(view.now, started, options, remaining)
    pending = [each.pod for each in evictions if each.result is None and not is_terminating(each.pod)]
    pending = pending[:EVICTIONS_AT_ONCE]
    actions = (
        _deletions(pending, cluster)
        if options.get("disableEviction")
        else _evictions(pending, cluster, options, number, uid)
    )
    decision = needs + actions + Decision(wake_at=next_round(started, number))
    return DrainProgress(
        decision,
        waiting=f"{len(remaining)} Pods must leave Node {node}",
        problem=timeout_message or "; ".join(refused[:3]),
    )


def _shown(objections: Sequence[str]) -> str:
    """Name some Pods: the message becomes an annotation, and the cluster controls the number of Pods."""
    more = [f"{len(objections) - OBJECTIONS_SHOWN} more"] if len(objections) > OBJECTIONS_SHOWN else []
    return "; ".join([*objections[:OBJECTIONS_SHOWN], *more])


@dataclass(frozen=True)
class _Eviction:
    pod: Object
    result: EffectResult | None

    @property
    def refusal(self) -> str:
        """Why the API server refuses the eviction, for example a PodDisruptionBudget; empty if it does not."""
        if self.result is None:
            return ""
        outcome = outcome_of(self.result)
        return f"{full_name(self.pod)}: {outcome.message}" if outcome.kind in REFUSED else ""


def _classify_pods(pods: Sequence[Object], options: Mapping[str, Any], now: datetime) -> tuple[list[Object], list[str]]:
    """Pods to evict, and objections to evicting others."""
    remaining: list[Object] = []
    objections: list[str] = []
    for pod in sorted(pods, key=full_name):
        if _is_skipped(pod, options, now):
            continue
        objection = _objection(pod, options)
        if objection:
            objections.append(f"{full_name(pod)}: {objection}")
        else:
            remaining.append(pod)
    return remaining, objections


def _is_skipped(pod: Object, options: Mapping[str, Any], now: datetime) -> bool:
    if is_static(pod):
        return True
    deleted = pod["metadata"].get("deletionTimestamp")
    timeout = _seconds(options, "skipWaitForDeleteTimeoutSeconds", 0)
    if deleted and timeout and datetime.fromisoformat(deleted) + timedelta(seconds=timeout) <= now:
        return True
    return has_daemon_set(pod) and options.get("ignoreDaemonSets") is not False


def _objection(pod: Object, options: Mapping[str, Any]) -> str:
    """Why `kubectl drain` would refuse to evict the Pod; empty if it would not, or if the Pod has finished."""
    if is_finished(pod):
        return ""
    if has_daemon_set(pod):
        return "managed by a DaemonSet, which recreates it; set ignoreDaemonSets to skip it"
    if has_local_data(pod) and not options.get("deleteEmptyDirData"):
        return "emptyDir data would be lost; set deleteEmptyDirData to accept that"
    if controller_of(pod) is None and not options.get("force"):
        return "no controller recreates it; set force to delete it"
    return ""


def _timeout_message(now: datetime, started: datetime, options: Mapping[str, Any], remaining: Sequence[Object]) -> str:
    """Report that the drain exceeds its timeout. It continues, but a user must look at the remaining Pods."""
    limit = _seconds(options, "timeout", DEFAULT_TIMEOUT)
    if now < started + timedelta(seconds=limit):
        return ""
    left = ", ".join(full_name(pod) for pod in remaining[:3])
    more = f" and {len(remaining) - 3} more" if len(remaining) > 3 else ""
    return f"global timeout reached: {limit}s; still there: {left}{more}"


def _seconds(options: Mapping[str, Any], name: str, default: int) -> int:
    """An option in seconds. Options are JSON in an annotation: users may have written anything."""
    found = options.get(name)
    return found if isinstance(found, int) and 0 < found <= _MAX_SECONDS else default


def _evictions(pods: Sequence[Object], cluster: str, options: Mapping[str, Any], number: int, uid: str) -> Decision:
    grace = options.get("gracePeriod")
    seconds = grace if isinstance(grace, int) and grace >= 0 else None
    effects = [
        eviction(cluster, pod, eviction_key(uid, pod, number), seconds, f"Pod {full_name(pod)} must leave its Node")
        for pod in pods
    ]
    return Decision(effects=tuple(effects))


def _deletions(pods: Sequence[Object], cluster: str) -> Decision:
    """Delete Pods without the eviction API, so that PodDisruptionBudgets do not apply (`disableEviction`)."""
    return Decision(writes=tuple(delete(POD, pod, "it must leave its Node", target=cluster) for pod in pods))
