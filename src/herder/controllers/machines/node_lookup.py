"""Find the Node of a provisioned Machine by the Machine UID in its label, and copy its provider ID.

Cluster API's Machine controller can then match the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from herder.api.capi.conditions import is_true
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, NODE
from herder.api.capi.names import cluster_key, is_paused, labels_of
from herder.api.capi.nodes import node_names
from herder.api.machines.kinds import MACHINE_GROUP, driver_of, kinds_of
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke.kinds import BOOTSTRAP, CUSTOM_MACHINE
from herder.api.rke.names import CONTROL_PLANE_ROLE, ETCD_ROLE, MACHINE_UID
from herder.api.writes import ref, status_patch
from herder.controllers.machines.cluster_access import BY_MACHINE, NODES, management_of, own_key, provisioned_as
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, Patch, waiting
from herder.engine.runtime.handlers import DynamicWatches, Indexed, Watches, changed, owner
from herder.engine.runtime.view import Observed, Unreachable, View

BY_CLUSTER, BY_PROVIDER_ID = "cluster-without-provider-id", "cluster-and-provider-id"
_MAX_NAMES = 3


def reconcile(view: View) -> Decision:
    machine = view.get(MACHINE, view.name)
    if machine is None or not _needs_lookup(machine):
        return DONE
    cluster = view.get(CLUSTER, machine["spec"]["clusterName"])
    if cluster is None or is_paused(cluster, machine):
        return DONE
    kind = _kind(machine["spec"]["infrastructureRef"])
    if kind is None or view.get(DEFINITION, f"{kind.plural}.{kind.group}") is None:
        return DONE
    infra = view.get(kind, machine["spec"]["infrastructureRef"]["name"])
    if infra is None or (infra.get("spec") or {}).get("providerID") or not is_true(infra, "Ready"):
        return DONE
    return _find_node(view, machine, kind, infra)


def _needs_lookup(machine: Object) -> bool:
    """Includes Machines being deleted: without a provider ID the Machine controller would not delete the Node."""
    spec = machine["spec"]
    bootstrap = spec.get("bootstrap") or {}
    ours = (bootstrap.get("configRef") or {}).get("kind") == BOOTSTRAP.kind
    return bool(ours and bootstrap.get("dataSecretName") and not spec.get("providerID"))


def _kind(reference: Object) -> Kind | None:
    if reference.get("apiGroup") == MACHINE_GROUP:
        return kinds_of(driver_of(reference["kind"])).machine
    return CUSTOM_MACHINE if (reference.get("apiGroup"), reference["kind"]) == CUSTOM_MACHINE.group_kind else None


def _find_node(view: View, machine: Object, kind: Kind, infra: Object) -> Decision:
    management = management_of(view, view.namespace, machine["spec"]["clusterName"])
    if management is None or not clusters.is_connected(management):
        return waiting("waiting for the cluster agent to connect to find the Node")
    cluster = management["metadata"]["name"]
    uid = machine["metadata"]["uid"]
    subscription = Observe(cluster, NODE, projection=NODES, focus=(BY_MACHINE, uid))
    needs = Decision(observe=(subscription,))
    match view.observed(subscription):
        case Observed(objects):
            nodes = [each for each in objects if each["server"] or not _is_server(machine)]
            others = {each["metadata"]["name"]: _others_of(view, machine, each) for each in nodes}
            return needs + (
                _conflict(others) or _found(machine, kind, infra, [each for each in nodes if not others[_name(each)]])
            )
        case Unreachable(reason, _):
            return needs + waiting(f"cannot list Nodes: {reason}", ref(MANAGEMENT_CLUSTER, management))
        case _:
            return needs + waiting(f"waiting for the list of Nodes of {cluster}")


def _others_of(view: View, machine: Object, node: Object) -> list[Object]:
    """Other Machines for which the Node's provider ID is recorded.

    A kubelet can set our labels on its own Node, and so could block new machines or impersonate them; it cannot change
    its provider ID. A worker that claims a server's provider ID does not get the server's Node.
    """
    known = f"{cluster_key(view.namespace, machine['spec']['clusterName'])} {node['providerID']}"
    others = view.select(MACHINE, index=(BY_PROVIDER_ID, known)) if node["providerID"] else []
    is_server = node["server"] and _is_server(machine)
    return [other for other in others if _is_server(other) or not is_server]


def _conflict(others: Mapping[str, Sequence[Object]]) -> Decision | None:
    """Wait if a Node has the provider ID of another Machine, but is not the Node of that Machine.

    A worker chooses its provider ID when it registers. It could choose that of a machine which joins later, whose Node
    would then not count, and register a further Node with the label of that machine.
    """
    for node, machines in sorted(others.items()):
        if machines and all(_node_of(each) != node for each in machines):
            names = ", ".join(str(each["metadata"]["name"]) for each in machines[:_MAX_NAMES])
            claims = f"Node {node} claims this machine, and has the provider ID of Machine {names}"
            return waiting(f"{claims}; delete the Node or the Machine that is not genuine")
    return None


def _node_of(machine: Object) -> str:
    return str(((machine.get("status") or {}).get("nodeRef") or {}).get("name") or "")


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _is_server(machine: Object) -> bool:
    """Whether the Machine is a server; its Node must have a server role then.

    Workers may register further Nodes with any provider ID and any of our labels, and machines join a server at its
    Node's address.
    """
    return any(labels_of(machine).get(role) == "true" for role in (ETCD_ROLE, CONTROL_PLANE_ROLE))


def _found(machine: Object, kind: Kind, infra: Object, nodes: Sequence[Object]) -> Decision:
    uid = machine["metadata"]["uid"]
    label = f"{MACHINE_UID}={uid}"
    if all(labels_of(node).get(MACHINE_UID) != uid for node in nodes):
        role = " and the role of a server" if _is_server(machine) else ""
        return waiting(f"no Node has the label {label}{role} yet")
    if len(nodes) > 1:
        claims = f"all have the label {label}, or a provider ID that names it"
        return waiting(f"Nodes {node_names(nodes)} {claims}; delete those that are not this machine")
    (node,) = nodes
    if not node["providerID"] or not node["ready"]:
        lacking = "is not Ready" if node["providerID"] else "has no spec.providerID"
        return waiting(f"Node {node['metadata']['name']} {lacking} yet")
    status = {**(infra.get("status") or {}), "addresses": list(node["addresses"])}
    named = Patch(ref(kind, infra), {"spec": {"providerID": node["providerID"]}}, "copy the provider ID of its Node")
    return Decision(writes=(*status_patch(kind, infra, status, "copy the addresses of its Node"), named))


# --- watches --------------------------------------------------------------------------------------------------------


def _key_of(machine: Object) -> Iterable[str]:
    return (cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"]),)


def _cluster_of(machine: Object) -> Iterable[str]:
    """Indexer: the cluster of a Machine whose Node is unknown."""
    return _key_of(machine) if _needs_lookup(machine) else ()


def _by_provider_id(machine: Object) -> Iterable[str]:
    """Indexer: cluster and provider ID of a Machine whose Node is known."""
    known = machine["spec"].get("providerID")
    return [f"{cluster} {known}" for cluster in _key_of(machine)] if known else ()


CONTROLLER = Controller(
    name="machine-node-lookup",
    kind=MACHINE,
    reconcile=reconcile,
    watches=(
        Watches(DEFINITION),
        Watches(MACHINE, Indexed(BY_CLUSTER, _key_of), changed("spec.providerID", "status.nodeRef")),
        Watches(CLUSTER, Indexed(BY_CLUSTER, own_key), changed("spec.paused")),
        Watches(PROVISIONING_CLUSTER, Indexed(BY_CLUSTER, own_key), changed("status.clusterName")),
        Watches(
            MANAGEMENT_CLUSTER,
            Indexed(BY_CLUSTER, provisioned_as),
            changed("metadata.annotations", "status.apiEndpoint"),
        ),
    ),
    predicate=changed("spec", "metadata.deletionTimestamp", "metadata.annotations"),
    dynamic_watches=DynamicWatches(owner(MACHINE, controller=False), changed("status.conditions", "spec.providerID")),
    indexes={MACHINE: {BY_CLUSTER: _cluster_of, BY_PROVIDER_ID: _by_provider_id}},
    cluster_of=lambda machine: cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"]),
)
