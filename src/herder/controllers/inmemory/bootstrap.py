"""InMemoryBootstrapConfig reconciler: creates the bootstrap data Secret once the cluster is ready for the machine.

Nothing is written while it waits.
"""

from __future__ import annotations

import base64
from datetime import datetime

from herder.api.capi.conditions import paused_condition
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, SECRET_TYPE, UNINITIALIZED_TAINT, is_deleting, is_paused, labels_of
from herder.api.inmemory.behavior import behavior_of
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP
from herder.api.inmemory.names import SENTINEL_FILE
from herder.api.writes import owner_reference, ref
from herder.controllers.inmemory.conditions import (
    failure,
    object_and_status_patch,
    ready,
    simulated_failure,
    status_with,
)
from herder.controllers.inmemory.owners import (
    BY_CLUSTER,
    cluster_label,
    cluster_of,
    control_plane_initialized,
    created_at,
    group,
    infrastructure_provisioned,
    is_control_plane,
    objects_of_cluster,
    owner_machine,
    referenced,
    transitioned_at,
)
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import View

REFERENCE = ("spec", "bootstrap", "configRef")  # of the Machine


def reconcile(view: View) -> Decision:
    config = view.get(IN_MEMORY_BOOTSTRAP, view.name)
    if config is None or is_deleting(config):
        return DONE  # The Secret is garbage collected.
    machine = owner_machine(view, config, IN_MEMORY_BOOTSTRAP, *REFERENCE)
    if machine is None:
        return waiting("waiting for the Machine controller to set the owner reference")
    cluster = cluster_of(view, machine)
    if cluster is None:
        return waiting("its Cluster does not exist")
    if is_paused(cluster, config):
        return _report_status(config, {}, [paused_condition(cluster, config)], "report that it is paused", view.now)
    if _created(config):
        return _report_status(config, {}, [paused_condition(cluster, config)], "report that it is not paused", view.now)
    return _wait_for_cluster(config, machine, cluster, view) or _create_data(config, machine, cluster, view)


def _wait_for_cluster(config: Object, machine: Object, cluster: Object, view: View) -> Decision | None:
    if is_deleting(machine):
        return waiting("its Machine is being deleted", ref(MACHINE, machine))
    if not infrastructure_provisioned(cluster):
        return waiting("the cluster's infrastructure is not provisioned", ref(CLUSTER, cluster))
    if not is_control_plane(machine) and not control_plane_initialized(cluster):
        return waiting("the control plane is not initialized", ref(CLUSTER, cluster))
    behavior = behavior_of(config)
    condition = simulated_failure(behavior, "the bootstrap data")
    if condition is not None:
        conditions = [condition, paused_condition(cluster, config)]
        return _report_status(
            config, failure(behavior, condition), conditions, "report why there is no bootstrap data", view.now
        )
    at = _cluster_ready_at(config, machine, cluster) + behavior.bootstrap_delay
    if behavior.bootstrap_delay and at > view.now:
        return waiting("simulated delay of the bootstrap data", wake_at=at)
    return None


def _cluster_ready_at(config: Object, machine: Object, cluster: Object) -> datetime:
    needed = (
        ["InfrastructureReady"] if is_control_plane(machine) else ["InfrastructureReady", "ControlPlaneInitialized"]
    )
    return max(created_at(config), *(transitioned_at(cluster, condition) for condition in needed))


def _create_data(config: Object, machine: Object, cluster: Object, view: View) -> Decision:
    """Create the Secret, then report it; if the Secret exists, only the report was lost."""
    secret = _data_secret(config, machine)
    name = secret["metadata"]["name"]
    fields: Object = {"dataSecretName": name, "initialization": {"dataSecretCreated": True}, "ready": True}
    conditions = [ready(), paused_condition(cluster, config)]
    writes = _report_status(config, fields, conditions, "the bootstrap data is created", view.now)
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
    """A script that a real machine could run; it does what a simulated machine pretends to have done."""
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
    return Decision(writes=object_and_status_patch(IN_MEMORY_BOOTSTRAP, config, wanted, reason))


CONTROLLER = Controller(
    name="inmemory-bootstrap",
    kind=IN_MEMORY_BOOTSTRAP,
    reconcile=reconcile,
    watches=(
        Watches(
            MACHINE,
            referenced(IN_MEMORY_BOOTSTRAP, *REFERENCE),
            changed("metadata.deletionTimestamp", ".".join(REFERENCE)),
        ),
        Watches(CLUSTER, objects_of_cluster(), changed("spec.paused", "status.initialization")),
        Watches(SECRET_METADATA, fields=f"type={SECRET_TYPE}"),
    ),
    predicate=changed("metadata.annotations", "metadata.labels", "metadata.ownerReferences", "spec"),
    indexes={IN_MEMORY_BOOTSTRAP: {BY_CLUSTER: cluster_label}},
    cluster_of=group,
)
