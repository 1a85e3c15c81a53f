"""Printers of pods and pod templates."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from herder.engine.apiserver.tables.cells import (
    NONE,
    columns,
    container_cells,
    has_condition,
    labels_text,
    name_of,
    spec_of,
    status_of,
)
from herder.engine.apiserver.tables.duration import age, since
from herder.engine.apiserver.tables.printers import Printer, Printers
from herder.engine.meta.kinds import GroupKind, Object


def _pod(pod: Object, now: datetime) -> list[Any]:
    spec, status = spec_of(pod), status_of(pod)
    summary = _Summary(spec, status)
    restarts = str(summary.restarts)
    if summary.restarts and summary.last_restart:
        restarts = f"{summary.restarts} ({since(summary.last_restart, now)} ago)"
    ips = status.get("podIPs") or ()
    return [
        name_of(pod),
        f"{summary.ready}/{summary.total}",
        _reason(pod, summary),
        restarts,
        age(pod, now),
        (ips[0].get("ip") if ips else "") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        _readiness_gates(spec, status),
    ]


class _Summary:
    """Summary of a pod's containers. Init containers come first: they determine the status until they have finished."""

    def __init__(self, spec: Object, status: Object) -> None:
        self.ready = 0
        self.restarts = 0
        self.last_restart = ""
        self.reason = status.get("reason") or status.get("phase") or ""
        scheduled = [each for each in status.get("conditions") or () if each.get("type") == "PodScheduled"]
        if any(each.get("reason") == "SchedulingGated" for each in scheduled):
            self.reason = "SchedulingGated"
        self._init = {each["name"]: each for each in spec.get("initContainers") or ()}
        sidecars = [each for each in self._init.values() if each.get("restartPolicy") == "Always"]
        self.total = len(spec.get("containers") or ()) + len(sidecars)
        self._sidecar_restarts = 0
        self._sidecar_last_restart = ""
        initializing = self._summarize_init_containers(status)
        if not initializing or has_condition(status.get("conditions"), "Initialized"):
            self._summarize_containers(status)

    def _summarize_init_containers(self, status: Object) -> bool:
        for index, container in enumerate(status.get("initContainerStatuses") or ()):
            sidecar = self._init.get(container.get("name", ""), {}).get("restartPolicy") == "Always"
            self._count_restarts(container, sidecar=sidecar)
            state = container.get("state") or {}
            terminated, waiting = state.get("terminated"), state.get("waiting") or {}
            if terminated and not terminated.get("exitCode"):
                continue
            if sidecar and container.get("started"):
                self.ready += bool(container.get("ready"))
                continue
            if terminated:
                self.reason = "Init:" + _termination_reason(terminated)
            elif waiting.get("reason") and waiting["reason"] != "PodInitializing":
                self.reason = "Init:" + waiting["reason"]
            else:
                self.reason = f"Init:{index}/{len(self._init)}"
            return True
        return False

    def _summarize_containers(self, status: Object) -> None:
        self.restarts, self.last_restart = self._sidecar_restarts, self._sidecar_last_restart
        running, failed = False, ""
        for container in reversed(status.get("containerStatuses") or ()):
            self._count_restarts(container, sidecar=False)
            state = container.get("state") or {}
            terminated, waiting = state.get("terminated"), state.get("waiting") or {}
            if waiting.get("reason"):
                self.reason = waiting["reason"]
            elif terminated:
                self.reason = _termination_reason(terminated)
                if terminated.get("exitCode"):
                    failed = self.reason
            elif container.get("ready") and state.get("running") is not None:
                running = True
                self.ready += 1
        if self.reason == "Completed":
            if running and has_condition(status.get("conditions"), "Ready"):
                self.reason = "Running"
            elif failed:
                self.reason = failed
            elif running:
                self.reason = "NotReady"

    def _count_restarts(self, container: Object, *, sidecar: bool) -> None:
        times = container.get("restartCount") or 0
        finished = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
        self.restarts += times
        self.last_restart = max(self.last_restart, finished)
        if sidecar:
            self._sidecar_restarts += times
            self._sidecar_last_restart = max(self._sidecar_last_restart, finished)


def _termination_reason(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode') or 0}"


def _reason(pod: Object, summary: _Summary) -> str:
    if not pod["metadata"].get("deletionTimestamp"):
        return str(summary.reason)
    status = status_of(pod)
    if status.get("reason") == "NodeLost":
        return "Unknown"
    return str(summary.reason) if status.get("phase") in {"Succeeded", "Failed"} else "Terminating"


def _readiness_gates(spec: Object, status: Object) -> str:
    gates = spec.get("readinessGates") or ()
    if not gates:
        return NONE
    passed = sum(has_condition(status.get("conditions"), gate.get("conditionType", "")) for gate in gates)
    return f"{passed}/{len(gates)}"


def _pod_template(obj: Object, now: datetime) -> list[Any]:
    template = obj.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels")
    return [name_of(obj), *container_cells(spec_of(template).get("containers")), labels_text(labels)]


PRINTERS: Printers = {
    GroupKind("", "Pod"): Printer(
        columns("Name", "Ready", "Status", "Restarts", "Age", "+IP", "+Node", "+Nominated Node", "+Readiness Gates"),
        _pod,
    ),
    GroupKind("", "PodTemplate"): Printer(columns("Name", "Containers", "Images", "Pod Labels"), _pod_template),
}
