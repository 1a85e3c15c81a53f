"""InMemoryBootstrapConfig: the data that a machine would run first, made when the cluster is ready for the machine.

One Secret and one write to the object. While it waits nothing is written: what it waits for is others' to tell.
"""

from __future__ import annotations

import base64
from datetime import datetime

from herder.api.capi.conditions import paused_condition
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, SECRET_TYPE, UNINITIALIZED_TAINT, is_deleting, is_paused, labels_of
from herder.api.inmemory.behaviour import behaviour
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP
from herder.api.inmemory.names import SENTINEL_FILE
from herder.api.writing import owner_reference, ref
from herder.controllers.inmemory.reports import failure, ready, status_with, trouble, whole_patch
from herder.controllers.inmemory.surroundings import (
    BY_CLUSTER,
    all_of_the_cluster,
    cluster_label,
    cluster_of,
    control_plane_initialized,
    created_at,
    group,
    infrastructure_provisioned,
    is_control_plane,
    owner_machine,
    referred,
    turned_at,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import View


def reconcile(view: View) -> Decision:
    config = view.get(IN_MEMORY_BOOTSTRAP, view.name)
    if config is None or is_deleting(config):
        return DONE  # the Secret goes with its owner
    machine = owner_machine(view, config)
    if machine is None:
        return waiting("the core has yet to make it a Machine's")
    cluster = cluster_of(view, machine)
    if cluster is None:
        return waiting("its Cluster does not exist")
    if is_paused(cluster, config):
        return _report_status(config, {}, [paused_condition(cluster, config)], "tell that it is paused", view.now)
    if _created(config):
        return _report_status(
            config, {}, [paused_condition(cluster, config)], "tell that it is no longer paused", view.now
        )
    return _not_before_the_cluster(config, machine, cluster, view) or _make(config, machine, cluster, view)


def _not_before_the_cluster(config: Object, machine: Object, cluster: Object, view: View) -> Decision | None:
    if is_deleting(machine):
        return waiting("its Machine goes", ref(MACHINE, machine))
    if not infrastructure_provisioned(cluster):
        return waiting("the cluster's infrastructure is not provisioned", ref(CLUSTER, cluster))
    if not is_control_plane(machine) and not control_plane_initialized(cluster):
        return waiting("the control plane is not initialized", ref(CLUSTER, cluster))
    asked = behaviour(config)
    condition = trouble(asked, "the bootstrap data")
    if condition is not None:
        conditions = [condition, paused_condition(cluster, config)]
        return _report_status(config, failure(asked, condition), conditions, "tell why there are no data", view.now)
    at = _ready_for_it(config, machine, cluster) + asked.bootstrap_delay
    if asked.bootstrap_delay and at > view.now:
        return waiting("the bootstrap data take their time", wake_at=at)
    return None


def _ready_for_it(config: Object, machine: Object, cluster: Object) -> datetime:
    needed = (
        ["InfrastructureReady"] if is_control_plane(machine) else ["InfrastructureReady", "ControlPlaneInitialized"]
    )
    return max(created_at(config), *(turned_at(cluster, condition) for condition in needed))


def _make(config: Object, machine: Object, cluster: Object, view: View) -> Decision:
    """The Secret first; where it is there already, the write that tells of it was lost."""
    secret = _data_secret(config, machine)
    name = secret["metadata"]["name"]
    fields: Object = {"dataSecretName": name, "initialization": {"dataSecretCreated": True}, "ready": True}
    conditions = [ready(), paused_condition(cluster, config)]
    writes = _report_status(config, fields, conditions, "the bootstrap data are made", view.now)
    if view.get(SECRET_METADATA, name) is not None:
        return writes
    return Decision(writes=(Create(SECRET, secret, "the machine's bootstrap data"),)) + writes


def _data_secret(config: Object, machine: Object) -> Object:
    meta = config["metadata"]
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": {CLUSTER_NAME: labels_of(config)[CLUSTER_NAME]},
            "ownerReferences": [owner_reference(IN_MEMORY_BOOTSTRAP, config, controller=True)],
        },
        "type": SECRET_TYPE,
        "data": {"value": base64.b64encode(_script(machine).encode()).decode()},
    }


def _script(machine: Object) -> str:
    """A real machine can run it, whatever brings it there; it does what a simulated one pretends to have done."""
    taint = (
        "" if is_control_plane(machine) else f"# its Node registers with the taint {UNINITIALIZED_TAINT}:NoSchedule\n"
    )
    return (
        "#!/bin/sh\n"
        f"# what {machine['metadata']['name']} runs first\n"
        f"{taint}"
        f"mkdir -p {SENTINEL_FILE.rpartition('/')[0]} && echo success > {SENTINEL_FILE}\n"
    )


def _created(config: Object) -> bool:
    return bool(((config.get("status") or {}).get("initialization") or {}).get("dataSecretCreated"))


def _report_status(config: Object, fields: Object, conditions: list[Object], reason: str, now: datetime) -> Decision:
    wanted = {**config, "status": status_with(config, fields, conditions, now)}
    return Decision(writes=whole_patch(IN_MEMORY_BOOTSTRAP, config, wanted, reason))


CONTROLLER = Controller(
    name="inmemory-bootstrap",
    kind=IN_MEMORY_BOOTSTRAP,
    reconcile=reconcile,
    watches=(
        Watches(
            MACHINE,
            referred(IN_MEMORY_BOOTSTRAP, "spec", "bootstrap", "configRef"),
            changed("metadata.deletionTimestamp"),
        ),
        Watches(CLUSTER, all_of_the_cluster(), changed("spec.paused", "status.initialization")),
        Watches(SECRET_METADATA, fields=f"type={SECRET_TYPE}"),
    ),
    predicate=changed("metadata.annotations", "metadata.labels", "metadata.ownerReferences", "spec"),
    indexes={IN_MEMORY_BOOTSTRAP: {BY_CLUSTER: cluster_label}},
    cluster_of=group,
)
