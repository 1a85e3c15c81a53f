"""Which Pods leave a Node that is drained for a new plan, by the options that `kubectl drain` has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from herder.api.capi.drained import MIRROR, controller_of, full_name, pods_of
from herder.api.capi.kinds import POD
from herder.api.writing import delete
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Effect, EffectKey, EffectResult
from herder.engine.runtime.view import Observed, Unreachable, View

ROUND = timedelta(seconds=20)
"""A Pod whose eviction is refused is asked again in the next round; rounds count from the start of the drain."""

AT_ONCE = 20
DEFAULT_TIMEOUT = 600
_LONGEST = 2**31 - 1  # seconds


@dataclass(frozen=True)
class Emptying:
    """How far it is. `problem` is what the machine's owner must know, such as a Pod that must not be evicted."""

    decision: Decision
    done: bool = False
    waiting: str = ""
    problem: str = ""


def empty(view: View, cluster: str, node: str, options: Mapping[str, Any], started: datetime, uid: str) -> Emptying:
    wish = pods_of(cluster, node)
    needs = Decision(observe=(wish,))
    match view.observed(wish):
        case Observed(objects):
            leaving, objections = _judged(objects, options, view.now)
        case Unreachable(reason):
            return Emptying(
                needs + Decision(wake_at=view.now + ROUND), problem=f"error trying to reach service: {reason}"
            )
        case None:
            return Emptying(needs, waiting=f"looking at the Pods of Node {node}")
    if objections and not options.get("ignoreErrors"):
        return Emptying(needs, problem="cannot delete " + "; ".join(objections))
    if not leaving:
        return Emptying(needs, done=True)
    rounds = int((view.now - started) / ROUND)
    asked = [_Asked(pod, view.result(_key(uid, pod, rounds))) for pod in leaving]
    refused = [refusal for each in asked if (refusal := each.refusal)]
    late = _late(view.now, started, options, leaving)
    open_ = [each.pod for each in asked if each.result is None and not _is_going(each.pod)][:AT_ONCE]
    acts = (
        _deletions(open_, cluster)
        if options.get("disableEviction")
        else _evictions(open_, cluster, options, rounds, uid)
    )
    decision = needs + acts + Decision(wake_at=started + (rounds + 1) * ROUND)
    return Emptying(
        decision, waiting=f"{len(leaving)} Pods must leave Node {node}", problem=late or "; ".join(refused[:3])
    )


@dataclass(frozen=True)
class _Asked:
    pod: Object
    result: EffectResult | None

    @property
    def refusal(self) -> str:
        """What a disruption budget, or the server, says against it."""
        if self.result is None:
            return ""
        if self.result.error:
            return f"{full_name(self.pod)}: {self.result.error}"
        outcome = self.result.value
        held = outcome["outcome"] in ("blocked", "failed")
        return f"{full_name(self.pod)}: {outcome.get('message', '')}" if held else ""


def _judged(pods: Sequence[Object], options: Mapping[str, Any], now: datetime) -> tuple[list[Object], list[str]]:
    """Those that leave, and what speaks against letting others leave."""
    leaving: list[Object] = []
    objections: list[str] = []
    for pod in sorted(pods, key=full_name):
        if _stays(pod, options, now):
            continue
        objection = _objection(pod, options)
        if objection:
            objections.append(f"{full_name(pod)}: {objection}")
        else:
            leaving.append(pod)
    return leaving, objections


def _stays(pod: Object, options: Mapping[str, Any], now: datetime) -> bool:
    if MIRROR in (pod["metadata"].get("annotations") or {}):
        return True
    deleted = pod["metadata"].get("deletionTimestamp")
    patience = _seconds(options, "skipWaitForDeleteTimeoutSeconds", 0)
    if deleted and patience and datetime.fromisoformat(deleted) + timedelta(seconds=patience) <= now:
        return True
    return _of_daemon_set(pod) and options.get("ignoreDaemonSets") is not False


def _objection(pod: Object, options: Mapping[str, Any]) -> str:
    """Nothing speaks against a Pod that has ended."""
    if pod["status"]["phase"] in ("Succeeded", "Failed"):
        return ""
    if _of_daemon_set(pod):
        return "a DaemonSet makes it anew at once (set ignoreDaemonSets to leave it)"
    if any("emptyDir" in volume for volume in pod["spec"]["volumes"]) and not options.get("deleteEmptyDirData"):
        return "its local data would be lost (set deleteEmptyDirData to accept that)"
    if controller_of(pod) is None and not options.get("force"):
        return "no controller makes it anew (set force to delete it)"
    return ""


def _of_daemon_set(pod: Object) -> bool:
    controller = controller_of(pod)
    return controller is not None and controller.get("kind") == "DaemonSet"


def _is_going(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _late(now: datetime, started: datetime, options: Mapping[str, Any], leaving: Sequence[Object]) -> str:
    """It goes on all the same: somebody must look at those Pods."""
    limit = _seconds(options, "timeout", DEFAULT_TIMEOUT)
    if now < started + timedelta(seconds=limit):
        return ""
    left = ", ".join(full_name(pod) for pod in leaving[:3])
    more = f" and {len(leaving) - 3} more" if len(leaving) > 3 else ""
    return f"global timeout reached: {limit}s; still there: {left}{more}"


def _seconds(options: Mapping[str, Any], name: str, default: int) -> int:
    """Options are JSON in an annotation, where users may have written anything."""
    found = options.get(name)
    return found if isinstance(found, int) and 0 < found <= _LONGEST else default


def _evictions(pods: Sequence[Object], cluster: str, options: Mapping[str, Any], rounds: int, uid: str) -> Decision:
    grace = options.get("gracePeriod")
    effects = []
    for pod in pods:
        meta = pod["metadata"]
        arguments = {
            "cluster": cluster,
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "grace_seconds": grace if isinstance(grace, int) and grace >= 0 else None,
        }
        effects.append(Effect("evict", _key(uid, pod, rounds), arguments, f"Pod {full_name(pod)} must leave its Node"))
    return Decision(effects=tuple(effects))


def _deletions(pods: Sequence[Object], cluster: str) -> Decision:
    """Where the cluster's owner wants no budget asked."""
    return Decision(writes=tuple(delete(POD, pod, "it must leave its Node", target=cluster) for pod in pods))


def _key(uid: str, pod: Object, rounds: int) -> EffectKey:
    return uid, "evict", pod["metadata"]["uid"], str(rounds)
