"""What is kept of the Nodes of workload clusters: a record in a Node's own shape, but only with what somebody reads.

Images, managed fields, resource amounts and heartbeats are most of a Node's bytes and of its changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from herder.api.capi.kinds import NODE
from herder.api.moments import moment
from herder.api.rke.names import MACHINE_UID
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Observe, Projection

_METADATA = ("name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_CONDITION = ("type", "status", "reason", "message")
_TAINT = ("key", "value", "effect", "timeAdded")
_LONGEST = 1024  # characters of any text but a label's or an annotation's
_MOST = 1000  # entries of a list
_LONG_AGO = "1970-01-01T00:00:00Z"


def _record(node: Object) -> Object:
    """The workload cluster's API server may be compromised: whatever it answers, a record has a Node's own types."""
    meta, spec, status = (_mapping(node.get(part)) for part in ("metadata", "spec", "status"))
    volumes = [{"name": _text(volume.get("name"))} for volume in _mappings(status.get("volumesAttached"))]
    info = {str(name): _text(value) for name, value in _mapping(status.get("nodeInfo")).items()}
    return {
        "apiVersion": NODE.api_version,
        "kind": NODE.kind,
        "metadata": {
            **_texts(_METADATA, meta),
            **{part: found for part in ("labels", "annotations") if (found := _string_map(meta.get(part)))},
        },
        "spec": _filled(
            providerID=_text(spec.get("providerID")),
            taints=[_texts(_TAINT, taint) for taint in _mappings(spec.get("taints"))],
            unschedulable=spec.get("unschedulable") is True,
        ),
        "status": {
            **_filled(nodeInfo=info, volumesAttached=volumes),
            "conditions": [_condition(condition) for condition in _mappings(status.get("conditions"))],
        },
    }


def _condition(condition: Object) -> Object:
    """With the three fields that readers rely on."""
    since = condition.get("lastTransitionTime")
    return {
        "type": "",
        "status": "Unknown",
        **_texts(_CONDITION, condition),
        "lastTransitionTime": since if isinstance(since, str) and moment(since) is not None else _LONG_AGO,
    }


def _filled(**parts: Any) -> Object:
    return {name: part for name, part in parts.items() if part}


def _texts(names: Iterable[str], part: Object) -> Object:
    return {name: found for name in names if (found := _text(part.get(name)))}


def _text(value: object) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _mapping(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> list[Object]:
    return [each for each in value[:_MOST] if isinstance(each, dict)] if isinstance(value, list) else []


def _string_map(value: object) -> Object:
    return {key: text for key, text in _mapping(value).items() if isinstance(text, str)}


def provider_id(node: Object) -> str:
    return str((node.get("spec") or {}).get("providerID") or "")


def _by_provider_id(node: Object) -> Iterable[str]:
    return (found,) if (found := provider_id(node)) else ()


def _by_name(node: Object) -> Iterable[str]:
    return (name,) if (name := node["metadata"].get("name")) else ()


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
