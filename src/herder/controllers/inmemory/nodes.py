"""Node object of a simulated machine, and the conditions that it reports."""

from __future__ import annotations

import hashlib
from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import NODE
from herder.api.capi.names import UNINITIALIZED_TAINT
from herder.api.inmemory.behavior import Behavior
from herder.controllers.inmemory.owners import is_control_plane
from herder.engine.meta.kinds import Object

KUBELET_VERSION = "v1.36.3"
"""Version of the kubelet if the Machine has none."""
CAPACITY = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"}
CONTROL_PLANE_ROLE = "node-role.kubernetes.io/control-plane"

_HEALTHY = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}
_NOT_READY = {
    "False": ("False", "KubeletNotReady", "the machine's annotations ask for a Node that is not ready"),
    "Unknown": ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."),
}


def node(infra: Object, machine: Object, behavior: Behavior, now: datetime) -> Object:
    """The Node as a kubelet registers it, including its status."""
    name = infra["metadata"]["name"]
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    if is_control_plane(machine):
        labels[CONTROL_PLANE_ROLE] = ""
    if zone := machine["spec"].get("failureDomain"):
        labels["topology.kubernetes.io/zone"] = zone
    taint = CONTROL_PLANE_ROLE if is_control_plane(machine) else UNINITIALIZED_TAINT
    capacity = CAPACITY | ((infra.get("spec") or {}).get("capacity") or {})
    return {
        "apiVersion": NODE.api_version,
        "kind": NODE.kind,
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": infra["spec"]["providerID"], "taints": [{"key": taint, "effect": "NoSchedule"}]},
        "status": {
            "addresses": addresses(infra),
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": conditions([], behavior, now),
            "nodeInfo": _info(infra, machine),
        },
    }


def conditions(reported: list[Object], behavior: Behavior, now: datetime) -> list[Object]:
    """Conditions that the Node reports, given its previous ones."""
    wanted = dict(_HEALTHY)
    for type_, status in behavior.node_conditions.items():
        wanted[type_] = (status, "AskedFor", "the machine's annotations ask for it")
    if behavior.node_ready in _NOT_READY:
        wanted["Ready"] = _NOT_READY[behavior.node_ready]
    before = {known["type"]: known for known in reported}
    return [
        _condition(type_, *reported_condition, before.get(type_) or {}, now)
        for type_, reported_condition in wanted.items()
    ]


def unreachable(reported: list[Object], now: datetime) -> list[Object]:
    """Conditions of a Node whose machine no longer exists."""
    lost = _NOT_READY["Unknown"]
    return [_condition(known["type"], *lost, known, now) for known in reported]


def same_conditions(left: list[Object], right: list[Object]) -> bool:
    def reported_condition(conditions: list[Object]) -> set[tuple[str, ...]]:
        return {tuple(str(c.get(field, "")) for field in ("type", "status", "reason", "message")) for c in conditions}

    return reported_condition(left) == reported_condition(right)


def addresses(infra: Object) -> list[Object]:
    """A stable address for the machine, derived from its UID."""
    digest = hashlib.blake2b(infra["metadata"]["uid"].encode(), digest_size=3).digest()
    address = f"10.{digest[0]}.{digest[1]}.{digest[2]}"
    return [{"type": "Hostname", "address": infra["metadata"]["name"]}, {"type": "InternalIP", "address": address}]


def _condition(type_: str, status: str, reason: str, message: str, before: Object, now: datetime) -> Object:
    since = before["lastTransitionTime"] if before.get("status") == status else timestamp(now)
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": since,
    }


def _info(infra: Object, machine: Object) -> Object:
    version = machine["spec"].get("version") or KUBELET_VERSION
    identity = infra["metadata"]["uid"]
    return {
        "machineID": identity.replace("-", ""),
        "systemUUID": identity,
        "bootID": identity,
        "kernelVersion": "6.1.0",
        "osImage": "In-memory Linux",
        "containerRuntimeVersion": "inmemory://1.0.0",
        "kubeletVersion": version,
        "kubeProxyVersion": version,
        "operatingSystem": "linux",
        "architecture": "amd64",
    }
