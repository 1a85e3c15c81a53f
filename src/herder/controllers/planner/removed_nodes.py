"""Mark the names of kubeadm nodes whose Machines are deleted, so that their certificates are not renewed.

A removed machine may still run. With its certificate it can register its Node again, and renew the certificate while
that Node exists. The servers of the cluster know only Nodes, so the manager marks the record of the name: a ConfigMap
that `csr_approver.py` creates and reads.
"""

from __future__ import annotations

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, labels_of
from herder.api.guards.members import node_of
from herder.api.machines.archive import CONFIG_MAP
from herder.api.rke import names
from herder.api.rke.distributions import KUBEADM, version_of
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.writes import ref
from herder.engine.meta.kinds import Object
from herder.engine.meta.names import dns1123_subdomain
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision, Patch
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, View

RECORD_PREFIX, RECORD_NAMESPACE = "kubelet-certificate.", "kube-system"
RECORD_LABELS = {"app.kubernetes.io/managed-by": "herder"}
"""As in `csr_approver.py`, which lists records by this label."""
_MARKED = {"metadata": {"annotations": {names.MARKED_AS_REMOVED: "true"}}}


def reconcile(view: View) -> Decision:
    machine = view.get(MACHINE, view.name)
    if machine is None or not is_deleting(machine) or names.MARKED_AS_REMOVED in annotations_of(machine):
        return DONE
    node = str(((machine.get("status") or {}).get("nodeRef") or {}).get("name") or "")
    record, cluster = f"{RECORD_PREFIX}{node}", labels_of(machine).get(CLUSTER_NAME, "")
    if not node or dns1123_subdomain(record) or not _issues_certificates(view, cluster):
        return DONE
    observe = node_of(machine)  # of a cluster that cannot be reached, this controller runs again once it can
    if not isinstance(view.observed(observe), Observed):
        return Decision(observe=(observe,))
    mark = Apply(
        CONFIG_MAP, marked_record(record), "its Machine is deleted", target=cluster_key(view.namespace, cluster)
    )
    done = Patch(ref(MACHINE, machine), _MARKED, "the name of its Node is marked as removed")
    return Decision(writes=(mark, done), observe=(observe,))


def _issues_certificates(view: View, cluster: str) -> bool:
    """Whether the cluster is of kubeadm, and outlasts the Machine."""
    found, plane = view.get(CLUSTER, cluster), view.get(CONTROL_PLANE, cluster)
    if found is None or plane is None or is_deleting(found) or is_deleting(plane):
        return False
    version = version_of(str((plane.get("spec") or {}).get("kubernetesVersion") or ""))
    return version is not None and version.facts == KUBEADM


def marked_record(name: str) -> Object:
    """Without a key, if there is no record yet: then the name is issued to nobody."""
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {
            "name": name,
            "namespace": RECORD_NAMESPACE,
            "labels": {**RECORD_LABELS, names.REMOVED_NODE: "true"},
        },
    }


CONTROLLER = Controller(
    name="removed-nodes",
    kind=MACHINE,
    reconcile=reconcile,
    predicate=changed("metadata.deletionTimestamp", "status.nodeRef"),
    watches=(Watches(CLUSTER), Watches(CONTROL_PLANE)),
    cluster_of=lambda machine: cluster_key(machine["metadata"]["namespace"], labels_of(machine).get(CLUSTER_NAME, "")),
)
