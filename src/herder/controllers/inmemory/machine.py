"""InMemoryMachine: a machine that is only said to run, and registers a Node in its workload cluster.

It starts when its cluster is there and its bootstrap data are; that it runs, its provider ID, addresses and finalizer
are one write. Until then there is nothing that deletion would have to clean up.
"""

from __future__ import annotations

from datetime import datetime

from herder.api.capi.conditions import paused_condition
from herder.api.capi.kinds import CLUSTER, MACHINE, NODE, SECRET_METADATA
from herder.api.capi.names import SECRET_TYPE, cluster_key, is_deleting, is_paused, kubeconfig_secret
from herder.api.capi.nodes import node_by_provider_id
from herder.api.inmemory.behaviour import ABSENT, Behaviour, behaviour
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE
from herder.api.inmemory.names import MACHINE_FINALIZER, STUCK_DELETION, provider_id
from herder.api.writing import delete, object_patch, ref
from herder.controllers.inmemory import nodes
from herder.controllers.inmemory.reports import failure, health, ready, status_with, trouble, whole_patch
from herder.controllers.inmemory.surroundings import (
    BY_CLUSTER,
    all_of_the_cluster,
    all_that_need,
    cluster_label,
    cluster_of,
    created_at,
    group,
    infrastructure_provisioned,
    owner_machine,
    referred,
    turned_at,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Observe, Patch, Ref, Wait, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View


def reconcile(view: View) -> Decision:
    infra = view.get(IN_MEMORY_MACHINE, view.name)
    if infra is None:
        return DONE
    machine = owner_machine(view, infra)
    cluster = cluster_of(view, machine) if machine else None
    if is_paused(cluster, infra):
        return _report_status(infra, {}, [paused_condition(cluster, infra)], "tell that it is paused", view.now)
    if is_deleting(infra):
        return _remove(infra, machine, cluster, view)
    if machine is None or cluster is None:
        return waiting("the core has yet to make it a Machine's")
    if not _runs(infra):
        return _start(infra, machine, cluster, view)
    return _report_running(infra, cluster, view) + _keep_node(infra, machine, cluster, view)


# --- starting ---------------------------------------------------------------------------------------------------


def _start(infra: Object, machine: Object, cluster: Object, view: View) -> Decision:
    if not infrastructure_provisioned(cluster):
        return waiting("the cluster's infrastructure is not provisioned", ref(CLUSTER, cluster))
    data = (machine["spec"].get("bootstrap") or {}).get("dataSecretName")
    if not data:
        return waiting("the Machine has no bootstrap data yet", ref(MACHINE, machine))
    asked = behaviour(infra)
    condition = trouble(asked, "the machine")
    if condition is not None:
        conditions = [condition, paused_condition(cluster, infra)]
        return _report_status(infra, failure(asked, condition), conditions, "tell why it does not run", view.now)
    secret = view.get(SECRET_METADATA, data)
    at = created_at(secret or machine) + asked.start_delay
    if asked.start_delay and at > view.now:
        return waiting("the machine starts", wake_at=at)
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
    return Decision(writes=whole_patch(IN_MEMORY_MACHINE, infra, wanted, "the machine runs"))


def _report_running(infra: Object, cluster: Object, view: View) -> Decision:
    asked = behaviour(infra)
    condition = health(asked, "the machine")
    return _report_status(
        infra, failure(asked, condition), [condition, paused_condition(cluster, infra)], "tell how it is", view.now
    )


# --- its Node ---------------------------------------------------------------------------------------------------


def _keep_node(infra: Object, machine: Object, cluster: Object, view: View) -> Decision:
    asked = behaviour(infra)
    if is_deleting(cluster):
        return DONE
    joins_at = turned_at(infra, "Ready") + asked.node_delay
    if asked.node_delay and joins_at > view.now and not asked.fail:
        return waiting("the Node takes its time", wake_at=joins_at)
    watched = _watched(infra, cluster, view)
    if not watched.observe:
        return watched
    seen = view.observed(_wish(infra, cluster))
    if not isinstance(seen, Observed):
        return watched
    return watched + _bring_node(infra, machine, cluster, asked, list(seen.objects), view.now)


def _wish(infra: Object, cluster: Object) -> Observe:
    return node_by_provider_id(_target(cluster), infra["spec"]["providerID"])


def _target(cluster: Object) -> str:
    return cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def _watched(infra: Object, cluster: Object, view: View) -> Decision:
    """Look at the Node; there is no way to before the cluster's kubeconfig exists."""
    secret = kubeconfig_secret(cluster["metadata"]["name"])
    if view.get(SECRET_METADATA, secret) is None:
        return waiting("the cluster has no kubeconfig yet", Ref(SECRET_METADATA, secret, view.namespace))
    seen = view.observed(_wish(infra, cluster))
    wait = Wait(f"the workload cluster does not answer: {seen.reason}") if isinstance(seen, Unreachable) else None
    return Decision(observe=(_wish(infra, cluster),), wait=wait)


def _bring_node(
    infra: Object, machine: Object, cluster: Object, asked: Behaviour, found: list[Object], now: datetime
) -> Decision:
    target = _target(cluster)
    if asked.node_ready == ABSENT:
        gone = tuple(delete(NODE, node, "the machine's annotations ask for no Node", target=target) for node in found)
        return Decision(writes=gone)
    if not found and is_deleting(machine):
        return DONE  # the core has decided already that there is no Node to drain and delete
    if not found:
        return Decision(writes=(Create(NODE, nodes.node(infra, machine, asked, now), "the Node joins", target=target),))
    return Decision(writes=tuple(patch for node in found for patch in _report(node, asked, target, now)))


def _report(node: Object, asked: Behaviour, target: str, now: datetime) -> tuple[Patch, ...]:
    reported = node["status"]["conditions"]
    wanted = nodes.conditions(reported, asked, now)
    if nodes.same_conditions(reported, wanted):
        return ()
    return (Patch(ref(NODE, node), {"status": {"conditions": wanted}}, "the Node reports", "status", target=target),)


# --- the end ----------------------------------------------------------------------------------------------------


def _remove(infra: Object, machine: Object | None, cluster: Object | None, view: View) -> Decision:
    if MACHINE_FINALIZER not in (infra["metadata"].get("finalizers") or []):
        return DONE
    if behaviour(infra).stuck_deletion:
        return waiting(f"annotation {STUCK_DELETION} keeps it")
    return _lose_node(infra, machine, cluster, view) or Decision(writes=_without_finalizer(infra))


def _lose_node(infra: Object, machine: Object | None, cluster: Object | None, view: View) -> Decision | None:
    """A machine that vanishes under a living Machine leaves a Node that nobody hears of any more. None when done.

    Where the Machine goes too, the core deletes the Node next.
    """
    if machine is None or cluster is None or is_deleting(machine) or is_deleting(cluster):
        return None
    watched = _watched(infra, cluster, view)
    if not watched.observe or watched.wait:
        return None
    seen = view.observed(_wish(infra, cluster))
    if not isinstance(seen, Observed):
        return watched + waiting("the Node is looked for")
    lost = []
    for node in seen.objects:
        reported = node["status"]["conditions"]
        wanted = nodes.unreachable(reported, view.now)
        if not nodes.same_conditions(reported, wanted):
            status = {"status": {"conditions": wanted}}
            lost.append(Patch(ref(NODE, node), status, "the machine is gone", "status", target=_target(cluster)))
    return Decision(writes=(*lost, *_without_finalizer(infra))) if lost else None


def _without_finalizer(infra: Object) -> tuple[Patch, ...]:
    left = [name for name in infra["metadata"]["finalizers"] if name != MACHINE_FINALIZER]
    wanted = {**infra, "metadata": {**infra["metadata"], "finalizers": left}}
    return object_patch(IN_MEMORY_MACHINE, infra, wanted, "the machine is gone")


def _runs(infra: Object) -> bool:
    return bool(((infra.get("status") or {}).get("initialization") or {}).get("provisioned"))


def _report_status(infra: Object, fields: Object, conditions: list[Object], reason: str, now: datetime) -> Decision:
    wanted = {**infra, "status": status_with(infra, fields, conditions, now)}
    return Decision(writes=whole_patch(IN_MEMORY_MACHINE, infra, wanted, reason))


CONTROLLER = Controller(
    name="inmemory-machine",
    kind=IN_MEMORY_MACHINE,
    reconcile=reconcile,
    watches=(
        Watches(
            MACHINE,
            referred(IN_MEMORY_MACHINE, "spec", "infrastructureRef"),
            changed("spec.bootstrap", "metadata.deletionTimestamp"),
        ),
        Watches(
            CLUSTER,
            all_of_the_cluster(),
            changed("spec.paused", "status.initialization.infrastructureProvisioned", "metadata.deletionTimestamp"),
        ),
        Watches(SECRET_METADATA, all_that_need(kubeconfig_secret), changed(), fields=f"type={SECRET_TYPE}"),
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
