"""Projection of workload cluster Nodes: a Node-shaped record with only the fields that controllers read.

Images, managed fields, resources and heartbeats make up most of a Node's size and of its updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from herder.api.capi.kinds import NODE
from herder.api.capi.typed import filled, mapping, mappings, string_map, text, texts, time
from herder.api.rke.names import KUBEADM_PROVIDER, MACHINE_UID
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Observe, Projection

_METADATA = ("name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_CONDITION = ("type", "status", "reason", "message")
_TAINT = ("key", "value", "effect", "timeAdded")
_STATUSES = ("True", "False")  # API servers do not validate this field of a kubelet; any other value is Unknown
_NAMES_SHOWN = 10
SERVER_ROLES = tuple(f"node-role.kubernetes.io/{role}" for role in ("control-plane", "etcd", "master"))
"""Labels of server Nodes; NodeRestriction keeps kubelets from setting them."""
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
    """Keep the fields that readers rely on: type, status and lastTransitionTime."""
    found = texts(_CONDITION, condition)
    status = found["status"] if found.get("status") in _STATUSES else "Unknown"
    since = time(condition.get("lastTransitionTime")) or _LONG_AGO
    return {"type": "", **found, "status": status, "lastTransitionTime": since}


def addresses_of(node: Object) -> list[Object]:
    """Return the valid addresses of a Node as the API server returned it."""
    found = mappings(mapping(node.get("status")).get("addresses"))
    return [each for each in (texts(("type", "address"), address) for address in found) if len(each) == 2]


def provider_id(node: Object) -> str:
    return str((node.get("spec") or {}).get("providerID") or "")


def _by_provider_id(node: Object) -> Iterable[str]:
    return (found,) if (found := provider_id(node)) else ()


def _by_name(node: Object) -> Iterable[str]:
    return (name,) if (name := node["metadata"].get("name")) else ()


def claimed_machines(labels: Object, provider: str) -> set[str]:
    """Return the UIDs of the Machines that a Node claims to belong to, by label and by provider ID.

    Nodes of kubeadm clusters have the provider ID from the start and the label later; in between another Node could
    claim the same Machine by label.
    """
    named = provider.removeprefix(KUBEADM_PROVIDER) if provider.startswith(KUBEADM_PROVIDER) else ""
    return {uid for uid in (labels.get(MACHINE_UID), named) if uid}


def _by_machine(node: Object) -> Iterable[str]:
    return claimed_machines(node["metadata"].get("labels") or {}, provider_id(node))


def belongs_to_other_machine(node: Object, machine: Object) -> bool:
    """Whether the Node claims to belong to another Machine.

    A join token can register Nodes with any provider ID, so a matching provider ID does not prove that a Node belongs
    to a Machine.
    """
    return any(uid != machine["metadata"]["uid"] for uid in _by_machine(node))


NODE_RECORD = Projection(
    "node-record", _record, {"providerID": _by_provider_id, "name": _by_name, "machine": _by_machine}
)


def node_by_provider_id(cluster: str, wanted: str) -> Observe:
    """Observe the Nodes with this provider ID; all Machines of a cluster share one watch."""
    return Observe(cluster, NODE, projection=NODE_RECORD, focus=("providerID", wanted))


def node_by_name(cluster: str, name: str) -> Observe:
    return Observe(cluster, NODE, projection=NODE_RECORD, focus=("name", name))


def node_by_machine(cluster: str, uid: str) -> Observe:
    """Observe the Nodes that claim to belong to this Machine, before the Machine has a nodeRef."""
    return Observe(cluster, NODE, projection=NODE_RECORD, focus=("machine", uid))


def all_nodes(cluster: str) -> Observe:
    return Observe(cluster, NODE, projection=NODE_RECORD)


def node_condition(node: Object, type_: str) -> Object | None:
    conditions: list[Object] = (node.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == type_), None)


def node_names(nodes: Sequence[Object]) -> str:
    """Names for a message, whose length the API limits: a join token can register any number of Nodes."""
    names = sorted(str(node["metadata"]["name"]) for node in nodes)
    more = [f"... ({len(names) - _NAMES_SHOWN} more)"] if len(names) > _NAMES_SHOWN else []
    return ", ".join([*names[:_NAMES_SHOWN], *more])
