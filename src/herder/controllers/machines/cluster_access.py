"""Map a CAPI Cluster to its management Cluster (and agent tunnel), and project its Nodes."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.names import annotations_of, cluster_key, labels_of
from herder.api.capi.nodes import NODE_RECORD, SERVER_ROLES, addresses_of, claimed_machines, node_condition, provider_id
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import PROVISIONING_CLUSTER_OF
from herder.api.rke.names import MACHINE_UID
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Projection
from herder.engine.runtime.view import View

BY_NAME, BY_MACHINE = "name", "machine"


def management_of(view: View, namespace: str, cluster: str) -> Object | None:
    """The management Cluster of a provisioning Cluster, if both refer to each other."""
    provisioning = view.get(PROVISIONING_CLUSTER, cluster, namespace)
    name = ((provisioning or {}).get("status") or {}).get("clusterName")
    management = view.get(MANAGEMENT_CLUSTER, name) if name else None
    return management if management is not None and clusters.are_paired(management, namespace, cluster) else None


def provisioning_of(view: View, management: Object) -> Object | None:
    """The provisioning Cluster of a management Cluster, if both refer to each other."""
    namespace, _, name = annotations_of(management).get(PROVISIONING_CLUSTER_OF, "").partition("/")
    found = view.get(PROVISIONING_CLUSTER, name, namespace) if name else None
    return found if found is not None and clusters.is_pair(management, found) else None


def provisioned_as(management: Object) -> Iterable[str]:
    """Index key of the provisioning Cluster that a management Cluster belongs to."""
    recorded = annotations_of(management).get(PROVISIONING_CLUSTER_OF)
    return (recorded,) if recorded else ()


def own_key(cluster: Object) -> Iterable[str]:
    return (cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"]),)


# --- Nodes ----------------------------------------------------------------------------------------------------------


def _facts(node: Object) -> Object:
    found = NODE_RECORD.project(node)
    ready = node_condition(found, "Ready") or {}
    labels = {MACHINE_UID: labels_of(found).get(MACHINE_UID, "")}
    return {
        "metadata": {"name": found["metadata"].get("name", ""), "labels": labels},
        "providerID": provider_id(found),
        "server": any(role in labels_of(found) for role in SERVER_ROLES),
        "ready": ready.get("status") == "True",
        "addresses": addresses_of(node),
    }


def _name(node: Object) -> Iterable[str]:
    return (node["metadata"]["name"],)


def _machine(node: Object) -> Iterable[str]:
    return claimed_machines(labels_of(node), str(node.get("providerID") or ""))


NODES = Projection("provisioned-node", project=_facts, indexes={BY_NAME: _name, BY_MACHINE: _machine})
