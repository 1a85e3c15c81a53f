"""Keep the cluster agent available: a second replica where there is a second server, and moved before its machine goes.

Without the agent, the manager cannot reach the cluster. If the machine of the only agent pod were deleted, Kubernetes
would take minutes to notice. So two controllers work together:

- `CONTROLLER` scales the Deployment, and marks the Machines whose Nodes run an agent pod with a pre-drain hook.
- `MOVE` acts when a marked Machine is deleted: it cordons the Node, waits for an agent on another Node, deletes the pod
  and removes the hook. It does not wait longer than `MOVE_TIMEOUT`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from herder.api.capi.core import DEPLOYMENT
from herder.api.capi.kinds import CLUSTER, MACHINE, NODE, POD
from herder.api.capi.names import annotations_of, cluster_key, is_deleting
from herder.api.capi.nodes import node_by_name
from herder.api.capi.typed import mapping, mappings, text
from herder.api.management import clusters
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.manifest import NAME as AGENT
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.api.rke.machines.removal import cluster_of
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.names import AGENT_HOOK
from herder.api.writes import delete, ref
from herder.controllers.provisioning.cluster.management import management_of
from herder.controllers.provisioning.management_cluster.status import NODES
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, Patch, Projection, Ref, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, View

HOOK_OWNER = "herder"
REPLICAS = 2
MOVE_TIMEOUT = timedelta(minutes=2)
"""How long the deletion of a machine waits for an agent on another one."""
MAX_MARKED = 5
"""Most Machines that are marked: anyone in the cluster can create pods with the label of the agent."""
BY_NODE, BY_HOOK = "node-of-cluster", "hook-of-cluster"

# --- observed objects -------------------------------------------------------------------------------------------------


def _pod_facts(pod: Object) -> Object:
    meta, conditions = mapping(pod.get("metadata")), mappings(mapping(pod.get("status")).get("conditions"))
    ready = any(text(each.get("type")) == "Ready" and text(each.get("status")) == "True" for each in conditions)
    return {
        "metadata": {part: text(meta.get(part)) for part in ("name", "namespace", "uid")},
        "node": text(mapping(pod.get("spec")).get("nodeName")),
        "ready": ready,
        "terminating": bool(meta.get("deletionTimestamp")),
    }


def _deployment_facts(deployment: Object) -> Object:
    meta = mapping(deployment.get("metadata"))
    replicas = mapping(deployment.get("spec")).get("replicas")
    return {"metadata": {"name": text(meta.get("name"))}, "replicas": replicas if isinstance(replicas, int) else 1}


PODS = Projection("cluster-agent-pod", project=_pod_facts)
DEPLOYMENTS = Projection("cluster-agent-deployment", project=_deployment_facts)


def _pods_of(cluster: str) -> Observe:
    return Observe(cluster, POD, namespace=SYSTEM_NAMESPACE, labels=f"app={AGENT}", projection=PODS)


def _deployment_of(cluster: str) -> Observe:
    own = f"metadata.name={AGENT}"
    return Observe(cluster, DEPLOYMENT, namespace=SYSTEM_NAMESPACE, fields=own, projection=DEPLOYMENTS)


def _running(pods: Sequence[Object]) -> list[Object]:
    """Pods that are not terminating: an agent closes its tunnel when it is asked to stop."""
    return [pod for pod in pods if pod["node"] and not pod["terminating"]]


def _seen(view: View, subscription: Observe) -> Sequence[Object]:
    found = view.observed(subscription)
    return found.objects if isinstance(found, Observed) else ()


# --- replicas and hooks -----------------------------------------------------------------------------------------------


def reconcile(view: View) -> Decision:
    management = view.get(MANAGEMENT_CLUSTER, view.name)
    if management is None or not _is_reachable(view, management):
        return DONE
    nodes = Observe(view.name, NODE, projection=NODES)  # the controller of management Clusters has the same
    if sum(bool(node["server"]) for node in _seen(view, nodes)) < REPLICAS:
        return Decision(observe=(nodes,))
    deployment, pods = _deployment_of(view.name), _pods_of(view.name)
    writes = (*_scale(view, _seen(view, deployment)), *_mark(view, management, _seen(view, pods)))
    return Decision(observe=(nodes, deployment, pods), writes=writes)


def _is_reachable(view: View, management: Object) -> bool:
    if is_deleting(management) or clusters.is_internal(management) or not clusters.is_connected(management):
        return False
    provisioning = _provisioning_of(view, management)
    return provisioning is not None and bool((provisioning.get("status") or {}).get("clientSecretName"))


def _provisioning_of(view: View, management: Object) -> Object | None:
    namespace, _, name = (clusters.source_provisioning_cluster(management) or "").partition("/")
    found = view.get(PROVISIONING_CLUSTER, name, namespace) if name else None
    return found if found is not None and clusters.is_pair(management, found) else None


def _scale(view: View, deployments: Sequence[Object]) -> Iterable[Patch]:
    """Scale a single replica up. Any other number is a user's choice."""
    for each in deployments:
        if each["replicas"] == 1:
            patch, why = {"spec": {"replicas": REPLICAS}}, "the cluster has a second server"
            yield Patch(Ref(DEPLOYMENT, AGENT, SYSTEM_NAMESPACE), patch, why, target=view.name)


