"""What is kept of the Nodes of workload clusters: a record in a Node's own shape, but only with what somebody reads.

Images, managed fields, resource amounts and heartbeats are most of a Node's bytes and of its changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import NODE
from herder.api.rke.names import MACHINE_UID
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Observe, Projection

_METADATA = ("name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels", "annotations")
_SPEC = ("providerID", "taints", "unschedulable")
_STATUS = ("nodeInfo", "volumesAttached")
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")


def _record(node: Object) -> Object:
    status = node.get("status") or {}
    conditions = [_only(_CONDITION, condition) for condition in status.get("conditions") or []]
    return {
        "apiVersion": NODE.api_version,
        "kind": NODE.kind,
        "metadata": _only(_METADATA, node["metadata"]),
        "spec": _only(_SPEC, node.get("spec") or {}),
        "status": {**_only(_STATUS, status), "conditions": conditions},
    }


def _only(names: Iterable[str], part: Object) -> Object:
    return {name: part[name] for name in names if part.get(name)}


def provider_id(node: Object) -> str:
    return str((node.get("spec") or {}).get("providerID") or "")


def _by_provider_id(node: Object) -> Iterable[str]:
    return (found,) if (found := provider_id(node)) else ()


def _by_name(node: Object) -> Iterable[str]:
    return (node["metadata"]["name"],)


def _by_machine(node: Object) -> Iterable[str]:
    uid = (node["metadata"].get("labels") or {}).get(MACHINE_UID)
    return (uid,) if uid else ()


NODE_RECORD = Projection(
    "node-record", _record, {"providerID": _by_provider_id, "name": _by_name, "machine": _by_machine}
)


def node_by_provider_id(cluster: str, wanted: str) -> Observe:
    """The Nodes with this provider ID; one watch for all Machines of a cluster."""
    return Observe(cluster, NODE, projection=NODE_RECORD, focus=("providerID", wanted))


def node_by_name(cluster: str, name: str) -> Observe:
    return Observe(cluster, NODE, projection=NODE_RECORD, focus=("name", name))


def node_by_machine(cluster: str, uid: str) -> Observe:
    """The Nodes that say that they are this Machine's: before it knows them itself."""
    return Observe(cluster, NODE, projection=NODE_RECORD, focus=("machine", uid))


def all_nodes(cluster: str) -> Observe:
    return Observe(cluster, NODE, projection=NODE_RECORD)


def node_condition(node: Object, type_: str) -> Object | None:
    conditions: list[Object] = (node.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == type_), None)
