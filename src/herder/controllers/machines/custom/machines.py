"""CustomMachines: machines that the user created and registered; Herder neither creates nor deletes them.

If the RKECluster has a timeout annotation, a Machine whose Node is missing for longer is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from herder.api import settings
from herder.api.capi.conditions import condition, find
from herder.api.capi.contract import refers_to
from herder.api.capi.kinds import MACHINE, NODE
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, labels_of
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, CUSTOM_MACHINE, RKE_CLUSTER
from herder.api.rke.operations import is_restoring, last_restore_end
from herder.api.writes import delete, object_patch, ref, status_patch
from herder.controllers.machines.cluster_access import BY_NAME, NODES, management_of, own_key
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import Observed, View

BY_CLUSTER = "cluster"
NODE_HEALTHY, NODE_DELETED = "NodeHealthy", "NodeDeleted"


def reconcile(view: View) -> Decision:
    custom = view.get(CUSTOM_MACHINE, view.name)
    if custom is None:
        return DONE
    if is_deleting(custom):
        return _release(custom)
    return _report_status(view, custom) + _delete_if_node_missing(view, custom)


def _report_status(view: View, custom: Object) -> Decision:
    status = custom.get("status") or {}
    ready = [condition("Ready", "True", "")]
    known = {"initialization": {"provisioned": True}, "ready": True} if _provider_id(custom) else {}
    wanted = {**status, **known, "conditions": merged_with_updates(status.get("conditions"), ready, view.now)}
    return Decision(writes=status_patch(CUSTOM_MACHINE, custom, wanted, "a registered machine is provisioned"))


def _provider_id(custom: Object) -> str:
    return str((custom.get("spec") or {}).get("providerID") or "")


def _release(custom: Object) -> Decision:
    """Remove the finalizer that only Rancher's objects have; there is nothing to clean up."""
    left = [name for name in custom["metadata"].get("finalizers") or () if name != names.REMOVE_CUSTOM_MACHINE]
    wanted = {**custom, "metadata": {**custom["metadata"], "finalizers": left}}
    return Decision(writes=object_patch(CUSTOM_MACHINE, custom, wanted, "a custom machine needs no cleanup"))


# --- missing Node ---------------------------------------------------------------------------------------------------


def _delete_if_node_missing(view: View, custom: Object) -> Decision:
    cluster = labels_of(custom).get(CLUSTER_NAME, "")
    rke_cluster = view.get(RKE_CLUSTER, cluster) if cluster else None
    after = annotations_of(rke_cluster).get(names.DELETE_MISSING_AFTER) if rke_cluster is not None else None
    machine = _owner(view, custom)
    if not after or rke_cluster is None or machine is None or is_deleting(machine) or not _provider_id(custom):
        return DONE
    node = ((machine.get("status") or {}).get("nodeRef") or {}).get("name")
    gone = find(machine, NODE_HEALTHY)
    if not node or gone is None or (gone["status"], gone.get("reason")) != ("False", NODE_DELETED):
        return DONE
    control_plane = view.get(CONTROL_PLANE, cluster)
    if is_restoring(control_plane):
        return waiting(f"Node {node} is missing; waiting for the end of the etcd restore")
    since = datetime.fromisoformat(gone["lastTransitionTime"])
    restored = last_restore_end(control_plane)  # the Nodes of machines that joined since the snapshot register again
    try:
        at = max(since, restored or since) + timedelta(seconds=settings.parse_duration(after))
    except ValueError:
        message = f'annotation {names.DELETE_MISSING_AFTER}: "{after}" must be a duration such as 15m'
        return waiting(message, ref(RKE_CLUSTER, rke_cluster))
    if view.now < at:
        return waiting(f"Node {node} is missing; the Machine is deleted if it does not return", wake_at=at)
    return _confirm_and_delete(view, machine, node)


def _confirm_and_delete(view: View, machine: Object, node: str) -> Decision:
    """Delete the Machine only if the cluster itself confirms that the Node is missing."""
    management = management_of(view, view.namespace, machine["spec"]["clusterName"])
    if management is None or not clusters.is_connected(management):
        return waiting(f"Node {node} is missing; waiting for the cluster agent to connect to confirm it")
    subscription = Observe(management["metadata"]["name"], NODE, projection=NODES, focus=(BY_NAME, node))
    needs, seen = Decision(observe=(subscription,)), view.observed(subscription)
    if not isinstance(seen, Observed):
        return needs + waiting(f"Node {node} is missing; waiting for the cluster to confirm it")
    if seen.objects:
        return needs + waiting(f"Node {node} exists again")
    return needs + Decision(writes=(delete(MACHINE, machine, f"its Node {node} has been missing for too long"),))


def _owner(view: View, custom: Object) -> Object | None:
    for reference in custom["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == MACHINE.group_kind:
            found = view.get(MACHINE, reference["name"])
            if found is not None and found["metadata"]["uid"] == reference["uid"] and _references(found, custom):
                return found
    return None


def _references(machine: Object, custom: Object) -> bool:
    """Whether the Machine references this object: an owner reference alone is no proof, as its author writes it."""
    return refers_to(machine["spec"].get("infrastructureRef"), CUSTOM_MACHINE, custom["metadata"]["name"])


# --- watches --------------------------------------------------------------------------------------------------------


def _cluster_of(custom: Object) -> Iterable[str]:
    name = labels_of(custom).get(CLUSTER_NAME)
    return (cluster_key(custom["metadata"]["namespace"], name),) if name else ()


def _of_machine(machine: Object) -> Iterable[Key]:
    reference = (machine.get("spec") or {}).get("infrastructureRef") or {}
    if (reference.get("apiGroup"), reference.get("kind")) == CUSTOM_MACHINE.group_kind:
        yield Key(machine["metadata"]["namespace"], reference["name"])


CONTROLLER = Controller(
    name="custom-machine",
    kind=CUSTOM_MACHINE,
    reconcile=reconcile,
    watches=(
        Watches(MACHINE, _of_machine, changed("status.conditions", "status.nodeRef")),
        Watches(RKE_CLUSTER, Indexed(BY_CLUSTER, own_key), changed("metadata.annotations")),
        Watches(
            CONTROL_PLANE,
            Indexed(BY_CLUSTER, own_key),
            changed("status.operation.phase", "status.operationHistory"),
        ),
        Watches(PROVISIONING_CLUSTER),
        Watches(MANAGEMENT_CLUSTER),
    ),
    indexes={CUSTOM_MACHINE: {BY_CLUSTER: _cluster_of}},
    cluster_of=lambda custom: next(iter(_cluster_of(custom)), ""),
)
