"""Strategy of pods. Most of a pod's spec is immutable."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import MAX_INT32, Errors
from herder.engine.apiserver.builtin.strategies.warnings import pod_name, pod_warnings
from herder.engine.apiserver.builtin.strategies.workload.podspec import pod_spec
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta.errors import forbidden_field, invalid_value
from herder.engine.meta.kinds import Object

_CHANGEABLE = (
    "`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
    "`spec.tolerations` (only additions to existing tolerations)",
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
)  # fmt: skip
_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "lastTransitionTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_NOT_CHANGEABLE = f"pod updates may not change fields other than {','.join(_CHANGEABLE)}\n"


class PodStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True, status="core.v1.PodStatus")

    def prepare_create(self, obj: Object, context: Context) -> None:
        obj["status"] = {"phase": "Pending", "qosClass": qos_class(obj["spec"])}
        obj["spec"].pop("ephemeralContainers", None)
        if obj["spec"].get("schedulingGates"):
            obj["status"]["conditions"] = [dict(_GATED)]

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        super().prepare_update(obj, old, context)
        if context.subresource == "status" and not obj["status"].get("qosClass"):
            obj["status"]["qosClass"] = old.get("status", {}).get("qosClass") or qos_class(obj["spec"])

    def grace_period(self, obj: Object, requested: int | None) -> int | None:
        """Unscheduled and terminated pods are deleted immediately; the kubelet terminates all others first."""
        spec, phase = obj.get("spec", {}), obj.get("status", {}).get("phase")
        if not spec.get("nodeName") or phase in {"Succeeded", "Failed"}:
            return 0
        seconds = requested if requested is not None else spec.get("terminationGracePeriodSeconds", 30)
        return max(int(seconds), 0)

    def problems(self, obj: Object, context: Context) -> Errors:
        yield from pod_spec(obj.get("spec") or {}, "spec")

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        if context.subresource:
            return
        new_spec, old_spec = obj.get("spec") or {}, old.get("spec") or {}
        for key in ("containers", "initContainers"):
            if len(new_spec.get(key) or ()) != len(old_spec.get(key) or ()):
                yield forbidden_field(f"spec.{key}", "pod updates may not add or remove containers")
                return
        too_late = list(_deadline(new_spec, old_spec))
        yield from too_late
        if too_late and new_spec.get("activeDeadlineSeconds") is not None:
            return
        yield from _only_added_tolerations(new_spec, old_spec)
        yield from _only_removed_gates(new_spec, old_spec)
        if _immutable_part(new_spec, old_spec) != _immutable_part(old_spec, old_spec):
            yield forbidden_field("spec", _NOT_CHANGEABLE + changed_fields(new_spec, old_spec))

    def fields(self, obj: Object) -> dict[str, str]:
        spec, status = obj.get("spec", {}), obj.get("status", {})
        return {
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.restartPolicy": spec.get("restartPolicy", ""),
            "spec.schedulerName": spec.get("schedulerName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
            "spec.hostNetwork": "true" if spec.get("hostNetwork") else "false",
            "status.phase": status.get("phase", ""),
            "status.podIP": status.get("podIP", ""),
            "status.nominatedNodeName": status.get("nominatedNodeName", ""),
        }

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        named = pod_name(obj, "the Pod's hostname") if old is None else ()
        return [*named, *pod_warnings(obj["spec"], "spec")]


def qos_class(spec: Object) -> str:
    """Return the QoS class, from requests and limits of CPU and memory."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    any_said, all_equal = False, True
    for container in containers:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            any_said = any_said or name in limits or name in requests
            all_equal = all_equal and name in limits and requests.get(name, limits[name]) == limits[name]
    if not any_said:
        return "BestEffort"
    return "Guaranteed" if all_equal else "Burstable"


def _deadline(new: Object, old: Object) -> Errors:
    wanted, before = new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    path = "spec.activeDeadlineSeconds"
    if wanted is None:
        if before is not None:
            yield invalid_value(path, wanted, "must not update from a positive integer to nil value")
    elif not 0 <= wanted <= MAX_INT32:
        yield invalid_value(path, wanted, f"must be between 0 and {MAX_INT32}, inclusive")
    elif before is not None and before < wanted:
        yield invalid_value(path, wanted, "must be less than or equal to previous value")


def _only_added_tolerations(new: Object, old: Object) -> Errors:
    wanted = new.get("tolerations") or []
    for item in old.get("tolerations") or ():
        unchanged = {key: value for key, value in item.items() if key != "tolerationSeconds"}
        if not any({k: v for k, v in other.items() if k != "tolerationSeconds"} == unchanged for other in wanted):
            yield forbidden_field(
                "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
            )
            return


def _only_removed_gates(new: Object, old: Object) -> Errors:
    before = {gate.get("name") for gate in old.get("schedulingGates") or ()}
    added = sorted({gate.get("name", "") for gate in new.get("schedulingGates") or ()} - before)
    if added:
        problem = f"only deletion is allowed, but found new scheduling gate '{added[0]}'"
        yield forbidden_field(f"spec.schedulingGates[{added[0]}]", problem)


def _immutable_part(spec: Object, old: Object) -> Object:
    """Return the spec without its mutable fields."""
    frozen = copy.copy(spec)
    for key in ("containers", "initContainers"):
        if frozen.get(key):
            frozen[key] = [{**item, "image": ""} for item in frozen[key]]
    for key in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        frozen.pop(key, None)
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and frozen.get("terminationGracePeriodSeconds") == 1:
        frozen["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    if old.get("schedulingGates"):  # scheduling directives of a gated pod are mutable
        frozen.pop("nodeSelector", None)
        frozen["affinity"] = {k: v for k, v in (frozen.get("affinity") or {}).items() if k != "nodeAffinity"}
    return frozen


def changed_fields(new: Object, old: Object) -> str:
    """Return the top-level fields that differ, in place of Go's structural diff."""
    names: Iterable[str] = sorted(key for key in new.keys() | old.keys() if new.get(key) != old.get(key))
    return "changed: " + ", ".join(names)
