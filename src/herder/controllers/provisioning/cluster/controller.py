"""Reconcile provisioning Clusters, imported and provisioned.

Every provisioning Cluster has a management Cluster (`management.py`). For a provisioned one, this controller also
generates the RKEControlPlane, the Cluster API Cluster, MachineDeployments and their templates (`generation.py`). Only
this controller writes the status (`status.py`). Cluster API may be absent: imported clusters do not need it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from herder.api import observe_only, settings
from herder.api.capi.kinds import (
    CLUSTER,
    DEFINITION,
    MACHINE,
    MACHINE_DEPLOYMENT,
    MACHINE_HEALTH_CHECK,
    SECRET_METADATA,
)
from herder.api.capi.names import annotations_of, is_deleting, key_of_cluster
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.clusters import is_provisioned_here
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import MANAGEMENT_NAME, REMOVE_PROVISIONING
from herder.api.rke import names
from herder.api.rke.kinds import BEACON, BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.machines.health import INDEXES as HEALTH_INDEXES
from herder.api.rke.machines.health import lost_node
from herder.api.rke.machines.removal import BY_CLUSTER, cluster_of
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.sets import hash_of, owning_cluster
from herder.api.settings import SETTING
from herder.api.writes import object_patch, owners
from herder.controllers.provisioning.cluster.deletion import BY_OWNER, CREATED_FOR, created_for, remove
from herder.controllers.provisioning.cluster.desired import Problem
from herder.controllers.provisioning.cluster.generation import (
    GENERATED_FROM,
    bind_references,
    credentials_of,
    definitions_of,
    fill_schemas,
    generate,
    references_of,
)
from herder.controllers.provisioning.cluster.management import (
    create,
    follow_spec,
    kubeconfig,
    management_name,
    naming_problem,
)
from herder.controllers.provisioning.cluster.status import report_status
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Write, Writes
from herder.engine.runtime.handlers import DynamicWatches, Indexed, Watches, changed, itself, owner
from herder.engine.runtime.view import View

REFERENCES, DEFINITIONS, CREDENTIALS = "pool-references", "pool-definitions", "pool-credentials"
BY_NAME, ALL = "named-management-cluster", "all-provisioning-clusters"
NOT_SERVED_RETRY = timedelta(seconds=10)
"""How often a cluster looks for Cluster API while it is not installed."""


def reconcile(view: View) -> Decision:
    cluster = view.get(PROVISIONING_CLUSTER, view.name)
    if cluster is None:
        return DONE
    if is_deleting(cluster):
        return remove(view, cluster)
    if finalizers := _add_finalizers(cluster):
        return Decision(writes=finalizers)
    name = management_name(view, cluster)
    if problem := naming_problem(view, cluster, name):
        return report_status(view, cluster, None, naming_problem=problem)
    if (cluster.get("status") or {}).get("clusterName") != name:
        # Recorded before the management Cluster is created, so that a crash never leads to a second one.
        return report_status(view, cluster, None, name=name)
    management = view.get(MANAGEMENT_CLUSTER, name)
    if management is None:
        return create(view, cluster, name)
    return _reconcile_managed(view, cluster, management)


def _reconcile_managed(view: View, cluster: Object, management: Object) -> Decision:
    secret, requests = kubeconfig(view, cluster, management)
    writes: Writes = follow_spec(cluster, management)
    problem = ""
    if is_provisioned_here(cluster):
        try:
            if binding := _bind(view, cluster):
                return Decision(writes=binding)
            writes = (*writes, *generate(view, cluster))
        except Problem as found:
            problem = str(found)
    status = report_status(view, cluster, management, kubeconfig=secret, problem=problem)
    retry = DONE if view.is_served(CLUSTER) else Decision(wake_at=view.now + NOT_SERVED_RETRY)
    return Decision(writes=writes) + status + requests + retry


def _bind(view: View, cluster: Object) -> Writes:
    """Complete the Cluster itself before anything is generated from it. Raises Problem."""
    if not cluster["spec"].get("kubernetesVersion"):
        raise Problem("spec.kubernetesVersion: required, such as v1.34.1+k3s1")
    if not view.is_served(CLUSTER):
        raise Problem(f"{CLUSTER.group}: Cluster API is not installed; install it, or start the manager with its core")
    return bind_references(view, cluster) or fill_schemas(view, cluster)


def _add_finalizers(cluster: Object) -> tuple[Write, ...]:
    """One for the management Cluster, one for the machines."""
    wanted = [REMOVE_PROVISIONING, *([names.REMOVE_CLUSTER] if is_provisioned_here(cluster) else [])]
    known = cluster["metadata"].get("finalizers") or []
    missing = [each for each in wanted if each not in known]
    patched = {**cluster, "metadata": {**cluster["metadata"], "finalizers": [*known, *missing]}}
    reason = "dependent objects must be deleted first"
    return object_patch(PROVISIONING_CLUSTER, cluster, patched, reason) if missing else ()


# --- watches ----------------------------------------------------------------------------------------------------------


def _name(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["name"],)


def _place(secret: Object) -> Iterable[str]:
    return (f"{secret['metadata']['namespace']}/{secret['metadata']['name']}",)


def _reference_keys(obj: Object) -> Iterable[str]:
    """Reference keys of an object whose kind is discovered at run time."""
    meta = obj["metadata"]
    yield f"{obj['kind']} {meta.get('namespace', '')}/{meta['name']}"
    yield from (f"{GENERATED_FROM} {mark}" for mark in hash_of(obj))


def _machine_affects_status(change: Change) -> bool:
    """Whether a Machine is gone, or counts in another way than before, or is lost for another reason."""
    return change.new is None or _health_of(change.old) != _health_of(change.new)


def _health_of(machine: Object | None) -> tuple[object, ...]:
    if machine is None:
        return ()
    counted = tuple(bool(indexer(machine)) for indexer in HEALTH_INDEXES.values())
    return (*counted, lost_node(machine) if is_lost(machine) else None)


def _management_named(cluster: Object) -> Iterable[str]:
    """Index by the recorded or requested management Cluster."""
    recorded = (cluster.get("status") or {}).get("clusterName")
    name = recorded or annotations_of(cluster).get(MANAGEMENT_NAME)
    return (str(name),) if name else ()


def _all(_cluster: Object) -> Iterable[str]:
    return (ALL,)


_ADDRESS_SETTINGS = frozenset(
    {
        settings.SERVER_URL,
        settings.SERVER_CERTIFICATES,
        settings.INTERNAL_SERVER_URL,
        settings.INTERNAL_SERVER_CERTIFICATES,
    }
)


def _affects_kubeconfigs(setting: Object) -> Iterable[str]:
    return (ALL,) if setting["metadata"]["name"] in _ADDRESS_SETTINGS else ()


def _clusters_of_machine(machine: Object) -> Iterable[Key]:
    return (Key(*place.split("/", 1)) for place in cluster_of(machine))


_METADATA = ("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "metadata.deletionTimestamp")
_edited = changed("spec", *_METADATA)
_management_changed = changed(
    "spec", "status.conditions", "status.apiEndpoint", "status.info.kubernetesVersion", "status.display", *_METADATA
)  # not the number of machines

CONTROLLER = Controller(
    name="provisioning-cluster",
    kind=PROVISIONING_CLUSTER,
    reconcile=reconcile,
    predicate=changed(
        "spec", "metadata.finalizers", "status.clusterName", "status.clientSecretName", "status.ready", *_METADATA
    ),
    watches=(
        Watches(CONTROL_PLANE, itself, changed("spec", "status.conditions", "status.observedGeneration", *_METADATA)),
        Watches(CLUSTER, itself, _edited, optional=True),
        Watches(RKE_CLUSTER, itself, _edited),
        Watches(BEACON, itself, _edited),
        Watches(BOOTSTRAP_TEMPLATE, owning_cluster, _edited),
        Watches(MACHINE_DEPLOYMENT, owning_cluster, _edited, optional=True),
        Watches(MACHINE_HEALTH_CHECK, owning_cluster, _edited, optional=True),
        Watches(MACHINE, _clusters_of_machine, _machine_affects_status, optional=True),
        Watches(MANAGEMENT_CLUSTER, Indexed(BY_NAME, _name), _management_changed),
        Watches(SECRET_METADATA, Indexed(CREDENTIALS, _place), changed()),
        Watches(SECRET_METADATA, owner(PROVISIONING_CLUSTER), changed()),
        Watches(ROLE_BINDING),
        Watches(SETTING, Indexed(ALL, _affects_kubeconfigs), changed("value")),
        Watches(DEFINITION, Indexed(DEFINITIONS, _name), changed()),
    ),
    indexes={
        PROVISIONING_CLUSTER: {
            REFERENCES: references_of,
            DEFINITIONS: definitions_of,
            CREDENTIALS: credentials_of,
            BY_NAME: _management_named,
            ALL: _all,
            **observe_only.INDEXES,
        },
        MANAGEMENT_CLUSTER: {CREATED_FOR: created_for, **observe_only.INDEXES},
        CLUSTER: {**observe_only.INDEXES},
        ROLE_BINDING: {BY_OWNER: owners},
        MACHINE: {BY_CLUSTER: cluster_of, **HEALTH_INDEXES},
        **{
            kind: {GENERATED_FROM: hash_of}
            for kind in (RKE_CLUSTER, CONTROL_PLANE, BOOTSTRAP_TEMPLATE, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK)
        },
    },
    dynamic_watches=DynamicWatches(Indexed(REFERENCES, _reference_keys)),
    cluster_of=key_of_cluster,
)
