"""What is kept of the Nodes of workload clusters: a record in a Node's own shape, but only with what somebody reads.

Images, managed fields, resource amounts and heartbeats are most of a Node's bytes and of its changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import NODE
from herder.api.capi.typed import filled, mapping, mappings, string_map, text, texts, time
from herder.api.rke.names import KUBEADM_PROVIDER, MACHINE_UID
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Observe, Projection

_METADATA = ("name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_CONDITION = ("type", "status", "reason", "message")
_TAINT = ("key", "value", "effect", "timeAdded")
_STATUSES = ("True", "False")  # anything else a kubelet writes, which no API server checks, is unknown
_LONG_AGO = "1970-01-01T00:00:00Z"


def _record(node: Object) -> Object:
    meta, spec, status = (mapping(node.get(part)) for part in ("metadata", "spec", "status"))
    return {
        "apiVersion": NODE.api_version,
        "kind": NODE.kind,
        "metadata": {
            **texts(_METADATA, meta),
            **{part: found for part in ("labels", "annotations") if (found := string_map(meta.get(part)))},
        },
        "spec": filled(
            providerID=text(spec.get("providerID")),
            taints=[texts(_TAINT, taint) for taint in mappings(spec.get("taints"))],
            unschedulable=spec.get("unschedulable") is True,
        ),
        "status": {
            **filled(
                nodeInfo={str(name): text(value) for name, value in mapping(status.get("nodeInfo")).items()},
                volumesAttached=[
                    {"name": text(volume.get("name"))} for volume in mappings(status.get("volumesAttached"))
                ],
            ),
            "conditions": [_condition(condition) for condition in mappings(status.get("conditions"))],
        },
    }


def _condition(condition: Object) -> Object:
    """With the three fields that readers rely on."""
    found = texts(_CONDITION, condition)
    status = found["status"] if found.get("status") in _STATUSES else "Unknown"
    since = time(condition.get("lastTransitionTime")) or _LONG_AGO
    return {"type": "", **found, "status": status, "lastTransitionTime": since}


def addresses_of(node: Object) -> list[Object]:
    """Of a Node as its API server answers it."""
    found = mappings(mapping(node.get("status")).get("addresses"))
    return [each for each in (texts(("type", "address"), address) for address in found) if len(each) == 2]


def provider_id(node: Object) -> str:
    return str((node.get("spec") or {}).get("providerID") or "")


def _by_provider_id(node: Object) -> Iterable[str]:
    return (found,) if (found := provider_id(node)) else ()


def _by_name(node: Object) -> Iterable[str]:
    return (name,) if (name := node["metadata"].get("name")) else ()


def claimed_machines(labels: Object, provider: str) -> set[str]:
    """UIDs of the Machines that a Node claims to be, by its label and by a provider ID that names one. Nodes of kubeadm
    clusters have that from the start, and the label later; meanwhile others could claim the same Machine by the label.
    """
    named = provider.removeprefix(KUBEADM_PROVIDER) if provider.startswith(KUBEADM_PROVIDER) else ""
    return {uid for uid in (labels.get(MACHINE_UID), named) if uid}


def _by_machine(node: Object) -> Iterable[str]:
    return claimed_machines(node["metadata"].get("labels") or {}, provider_id(node))


def is_anothers(node: Object, machine: Object) -> bool:
    """Whether the Node says that it is another Machine's. A join token registers Nodes with any provider ID, so that of
    a Machine may be that of a Node which is not its own."""
    return any(uid != machine["metadata"]["uid"] for uid in _by_machine(node))


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