def _mark(view: View, management: Object, pods: Sequence[Object]) -> Iterable[Patch]:
    """Move the hook with the pods. Machines that are being deleted keep theirs until the pod has moved."""
    cluster = clusters.source_provisioning_cluster(management) or ""
    nodes = sorted({pod["node"] for pod in _running(pods)})[:MAX_MARKED]
    hosts = [each for node in nodes for each in view.select(MACHINE, index=(BY_NODE, f"{cluster}/{node}"))]
    marked = view.select(MACHINE, index=(BY_HOOK, cluster))
    names = {each["metadata"]["name"] for each in hosts}
    for machine in (each for each in hosts if AGENT_HOOK not in annotations_of(each) and not is_deleting(each)):
        yield _hook(machine, HOOK_OWNER, "its Node runs the cluster agent")
    for machine in (each for each in marked if each["metadata"]["name"] not in names and not is_deleting(each)):
        yield _hook(machine, None, "its Node runs no cluster agent")


def _hook(machine: Object, value: str | None, reason: str) -> Patch:
    return Patch(ref(MACHINE, machine), {"metadata": {"annotations": {AGENT_HOOK: value}}}, reason)


# --- move -------------------------------------------------------------------------------------------------------------


def move(view: View) -> Decision:
    machine = view.get(MACHINE, view.name)
    if machine is None or not is_deleting(machine) or AGENT_HOOK not in annotations_of(machine):
        return DONE
    deadline = datetime.fromisoformat(machine["metadata"]["deletionTimestamp"]) + MOVE_TIMEOUT
    provisioning = view.get(PROVISIONING_CLUSTER, machine["spec"]["clusterName"])
    management = management_of(view, provisioning) if provisioning is not None else None
    is_needed = all(each is not None and not is_deleting(each) for each in (provisioning, management))
    if management is None or not is_needed or is_lost(machine) or view.now >= deadline:
        return _release(machine)
    return _move_pods(view, machine, management["metadata"]["name"]) + Decision(wake_at=deadline)


def _move_pods(view: View, machine: Object, cluster: str) -> Decision:
    """Cordon the Node first, so that no new pod of the agent starts there."""
    node = ((machine.get("status") or {}).get("nodeRef") or {}).get("name") or ""
    target = cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"])
    subscriptions = (node_by_name(target, node), _pods_of(cluster))
    needs = Decision(observe=subscriptions)
    seen = [view.observed(each) for each in subscriptions]
    if not all(isinstance(each, Observed) for each in seen):
        return needs + waiting("waiting for the connection to the cluster to move its cluster agent")
    nodes, pods = _seen(view, subscriptions[0]), _running(_seen(view, subscriptions[1]))
    here, elsewhere = ([pod for pod in pods if (pod["node"] == node) is local] for local in (True, False))
    if not nodes or not here:
        return needs + _release(machine)
    if not (nodes[0].get("spec") or {}).get("unschedulable"):
        cordon = Patch(Ref(NODE, node), {"spec": {"unschedulable": True}}, "its Machine is deleted", target=target)
        return needs + Decision(writes=(cordon,))
    if not any(pod["ready"] for pod in elsewhere):
        # All agents may be on this Node, where they started before others had joined. One of them stays connected.
        spare = here[1:] if not elsewhere else ()
        moved = tuple(delete(POD, pod, "it must start on another Node", target=cluster) for pod in spare)
        return needs + Decision(writes=moved) + waiting("waiting for the cluster agent to connect from another Node")
    moved = tuple(delete(POD, pod, "another agent is connected", target=cluster) for pod in here)
    return needs + Decision(writes=moved) + waiting(f"waiting for the cluster agent to leave Node {node}")


def _release(machine: Object) -> Decision:
    return Decision(writes=(_hook(machine, None, "the cluster agent does not need this machine"),))


# --- watches ----------------------------------------------------------------------------------------------------------


def _node_of(machine: Object) -> Iterable[str]:
    name = ((machine.get("status") or {}).get("nodeRef") or {}).get("name")
    return [f"{cluster}/{name}" for cluster in cluster_of(machine)] if name else ()


def _marked_in(machine: Object) -> Iterable[str]:
    return cluster_of(machine) if AGENT_HOOK in annotations_of(machine) else ()


def _its_management(provisioning: Object) -> Iterable[Key]:
    return (Key("", name) for name in clusters.management_name(provisioning))


CONTROLLER = Controller(
    name="cluster-agent",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    predicate=changed("metadata.annotations", "metadata.deletionTimestamp"),
    watches=(
        Watches(PROVISIONING_CLUSTER, _its_management, changed("status.clientSecretName")),
        Watches(MACHINE, optional=True),
    ),
    indexes={MACHINE: {BY_NODE: _node_of, BY_HOOK: _marked_in}},
    cluster_of=lambda cluster: str(cluster["metadata"]["name"]),
)
MOVE = Controller(
    name="cluster-agent-move",
    kind=MACHINE,
    reconcile=move,
    predicate=changed("metadata.annotations", "metadata.deletionTimestamp"),
    watches=(Watches(PROVISIONING_CLUSTER), Watches(MANAGEMENT_CLUSTER), Watches(CLUSTER)),
    cluster_of=lambda machine: next(iter(cluster_of(machine)), ""),
)
