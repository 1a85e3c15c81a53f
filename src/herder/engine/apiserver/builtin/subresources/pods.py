"""Subresources of pods: binding, ephemeralcontainers and resize."""

from __future__ import annotations

from typing import Any

from herder.engine.apiserver.builtin.defaults import default_struct
from herder.engine.apiserver.builtin.strategies.workload.pods import qos_class
from herder.engine.apiserver.request.handler_call import SubresourceRequest
from herder.engine.meta.errors import (
    BadRequest,
    FieldError,
    conflict,
    forbidden_field,
    invalid,
    invalid_value,
    not_supported,
    required,
)
from herder.engine.meta.kinds import GroupKind, GroupResource, Object
from herder.engine.wire import Response

_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


async def bind(call: SubresourceRequest) -> Object | Response:
    """Assign a pod to a node. It cannot be moved later."""
    call.parent_or_404()
    binding = call.body or {}
    target: Object = binding.get("target") or {}
    if (binding.get("metadata") or {}).get("name", call.name) not in {"", call.name}:
        raise BadRequest("name in URL does not match name in Binding object")
    problems: list[FieldError] = []
    if target.get("kind") not in {"", None, "Node"}:
        problems.append(not_supported("target.kind", target["kind"], ["Node", "<empty>"]))
    if not target.get("name"):
        problems.append(required("target.name"))
    if problems:
        raise invalid(GroupKind("", "Binding"), call.name, problems)
    await call.update(lambda pod: _assign(pod, target["name"], binding, call))
    return dict(_SUCCESS)


def _assign(pod: Object, node: str, binding: Object, call: SubresourceRequest) -> None:
    name, spec = pod["metadata"]["name"], pod["spec"]
    wanted = (binding.get("metadata") or {}).get("uid")
    why = ""
    if wanted and wanted != pod["metadata"].get("uid"):
        why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {pod['metadata'].get('uid')}"
    elif "deletionTimestamp" in pod["metadata"]:
        why = f"pod {name} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        why = f"pod {name} has non-empty .spec.schedulingGates"
    if why:
        raise conflict(GroupResource("", "pods/binding"), name, why)
    spec["nodeName"] = node
    metadata = binding.get("metadata") or {}
    for key in ("annotations", "labels"):
        if metadata.get(key):
            pod["metadata"].setdefault(key, {}).update(metadata[key])
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": call.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    set_condition(pod, scheduled)
    pod["status"].pop("nominatedNodeName", None)


def set_condition(pod: Object, condition: Object) -> None:
    """Replace the condition of the same type. observedGeneration is set only if the kubelet reports it, too."""
    status = pod.setdefault("status", {})
    if status.get("observedGeneration"):
        condition["observedGeneration"] = pod["metadata"].get("generation", 0)
    others = [item for item in status.get("conditions") or () if item.get("type") != condition["type"]]
    status["conditions"] = [*others, condition]


async def ephemeral_containers(call: SubresourceRequest) -> Object | Response:
    """Add ephemeral containers to a running pod; existing ones cannot be changed or removed."""
    parent, body = call.parent_or_404(), call.body
    if call.verb == "get" or body is None:
        return parent
    default_struct("core.v1.Pod", body)
    wanted: list[Object] = body.get("spec", {}).get("ephemeralContainers") or []

    def change(pod: Object) -> None:
        present = {item["name"]: item for item in pod["spec"].get("ephemeralContainers") or ()}
        kept = {item.get("name"): item for item in wanted}
        for name, item in present.items():
            if kept.get(name) != item:
                problem_text = f'existing ephemeral containers "{name}" may not be changed\n'
                if name not in kept:
                    problem_text = f'existing ephemeral containers "{name}" may not be removed\n'
                problem = forbidden_field("spec.ephemeralContainers", problem_text)
                raise invalid(GroupKind("", "Pod"), call.name, [problem])
        if wanted:
            pod["spec"]["ephemeralContainers"] = wanted

    return await call.update(change)


async def resize(call: SubresourceRequest) -> Object | Response:
    """Change the resources of containers, and nothing else."""
    parent, body = call.parent_or_404(), call.body
    if call.verb == "get" or body is None:
        return parent
    default_struct("core.v1.Pod", body)
    wanted = body.get("spec", {})

    def change(pod: Object) -> None:
        if _without_resources(wanted) != _without_resources(pod["spec"]):
            only = "only cpu and memory resources are mutable\n"
            raise invalid(GroupKind("", "Pod"), call.name, [forbidden_field("spec", only)])
        if qos_class(wanted) != qos_class(pod["spec"]):
            problem_text = "Pod QOS Class may not change as a result of resizing"
            problem = invalid_value("spec", qos_class(pod["spec"]), problem_text)
            raise invalid(GroupKind("", "Pod"), call.name, [problem])
        pod["spec"] = wanted

    return await call.update(change)


def _without_resources(spec: Object) -> Object:
    def stripped(item: Object) -> dict[str, Any]:
        return {key: value for key, value in item.items() if key != "resources"}

    same = {key: value for key, value in spec.items() if key != "resources"}
    for key in ("containers", "initContainers"):
        if same.get(key):
            same[key] = [stripped(item) for item in same[key]]
    return same
