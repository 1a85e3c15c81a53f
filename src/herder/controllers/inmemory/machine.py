"""InMemoryMachine reconciler: a simulated machine that registers a Node in its workload cluster.

It starts when the cluster's infrastructure and the bootstrap data are ready. Status, provider ID, addresses and
finalizer are one write, so before that there is nothing to clean up.
"""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import paused_condition
from herder.api.capi.kinds import CLUSTER, MACHINE, NODE, SECRET_METADATA
from herder.api.capi.names import SECRET_TYPE, cluster_key, is_deleting, is_paused, kubeconfig_secret
from herder.api.capi.nodes import node_by_provider_id
from herder.api.inmemory.behavior import ABSENT, Behavior, behavior_of
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE
from herder.api.inmemory.names import MACHINE_FINALIZER, STUCK_DELETION, provider_id
from herder.api.writes import delete, object_patch, ref
from herder.controllers.inmemory import nodes
from herder.controllers.inmemory.conditions import (
    failure,
    health,
    object_and_status_patch,
    ready,
    simulated_failure,
    status_with,
)
from herder.controllers.inmemory.owners import (
    BY_CLUSTER,
    cluster_label,
    cluster_of,
    created_at,
    group,
    infrastructure_provisioned,
    objects_needing_secret,
    objects_of_cluster,
    owner_machine,
    referenced,
    transitioned_at,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Observe, Patch, Ref, Wait, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View

REFERENCE = ("spec", "infrastructureRef")  # of the Machine


def reconcile(view: View) -> Decision:
    infra = view.get(IN_MEMORY_MACHINE, view.name)
    if infra is None:
        return DONE
    machine = owner_machine(view, infra, IN_MEMORY_MACHINE, *REFERENCE)
    cluster = cluster_of(view, machine) if machine else None
    if is_paused(cluster, infra):
        return _report_status(infra, {}, [paused_condition(cluster, infra)], "report that it is paused", view.now)
    if is_deleting(infra):
        return _reconcile_delete(infra, machine, cluster, view)
    if machine is None or cluster is None:
        return waiting("waiting for the Machine controller to set the owner reference")
    if not _is_running(infra):
        return _start(infra, machine, cluster, view)
    return _report_running(infra, cluster, view) + _reconcile_node(infra, machine, cluster, view)


# --- start ----------------------------------------------------------------------------------------------------------


def _start(infra: Object, machine: Object, cluster: Object, view: View) -> Decision:
    if not infrastructure_provisioned(cluster):
        return waiting("the cluster's infrastructure is not provisioned", ref(CLUSTER, cluster))
    data = (machine["spec"].get("bootstrap") or {}).get("dataSecretName")
    if not data:
        return waiting("the Machine has no bootstrap data yet", ref(MACHINE, machine))
    behavior = behavior_of(infra)
    condition = simulated_failure(behavior, "the machine")
    if condition is not None:
        conditions = [condition, paused_condition(cluster, infra)]
        return _report_status(infra, failure(behavior, condition), conditions, "report why it does not run", view.now)
    secret = view.get(SECRET_METADATA, data)
    at = created_at(secret or machine) + behavior.start_delay
    if behavior.start_delay and at > view.now:
        return waiting("simulated start delay", wake_at=at)
    return _run(infra, machine, cluster, view.now)


def _run(infra: Object, machine: Object, cluster: Object, now: datetime) -> Decision:
    meta = infra["metadata"]
    spec = {
        **(infra.get("spec") or {}),
        "providerID": provider_id(meta["namespace"], cluster["metadata"]["name"], meta["name"]),
    }
    fields: Object = {
        "initialization": {"provisioned": True},
        "ready": True,
        "addresses": nodes.addresses(infra),
    }
    if domain := machine["spec"].get("failureDomain"):
        spec["failureDomain"] = fields["failureDomain"] = domain
    if spec.get("interruptible"):
        fields["interruptible"] = True
    others = [name for name in meta.get("finalizers") or [] if name != MACHINE_FINALIZER]
    wanted = {
        "metadata": {**meta, "finalizers": [*others, MACHINE_FINALIZER]},
        "spec": spec,
        "status": status_with(infra, fields, [ready(), paused_condition(cluster, infra)], now),
    }
    return Decision(writes=object_and_status_patch(IN_MEMORY_MACHINE, infra, wanted, "start the simulated machine"))


def _report_running(infra: Object, cluster: Object, view: View) -> Decision:
    behavior = behavior_of(infra)
    condition = health(behavior, "the machine")
    return _report_status(
        infra,
        failure(behavior, condition),
        [condition, paused_condition(cluster, infra)],
        "update the InMemoryMachine status",
        view.now,
    )


# --- Node -----------------------------------------------------------------------------------------------------------


def _reconcile_node(infra: Object, machine: Object, cluster: Object, view: View) -> Decision:
    behavior = behavior_of(infra)
    if is_deleting(cluster):
        return DONE
    joins_at = transitioned_at(infra, "Ready") + behavior.node_delay
    if behavior.node_delay and joins_at > view.now and not behavior.fail:
        return waiting("simulated delay of the Node", wake_at=joins_at)
    node_observation = _observe_node(infra, cluster, view)
    if not node_observation.observe:
        return node_observation
    seen = view.observed(_subscription(infra, cluster))
    if not isinstance(seen, Observed):
        return node_observation
    return node_observation + _sync_node(infra, machine, cluster, behavior, list(seen.objects), view.now)


def _subscription(infra: Object, cluster: Object) -> Observe:
    return node_by_provider_id(_target(cluster), infra["spec"]["providerID"])


def _target(cluster: Object) -> str:
    return cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def _observe_node(infra: Object, cluster: Object, view: View) -> Decision:
    """Subscribe to the Node, once the cluster's kubeconfig exists."""
    secret = kubeconfig_secret(cluster["metadata"]["name"])
    if view.get(SECRET_METADATA, secret) is None:
        return waiting("the cluster has no kubeconfig yet", Ref(SECRET_METADATA, secret, view.namespace))
    seen = view.observed(_subscription(infra, cluster))
    wait = Wait(f"the workload cluster is unreachable: {seen.reason}") if isinstance(seen, Unreachable) else None
    return Decision(observe=(_subscription(infra, cluster),), wait=wait)


def _sync_node(
    infra: Object, machine: Object, cluster: Object, behavior: Behavior, found: list[Object], now: datetime
) -> Decision:
    target = _target(cluster)
    if behavior.node_ready == ABSENT:
        gone = tuple(delete(NODE, node, "the machine's annotations ask for no Node", target=target) for node in found)
        return Decision(writes=gone)
    if not found and is_deleting(machine):
        return DONE  # The Machine controller has already decided that there is no Node to drain and delete.
    if not found:
        return Decision(
            writes=(Create(NODE, nodes.node(infra, machine, behavior, now), "register the Node", target=target),)
        )
    return Decision(writes=tuple(patch for node in found for patch in _report(node, behavior, target, now)))


def _report(node: Object, behavior: Behavior, target: str, now: datetime) -> tuple[Patch, ...]:
    reported = node["status"]["conditions"]
    wanted = nodes.conditions(reported, behavior, now)
    if nodes.same_conditions(reported, wanted):
        return ()
    return (
        Patch(
            ref(NODE, node), {"status": {"conditions": wanted}}, "update the Node conditions", "status", target=target
        ),
    )


# --- deletion -------------------------------------------------------------------------------------------------------


def _reconcile_delete(infra: Object, machine: Object | None, cluster: Object | None, view: View) -> Decision:
    if MACHINE_FINALIZER not in (infra["metadata"].get("finalizers") or []):
        return DONE
    if behavior_of(infra).stuck_deletion:
        return waiting(f"annotation {STUCK_DELETION} blocks the deletion")
    return _mark_node_unreachable(infra, machine, cluster, view) or Decision(writes=_without_finalizer(infra))


def _mark_node_unreachable(
    infra: Object, machine: Object | None, cluster: Object | None, view: View
) -> Decision | None:
    """Report the Node as unreachable if the machine is deleted without its Machine. None when done.

    If the Machine is being deleted too, the Machine controller deletes the Node.
    """
    if machine is None or cluster is None or is_deleting(machine) or is_deleting(cluster):
        return None
    node_observation = _observe_node(infra, cluster, view)
    if not node_observation.observe or node_observation.wait:
        return None
    seen = view.observed(_subscription(infra, cluster))
    if not isinstance(seen, Observed):
        return node_observation + waiting("waiting for the list of Nodes")
    lost = []
    for node in seen.objects:
        reported = node["status"]["conditions"]
        wanted = nodes.unreachable(reported, view.now)
        if not nodes.same_conditions(reported, wanted):
            status = {"status": {"conditions": wanted}}
            lost.append(Patch(ref(NODE, node), status, "the machine is deleted", "status", target=_target(cluster)))
    return Decision(writes=(*lost, *_without_finalizer(infra))) if lost else None


def _without_finalizer(infra: Object) -> tuple[Patch, ...]:
    left = [name for name in infra["metadata"]["finalizers"] if name != MACHINE_FINALIZER]
    wanted = {**infra, "metadata": {**infra["metadata"], "finalizers": left}}
    return object_patch(IN_MEMORY_MACHINE, infra, wanted, "the machine is deleted")


def _is_running(infra: Object) -> bool:
    return bool(((infra.get("status") or {}).get("initialization") or {}).get("provisioned"))


def _report_status(infra: Object, fields: Object, conditions: list[Object], reason: str, now: datetime) -> Decision:
    wanted = {**infra, "status": status_with(infra, fields, conditions, now)}
    return Decision(writes=object_and_status_patch(IN_MEMORY_MACHINE, infra, wanted, reason))


CONTROLLER = Controller(
    name="inmemory-machine",
    kind=IN_MEMORY_MACHINE,
    reconcile=reconcile,
    watches=(
        Watches(
            MACHINE,
            referenced(IN_MEMORY_MACHINE, *REFERENCE),
            changed("spec.bootstrap", "metadata.deletionTimestamp", ".".join(REFERENCE)),
        ),
        Watches(
            CLUSTER,
            objects_of_cluster(),
            changed("spec.paused", "status.initialization.infrastructureProvisioned", "metadata.deletionTimestamp"),
        ),
        Watches(SECRET_METADATA, objects_needing_secret(kubeconfig_secret), changed(), fields=f"type={SECRET_TYPE}"),
    ),
    predicate=changed(
        "metadata.annotations",
        "metadata.labels",
        "metadata.ownerReferences",
        "metadata.finalizers",
        "metadata.deletionTimestamp",
        "spec",
    ),
    indexes={IN_MEMORY_MACHINE: {BY_CLUSTER: cluster_label}},
    workers=16,
    cluster_of=group,
)
