"""A machine of ours is told apart at its provider by what its Node says: looked for by the Machine's UID, which the
Node carries as a label, in the cluster itself. Then Cluster API's core can match the two."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.conditions import is_true
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, NODE
from herder.api.capi.names import cluster_key, is_paused
from herder.api.machines.kinds import MACHINE_GROUP, driver_of, kinds_of
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke.kinds import BOOTSTRAP, CUSTOM_MACHINE
from herder.api.rke.names import MACHINE_UID
from herder.api.writing import ref, status_patch
from herder.controllers.machines.managed import BY_MACHINE, NODES, management_of, own_key, provisioned_as
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, Patch, waiting
from herder.engine.runtime.triggers import Follows, Indexed, Watches, changed, owner
from herder.engine.runtime.view import Observed, Unreachable, View

BY_CLUSTER = "cluster-without-provider-id"


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
            return needs + _found(machine, kind, infra, objects)
        case Unreachable(reason, _):
            return needs + waiting(f"its Node cannot be looked for: {reason}", ref(MANAGEMENT_CLUSTER, management))
        case _:
            return needs + waiting(f"its Node is looked for in {cluster}")


def _found(machine: Object, kind: Kind, infra: Object, nodes: tuple[Object, ...]) -> Decision:
    label = f"{MACHINE_UID}={machine['metadata']['uid']}"
    if not nodes:
        return waiting(f"no Node has the label {label} yet")
    if len(nodes) > 1:
        names = ", ".join(sorted(node["metadata"]["name"] for node in nodes))
        return waiting(f"Nodes {names} all have the label {label}: delete those that are not this machine")
    (node,) = nodes
    if not node["providerID"] or not node["ready"]:
        lacking = "is not Ready" if node["providerID"] else "has no spec.providerID"
        return waiting(f"Node {node['metadata']['name']} {lacking} yet")
    status = {**(infra.get("status") or {}), "addresses": list(node["addresses"])}
    named = Patch(ref(kind, infra), {"spec": {"providerID": node["providerID"]}}, "its Node tells what it is called")
    return Decision(writes=(*status_patch(kind, infra, status, "where its Node is reached"), named))


# --- what sets it off -----------------------------------------------------------------------------------------------


def _cluster_of(machine: Object) -> Iterable[str]:
    """Indexer: the cluster of a Machine that is looked for."""
    if _is_looked_for(machine):
        yield cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"])


CONTROLLER = Controller(
    name="machine-node-lookup",
    kind=MACHINE,
    reconcile=reconcile,
    watches=(
        Watches(DEFINITION),
        Watches(CLUSTER, Indexed(BY_CLUSTER, own_key), changed("spec.paused")),
        Watches(PROVISIONING_CLUSTER, Indexed(BY_CLUSTER, own_key), changed("status.clusterName")),
        Watches(
            MANAGEMENT_CLUSTER,
            Indexed(BY_CLUSTER, provisioned_as),
            changed("metadata.annotations", "status.apiEndpoint"),
        ),
    ),
    when=changed("spec", "metadata.deletionTimestamp", "metadata.annotations"),
    follows=Follows(owner(MACHINE, controller=False), changed("status.conditions", "spec.providerID")),
    indexes={MACHINE: {BY_CLUSTER: _cluster_of}},
    cluster_of=lambda machine: cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"]),
)
