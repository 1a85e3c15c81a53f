"""The Node that a simulated machine registers in its workload cluster, and the state that it reports."""

from __future__ import annotations

import hashlib
from datetime import datetime

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import NODE
from herder.api.capi.names import UNINITIALIZED_TAINT
from herder.api.inmemory.behaviour import Behaviour
from herder.controllers.inmemory.surroundings import is_control_plane
from herder.engine.meta.kinds import Object

KUBELET_VERSION = "v1.36.3"
"""What runs where a Machine asks for no version."""
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


def node(infra: Object, machine: Object, asked: Behaviour, now: datetime) -> Object:
    """As a kubelet registers itself, with its status in one go."""
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
            "conditions": conditions([], asked, now),
            "nodeInfo": _info(infra, machine),
        },
    }


def conditions(reported: list[Object], asked: Behaviour, now: datetime) -> list[Object]:
    """What the Node reports, given what it reported before."""
    wanted = dict(_HEALTHY)
    for type_, status in asked.node_conditions.items():
        wanted[type_] = (status, "AskedFor", "the machine's annotations ask for it")
    if asked.node_ready in _NOT_READY:
        wanted["Ready"] = _NOT_READY[asked.node_ready]
    before = {known["type"]: known for known in reported}
    return [_condition(type_, *said, before.get(type_) or {}, now) for type_, said in wanted.items()]


def unreachable(reported: list[Object], now: datetime) -> list[Object]:
    """What a cluster says of a Node whose machine is gone."""
    lost = _NOT_READY["Unknown"]
    return [_condition(known["type"], *lost, known, now) for known in reported]


def same_conditions(left: list[Object], right: list[Object]) -> bool:
    def said(conditions: list[Object]) -> set[tuple[str, ...]]:
        return {tuple(str(c.get(field, "")) for field in ("type", "status", "reason", "message")) for c in conditions}

    return said(left) == said(right)


def addresses(infra: Object) -> list[Object]:
    """An address that stays the machine's own, as far as a private network has room."""
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
