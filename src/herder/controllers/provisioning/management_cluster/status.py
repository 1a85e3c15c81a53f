"""The status of a management Cluster: connection, readiness and facts about its nodes.

While a cluster is provisioned, upgraded or repaired, Ready follows the RKEControlPlane
(`status.readyReconciling` is true); afterwards, the connection of the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from herder.api.capi.conditions import Condition, condition, find, is_true
from herder.api.capi.kinds import MACHINE, NAMESPACE, NODE
from herder.api.capi.names import cluster_key, is_deleting, labels_of
from herder.api.capi.nodes import NODE_RECORD, SERVER_ROLES, node_condition
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import clusters, display
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.rke import cluster_spec
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.machines.removal import BY_CLUSTER, REMOVED
from herder.api.writes import PROGRESS_DEBOUNCE, ref, status_patch
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Decision, Observe, Patch, Projection, waiting
from herder.engine.runtime.view import Observed, View

UPDATED, STABLE = "Updated", "Stable"
WHY = "state of the cluster"


def is_cluster_namespace(namespace: Object | None, management: Object) -> bool:
    """Whether the namespace was created for this cluster. Any other is left alone: it would be deleted with the
    cluster."""
    owners = (namespace["metadata"].get("ownerReferences") or ()) if namespace else ()
    return any(reference.get("uid") == management["metadata"]["uid"] for reference in owners)


# --- status.info ------------------------------------------------------------------------------------------------------


def _node_facts(node: Object) -> Object:
    found = NODE_RECORD.project(node)
    seen = found["status"].get("nodeInfo") or {}
    return {
        "metadata": {"name": found["metadata"].get("name", "")},
        "version": seen.get("kubeletVersion", ""),
        "arch": seen.get("architecture", ""),
        "server": any(role in labels_of(found) for role in SERVER_ROLES),
        "lost": _lost(found),
    }


def _lost(node: Object) -> list[str]:
    """Name, time and cause if the Node is not ready."""
    ready = node_condition(node, "Ready") or {}
    if ready.get("status") == "True":
        return []
    cause = str(ready.get("message") or ready.get("reason") or "Condition not yet reported")
    return [f"Node {node['metadata'].get('name', '')}", str(ready.get("lastTransitionTime") or ""), cause]


NODES = Projection("managed-node", project=_node_facts)


class Nodes(NamedTuple):
    """Facts about the Nodes of a cluster; `lost` is None while it cannot be observed."""

    info: Object  # for status.info
    total: int = 0
    lost: Sequence[display.LostNode] | None = None


def observe_nodes(view: View, management: Object, provisioning: Object | None) -> tuple[Nodes, Decision]:
    """Read the Nodes; the last known `status.info` while the cluster is unreachable.

    A managed cluster is reached through its agent's tunnel, the manager's own cluster by its kubeconfig.
    """
    known = (management.get("status") or {}).get("info") or {}
    if provisioning is None:
        return Nodes(known), DONE
    namespace, name = provisioning["metadata"]["namespace"], provisioning["metadata"]["name"]
    known = {
        **known,
        "provisioningClusterRef": {"name": name, "namespace": namespace},
        **_of_machines(view, provisioning),
    }
    if not (provisioning.get("status") or {}).get("clientSecretName") or not clusters.is_connected(management):
        return Nodes(known), DONE
    cluster = cluster_key(namespace, name) if clusters.is_internal(management) else view.name
    observe = Observe(cluster, NODE, projection=NODES)
    seen = view.observed(observe)
    if not isinstance(seen, Observed):
        return Nodes(known), Decision(observe=(observe,))
    known |= _of_nodes(seen.objects)
    if not clusters.is_provisioned_here(provisioning):
        known |= {"nodeCount": len(seen.objects)}
        known |= {"machineProvider": "local" if clusters.is_internal(management) else "imported"}
    lost = [display.LostNode(*each["lost"]) for each in seen.objects if each["lost"]]
    return Nodes(known, len(seen.objects), lost), Decision(observe=(observe,))


def _of_machines(view: View, provisioning: Object) -> Object:
    """Provider and count of a provisioned cluster's machines, including those without a Node."""
    if not clusters.is_provisioned_here(provisioning):
        return {}
    pools = provisioning["spec"]["rkeConfig"].get("machinePools") or [{}]
    kind = (pools[0].get("machineConfigRef") or {}).get("kind") or "custom"
    count = view.count(
        MACHINE, (BY_CLUSTER, f"{provisioning['metadata']['namespace']}/{provisioning['metadata']['name']}")
    )
    return {"machineProvider": kind.removesuffix("Config"), "nodeCount": count}


def _of_nodes(nodes: Iterable[Object]) -> Object:
    facts = list(nodes)
    versions = sorted({each["version"] for each in facts if each["version"]}, key=lambda text: (len(text), text))
    architectures = {each["arch"] for each in facts if each["arch"]}
    found: Object = {}
    if versions:
        found["kubernetesVersion"] = versions[0]
    if architectures:
        found["arch"] = architectures.pop() if len(architectures) == 1 else "mixed"
    return found


