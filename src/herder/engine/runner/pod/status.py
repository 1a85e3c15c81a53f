"""Pod status from the states of its containers; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from herder.engine.meta.kinds import Object
from herder.engine.runner.kinds import from_seconds
from herder.engine.runner.pod.attempt import Outcome


@dataclass(slots=True)
class ContainerState:
    """State of one container: waiting, running or terminated."""

    waiting: tuple[str, str] | None = ("ContainerCreating", "")  # reason, message
    running_since: float | None = None
    ended: Object | None = None  # terminated state
    last: Object | None = None  # lastState: the previous terminated state
    restarts: int = 0
    container_id: str = ""

    @property
    def succeeded(self) -> bool:
        return self.ended is not None and self.ended["exitCode"] == 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why the pod as a whole ended, if its containers do not show it."""

    phase: str
    reason: str
    message: str


@dataclass(slots=True)
class PodState:
    """State of a pod and its containers."""

    containers: dict[str, ContainerState]
    init: dict[str, ContainerState] = field(default_factory=dict)
    verdict: Verdict | None = None
    started: str = ""
    final: bool = False  # no container will be started again, regardless of the restart policy


def terminated(outcome: Outcome, *, container_id: str, message: str) -> Object:
    reason = outcome.reason or ("Completed" if outcome.code == 0 else "Error")
    state: Object = {"exitCode": outcome.code, "reason": reason}
    if outcome.signal:
        state["signal"] = outcome.signal
    if text := (outcome.message or message):
        state["message"] = text
    state["startedAt"] = from_seconds(outcome.started) if outcome.started else None
    state["finishedAt"] = from_seconds(outcome.finished) if outcome.finished else None
    state["containerID"] = container_id
    return state


def pod_status(pod: Object, state: PodState, *, address: str, now: str) -> Object:
    phase = _phase(pod, state)
    before = {condition["type"]: condition for condition in pod.get("status", {}).get("conditions") or ()}
    status: Object = {
        "observedGeneration": pod["metadata"].get("generation", 0),
        "phase": phase,
        "conditions": _conditions(pod, state, phase, before, now),
        "hostIP": address,
        "hostIPs": [{"ip": address}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": state.started,
        "containerStatuses": _statuses(pod["spec"].get("containers") or (), state.containers),
    }
    if state.init:
        status["initContainerStatuses"] = _statuses(pod["spec"].get("initContainers") or (), state.init)
    if state.verdict is not None:
        fields = {"reason": state.verdict.reason, "message": state.verdict.message}
        status |= {key: value for key, value in fields.items() if value}
    return status


def _phase(pod: Object, state: PodState) -> str:
    if state.verdict is not None:
        return state.verdict.phase
    restart = "Never" if state.final else pod["spec"].get("restartPolicy", "Always")
    init, main = list(state.init.values()), list(state.containers.values())
    if restart == "Never" and any(one.ended is not None and not one.succeeded for one in init):
        return "Failed"
    if not all(one.succeeded for one in init):
        return "Pending"
    if all(one.ended is not None for one in main):
        if all(one.succeeded for one in main):
            return "Succeeded" if restart != "Always" else "Running"
        return "Failed" if restart == "Never" else "Running"
    if any(one.running_since is not None or one.ended is not None or one.last is not None for one in main):
        return "Running"
    return "Pending"


def _conditions(pod: Object, state: PodState, phase: str, before: Mapping[str, Object], now: str) -> list[Object]:
    initialized = all(one.succeeded for one in state.init.values())
    ready = bool(state.containers) and all(one.running_since is not None for one in state.containers.values())
    not_ready_reason = ""
    if not ready:
        not_ready_reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")
    unready = [name for name, one in state.containers.items() if one.running_since is None]
    message = (
        f"containers with unready status: [{' '.join(unready)}]" if not_ready_reason == "ContainersNotReady" else ""
    )
    wanted: Sequence[tuple[str, bool, str, str]] = (
        ("PodReadyToStartContainers", phase == "Running", "", ""),
        ("Initialized", initialized, "" if initialized else "ContainersNotInitialized", ""),
        ("Ready", ready, not_ready_reason, message),
        ("ContainersReady", ready, not_ready_reason, message),
        ("PodScheduled", True, "", ""),
    )
    conditions = [_condition(before.get(name), name, *rest, now=now) for name, *rest in wanted]  # type: ignore[arg-type]
    ours = {name for name, *_ in wanted}
    return conditions + [condition for name, condition in before.items() if name not in ours]


def _condition(before: Object | None, name: str, holds: bool, reason: str, message: str, *, now: str) -> Object:
    value = "True" if holds else "False"
    changed = before is None or before.get("status") != value
    condition: Object = {
        "type": name,
        "status": value,
        "lastProbeTime": None,
        "lastTransitionTime": now if changed or before is None else before.get("lastTransitionTime"),
    }
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition


def _statuses(specs: Sequence[Object], states: Mapping[str, ContainerState]) -> list[Object]:
    return [_container_status(spec, states[spec["name"]]) for spec in specs if spec["name"] in states]


def _container_status(spec: Object, state: ContainerState) -> Object:
    status: Object = {
        "name": spec["name"],
        "image": spec.get("image", ""),
        "imageID": "",
        "restartCount": state.restarts,
        "ready": state.running_since is not None,
        "started": state.running_since is not None,
        "lastState": {"terminated": state.last} if state.last else {},
    }
    if state.container_id:
        status["containerID"] = state.container_id
    if state.ended is not None:
        status["state"] = {"terminated": state.ended}
    elif state.running_since is not None:
        status["state"] = {"running": {"startedAt": from_seconds(state.running_since)}}
    else:
        reason, message = state.waiting or ("ContainerCreating", "")
        status["state"] = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
    return status
