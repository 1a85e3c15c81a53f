"""Node objects, as kubelets and the servers of K3s and RKE2 report them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import NODE
from herder.engine.meta.kinds import Object

if TYPE_CHECKING:
    from herder.sim.nodes import SimulatedNode

MEMBER_NAME, MEMBER_ADDRESS = "/node-name", "/node-address"
_HEALTHY = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
_IS_VOTER = ("EtcdIsVoter", "True", "MemberNotLearner", "Node is a voting member of the etcd cluster")
_IS_NO_MEMBER = ("EtcdIsVoter", "False", "NotAMember", "Node is not a member of the etcd cluster")
_NODE_INFO = (
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"),
    *("machineID", "operatingSystem", "osImage", "systemUUID"),
)


def node_object(node: SimulatedNode) -> Object:
    labels = dict(each.partition("=")[::2] for each in node.config.get("node-label") or ())
    roles = [role for role, has in (("control-plane", node.has_api), ("etcd", node.has_etcd)) if has]
    labels |= {f"node-role.kubernetes.io/{role}": "true" for role in roles}
    labels |= {"kubernetes.io/hostname": node.name}
    meta = {"name": node.name, "labels": labels, "annotations": node_annotations(node)}
    provider = node.config.get("provider-id") or f"{node.runtime}://{node.name}"
    return {"apiVersion": NODE.api_version, "kind": NODE.kind, "metadata": meta, "spec": {"providerID": provider}}


def node_annotations(node: SimulatedNode) -> dict[str, str]:
    """What servers of K3s and RKE2 report about themselves."""
    found = {}
    data, prefix = node.disk.etcd, f"etcd.{node.runtime}.cattle.io"
    if data is not None and node.runtime in ("k3s", "rke2"):
        found = {f"{prefix}{MEMBER_NAME}": data.member, f"{prefix}{MEMBER_ADDRESS}": node.address}
    if node.disk.encryption is not None and not node.is_worker:
        found[f"{node.runtime}.io/encryption-config-hash"] = node.disk.encryption.hash
    return found


def node_status(node: SimulatedNode, ready: str, now: datetime, *, voter: bool = True) -> dict[str, Any]:
    version = node.service.serving.version if node.service.serving else ""
    fields = {**_HEALTHY, "Ready": ready} if ready == "True" else dict.fromkeys(_HEALTHY, ready)
    moment = timestamp(now)
    reported = [(type_, status, "Simulated", "") for type_, status in fields.items()]
    if node.has_etcd and node.runtime in ("k3s", "rke2"):
        reported.append(_IS_VOTER if voter else _IS_NO_MEMBER)
    return {
        "addresses": [{"type": "InternalIP", "address": node.address}, {"type": "Hostname", "address": node.name}],
        "nodeInfo": {**dict.fromkeys(_NODE_INFO, "sim"), "operatingSystem": "linux", "kubeletVersion": version},
        "conditions": [
            {
                "type": type_,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": moment,
                "lastTransitionTime": moment,
            }
            for type_, status, reason, message in reported
        ],
    }