# --- conditions -------------------------------------------------------------------------------------------------------


def report_status(
    view: View, management: Object, provisioning: Object | None, nodes: Nodes, fields: Object
) -> Decision:
    before = management.get("status") or {}
    plane = _control_plane(view, provisioning)
    reconciling = bool(before.get("readyReconciling")) if plane is None else not is_true(plane, STABLE)
    conditions = clusters.management_conditions(management, view.now, reconciling=reconciling)
    reported = [
        _namespace_created(view, management),
        *_nodes_healthy(conditions, nodes),
        *(_of_control_plane(plane) if plane is not None else ()),
    ]
    status = {
        **before,
        **fields,
        **({"info": nodes.info} if nodes.info else {}),
        **({"driver": "imported"} if clusters.is_internal(management) and not before.get("driver") else {}),
        **({"readyReconciling": reconciling} if plane is not None else {}),
        "conditions": merged_with_updates(conditions, reported, view.now),
    }
    status["display"] = _display({**management, "status": status}, plane, nodes)
    conflict_end = clusters.conflict_ends(management)
    retry = Decision(wake_at=conflict_end) if conflict_end is not None and view.now < conflict_end else DONE
    return Decision(writes=_patch(management, status)) + retry + _namespace_problem(management, reported[0])


def _nodes_healthy(conditions: list[Condition], nodes: Nodes) -> Iterator[Condition]:
    agent = {"status": {"conditions": conditions}}
    if display.is_disconnected(agent):
        yield display.unknown_nodes_condition(find(agent, clusters.CONNECTED) or {})
    elif nodes.lost is not None:
        yield display.nodes_condition(nodes.lost)


def _display(management: Object, plane: Object | None, nodes: Nodes) -> Object:
    known = (management["status"].get("display") or {}).get("readyNodes")
    ready = known if nodes.lost is None else f"{nodes.total - len(nodes.lost)}/{nodes.total}"
    provisioned = clusters.is_administrated(management)
    return {
        **display.summarize(
            management,
            was_ready=cluster_spec.was_applied(plane) if provisioned else clusters.has_connected(management),
            is_applied=plane is not None and bool(nodes.lost) and cluster_spec.is_applied(plane),
            initial=display.PROVISIONING if provisioned else display.PENDING,
        ),
        **({"readyNodes": ready} if ready else {}),
    }


def report_removal(view: View, management: Object, provisioning: Object) -> tuple[Patch, ...]:
    """Report what the deletion of the provisioning Cluster waits for; this Cluster is deleted after it."""
    removed = copied(provisioning, REMOVED, REMOVED)
    if removed is None or clusters.is_internal(management):
        return ()
    before = management.get("status") or {}
    conditions = merged_with_updates(before.get("conditions"), [removed], view.now)
    return status_patch(MANAGEMENT_CLUSTER, management, {**before, "conditions": conditions}, WHY)


def copied(source: Object | None, type_: str, to: str) -> Condition | None:
    known = find(source, type_)
    return condition(to, known["status"], known.get("reason", ""), known.get("message", "")) if known else None


def _control_plane(view: View, provisioning: Object | None) -> Object | None:
    if provisioning is None or is_deleting(provisioning) or not clusters.is_provisioned_here(provisioning):
        return None
    return view.get(CONTROL_PLANE, provisioning["metadata"]["name"], provisioning["metadata"]["namespace"])


def _of_control_plane(plane: Object) -> Iterator[Condition]:
    copies = [(clusters.READY, UPDATED), (clusters.PROVISIONED, clusters.PROVISIONED)]
    if not is_true(plane, STABLE):
        copies.append((clusters.READY, clusters.READY))
    for type_, to in copies:
        if (each := copied(plane, type_, to)) is not None:
            yield each


def _namespace_created(view: View, management: Object) -> Condition:
    namespace = view.get(NAMESPACE, view.name)
    if namespace is None or is_deleting(namespace):
        return condition(clusters.NAMESPACE_CREATED, "Unknown", "Creating")
    if not is_cluster_namespace(namespace, management):
        problem = f"namespace {view.name} exists and was not created for this cluster; choose another name"
        return condition(clusters.NAMESPACE_CREATED, "False", "Taken", problem)
    return condition(clusters.NAMESPACE_CREATED, "True", "Created")


def _namespace_problem(management: Object, created: Condition) -> Decision:
    return waiting(created["message"], ref(MANAGEMENT_CLUSTER, management)) if created["status"] == "False" else DONE


def _patch(management: Object, status: Object) -> tuple[Patch, ...]:
    """Debounce changes of node counts alone: machines are created and deleted in bursts."""
    before = management.get("status") or {}
    only_count = _without_counts(status) == _without_counts(before)
    return status_patch(MANAGEMENT_CLUSTER, management, status, WHY, debounce=PROGRESS_DEBOUNCE if only_count else 0.0)


def _without_counts(status: Object) -> Object:
    return {**status, "info": {**(status.get("info") or {}), "nodeCount": 0}, "display": None}
