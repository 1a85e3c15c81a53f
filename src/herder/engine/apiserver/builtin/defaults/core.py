"""Defaults of the core group, except pods."""

from __future__ import annotations

import base64

from herder.engine.apiserver.builtin.defaults.fill import Fill, fill_absent, fill_empty, filling
from herder.engine.meta.kinds import Object

_CLIENT_IP_SECONDS = 10800


def service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _session_affinity(spec)
    fill_empty(spec, type="ClusterIP")
    for port in spec.get("ports") or ():
        fill_empty(port, protocol="TCP")
        fill_empty(port, targetPort=port.get("port", 0))
    cluster_ip_kind = spec["type"] in {"ClusterIP", "NodePort", "LoadBalancer"}
    if spec["type"] in {"NodePort", "LoadBalancer"} or (spec["type"] == "ClusterIP" and spec.get("externalIPs")):
        fill_empty(spec, externalTrafficPolicy="Cluster")
    if cluster_ip_kind:
        fill_absent(spec, internalTrafficPolicy="Cluster")
    if spec["type"] == "LoadBalancer":
        fill_absent(spec, allocateLoadBalancerNodePorts=True)
        for ingress in (obj.get("status", {}).get("loadBalancer") or {}).get("ingress") or ():
            if ingress.get("ip"):
                fill_absent(ingress, ipMode="VIP")


def _session_affinity(spec: Object) -> None:
    fill_empty(spec, sessionAffinity="None")
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        config = spec.get("sessionAffinityConfig") or {}
        if (config.get("clientIP") or {}).get("timeoutSeconds") is None:
            spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": _CLIENT_IP_SECONDS}}


def secret(obj: Object) -> None:
    """`stringData` is write-only: it is merged into `data`."""
    fill_empty(obj, type="Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def namespace(obj: Object) -> None:
    metadata = obj.setdefault("metadata", {})
    if metadata.get("name"):
        metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]


def node_status(status: Object) -> None:
    if status.get("allocatable") is None and status.get("capacity") is not None:
        status["allocatable"] = dict(status["capacity"])


def replication_controller(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, replicas=1)
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        fill_empty(spec, selector=dict(labels))
        fill_empty(obj.setdefault("metadata", {}), labels=dict(labels))


def limit_range_item(item: Object) -> None:
    """Default a container's requests to its limits, and its default limit to the maximum."""
    if item.get("type") != "Container":
        return
    limits = {**(item.get("max") or {}), **(item.get("default") or {})}
    requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
    for key, value in (("default", limits), ("defaultRequest", requests)):
        if value:
            item[key] = value


def persistent_volume(obj: Object) -> None:
    fill_empty(obj.setdefault("status", {}), phase="Pending")
    spec = obj.setdefault("spec", {})
    fill_empty(spec, persistentVolumeReclaimPolicy="Retain")
    fill_absent(spec, volumeMode="Filesystem")


def persistent_volume_claim(obj: Object) -> None:
    fill_empty(obj.setdefault("status", {}), phase="Pending")


BY_STRUCT: dict[str, Fill] = {
    "core.v1.Service": service,
    "core.v1.Namespace": namespace,
    "core.v1.NamespaceStatus": filling(fill_empty, phase="Active"),
    "core.v1.NodeStatus": node_status,
    "core.v1.Secret": secret,
    "core.v1.ReplicationController": replication_controller,
    "core.v1.LimitRangeItem": limit_range_item,
    "core.v1.PersistentVolume": persistent_volume,
    "core.v1.PersistentVolumeClaim": persistent_volume_claim,
    "core.v1.PersistentVolumeClaimSpec": filling(fill_absent, volumeMode="Filesystem"),
    "core.v1.EndpointPort": filling(fill_empty, protocol="TCP"),
}
