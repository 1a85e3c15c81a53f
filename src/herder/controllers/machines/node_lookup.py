"""A machine of ours is told apart at its provider by what its Node says: looked for by the Machine's UID, which the
Node carries as a label, in the cluster itself. Then Cluster API's core can match the two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from herder.api.capi.conditions import is_true
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, NODE
from herder.api.capi.names import cluster_key, is_paused, labels_of
from herder.api.machines.kinds import MACHINE_GROUP, driver_of, kinds_of
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke.kinds import BOOTSTRAP, CUSTOM_MACHINE
from herder.api.rke.names import CONTROL_PLANE_ROLE, ETCD_ROLE, MACHINE_UID
from herder.api.writing import ref, status_patch
from herder.controllers.machines.managed import BY_MACHINE, NODES, management_of, own_key, provisioned_as
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, Patch, waiting
from herder.engine.runtime.handlers import Follows, Indexed, Watches, changed, owner
from herder.engine.runtime.view import Observed, Unreachable, View

BY_CLUSTER, BY_PROVIDER_ID = "cluster-without-provider-id", "cluster-and-provider-id"


def reconcile(view: View) -> Decision:
    machine = view.get(MACHINE, view.name)
    if machine is None or not _is_looked_for(machine):
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
    return _look(view, machine, kind, infra)


def _is_looked_for(machine: Object) -> bool:
    """Also one that goes: without its Node's name at the provider, the core would leave the Node behind."""
    spec = machine["spec"]
    bootstrap = spec.get("bootstrap") or {}
    ours = (bootstrap.get("configRef") or {}).get("kind") == BOOTSTRAP.kind
    return bool(ours and bootstrap.get("dataSecretName") and not spec.get("providerID"))


def _kind(reference: Object) -> Kind | None:
    if reference.get("apiGroup") == MACHINE_GROUP:
        return kinds_of(driver_of(reference["kind"])).machine
    return CUSTOM_MACHINE if (reference.get("apiGroup"), reference["kind"]) == CUSTOM_MACHINE.group_kind else None


def _look(view: View, machine: Object, kind: Kind, infra: Object) -> Decision:
    management = management_of(view, view.namespace, machine["spec"]["clusterName"])
    if management is None or not clusters.is_connected(management):
        return waiting("its Node can be looked for when the cluster's agent is connected")
    cluster = management["metadata"]["name"]
    uid = machine["metadata"]["uid"]
    wish = Observe(cluster, NODE, projection=NODES, focus=(BY_MACHINE, uid))
    needs = Decision(observe=(wish,))
    match view.observed(wish):
        case Observed(objects):
            own = [each for each in objects if not _is_anothers(view, machine, each)]
            return needs + _found(
                machine, kind, infra, [each for each in own if each["server"] or not _serves(machine)]
            )
        case Unreachable(reason, _):
            return needs + waiting(f"its Node cannot be looked for: {reason}", ref(MANAGEMENT_CLUSTER, management))
        case _:
            return needs + waiting(f"its Node is looked for in {cluster}")


def _is_anothers(view: View, machine: Object, node: Object) -> bool:
    """Whether another Machine is known by the Node's provider ID. A kubelet sets any label of ours on its own Node, and
    so could keep new machines waiting, or have others join it in their place; its provider ID stays as it is. A worker
    that claims the provider ID of a server does not get the server's Node by that."""
    known = f"{cluster_key(view.namespace, machine['spec']['clusterName'])} {node['providerID']}"
    others = view.select(MACHINE, index=(BY_PROVIDER_ID, known)) if node["providerID"] else []
    return any(_serves(other) or not (node["server"] and _serves(machine)) for other in others)


def _serves(machine: Object) -> bool:
    """Whether it is a server, whose Node says so too. Workers may register further Nodes with any provider ID and label
    of ours, and other machines join a server at the address of its Node."""
    return any(labels_of(machine).get(role) == "true" for role in (ETCD_ROLE, CONTROL_PLANE_ROLE))


def _found(machine: Object, kind: Kind, infra: Object, nodes: Sequence[Object]) -> Decision:
    uid = machine["metadata"]["uid"]
    label = f"{MACHINE_UID}={uid}"
    if all(labels_of(node).get(MACHINE_UID) != uid for node in nodes):
        role = " and the role of a server" if _serves(machine) else ""
        return waiting(f"no Node has the label {label}{role} yet")
    if len(nodes) > 1:
        names = ", ".join(sorted(node["metadata"]["name"] for node in nodes))
        claims = f"all have the label {label}, or a provider ID that names it"
        return waiting(f"Nodes {names} {claims}: delete those that are not this machine")
    (node,) = nodes
    if not node["providerID"] or not node["ready"]:
        lacking = "is not Ready" if node["providerID"] else "has no spec.providerID"
        return waiting(f"Node {node['metadata']['name']} {lacking} yet")
    status = {**(infra.get("status") or {}), "addresses": list(node["addresses"])}
    named = Patch(ref(kind, infra), {"spec": {"providerID": node["providerID"]}}, "its Node tells what it is called")
    return Decision(writes=(*status_patch(kind, infra, status, "where its Node is reached"), named))


# --- what sets it off -----------------------------------------------------------------------------------------------


def _key_of(machine: Object) -> Iterable[str]:
    return (cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"]),)


def _cluster_of(machine: Object) -> Iterable[str]:
    """Indexer: the cluster of a Machine that is looked for."""
    return _key_of(machine) if _is_looked_for(machine) else ()


def _by_provider_id(machine: Object) -> Iterable[str]:
    """Indexer: the cluster and the provider ID of a Machine whose Node was found."""
    known = machine["spec"].get("providerID")
    return [f"{cluster} {known}" for cluster in _key_of(machine)] if known else ()


CONTROLLER = Controller(
    name="machine-node-lookup",
    kind=MACHINE,
    reconcile=reconcile,
    watches=(
        Watches(DEFINITION),
        Watches(MACHINE, Indexed(BY_CLUSTER, _key_of), changed("spec.providerID")),
        Watches(CLUSTER, Indexed(BY_CLUSTER, own_key), changed("spec.paused")),
        Watches(PROVISIONING_CLUSTER, Indexed(BY_CLUSTER, own_key), changed("status.clusterName")),
        Watches(
            MANAGEMENT_CLUSTER,
            Indexed(BY_CLUSTER, provisioned_as),
            changed("metadata.annotations", "status.apiEndpoint"),
        ),
    ),
    predicate=changed("spec", "metadata.deletionTimestamp", "metadata.annotations"),
    follows=Follows(owner(MACHINE, controller=False), changed("status.conditions", "spec.providerID")),
    indexes={MACHINE: {BY_CLUSTER: _cluster_of, BY_PROVIDER_ID: _by_provider_id}},
    cluster_of=lambda machine: cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"]),
)
