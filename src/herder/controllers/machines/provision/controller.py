"""Reconciler for the machine kinds of node drivers; one controller per kind, all alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, NAMESPACE, POD, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, is_paused, labels_of
from herder.api.machines import archive, hosts, names
from herder.api.machines.credentials import credential_key
from herder.api.machines.drivers import known
from herder.api.machines.jobs import JOB
from herder.api.machines.kinds import NODE_DRIVER, driver_of, kinds_of
from herder.api.machines.state import STATE_FINALIZER
from herder.api.writes import object_patch, ref
from herder.controllers.machines.provision import conditions
from herder.controllers.machines.provision.creation import create
from herder.controllers.machines.provision.preparation import bootstrap_secret
from herder.controllers.machines.provision.removal import FINALIZER, release_orphan, remove
from herder.controllers.machines.provision.scope import (
    BY_MACHINE,
    BY_MACHINE_SET,
    ProvisionScope,
    failed_machine_set,
    machine_of_pod,
    new_scope,
)
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Patch, waiting
from herder.engine.runtime.dynamic import DynamicController
from herder.engine.runtime.handlers import Indexed, MapFunc, Watches, changed, owner
from herder.engine.runtime.view import View

BY_CLUSTER, BY_DEPENDENCY = "cluster", "need"


def reconcile(kind: Kind, manager_env: Mapping[str, str], view: View) -> Decision:
    infra = view.get(kind, view.name)
    if infra is None:
        return _without_machine(kind, view)
    scope = new_scope(view, kind, infra)
    if is_paused(scope.cluster, infra):
        return waiting("reconciliation is paused", ref(CLUSTER, scope.cluster) if scope.cluster else None)
    if is_deleting(infra):
        return remove(scope, manager_env)
    if scope.machine is None:
        return waiting("waiting for the Machine controller to set the owner reference")
    if scope.cluster is None:
        return waiting(f"Cluster {scope.machine['spec']['clusterName']} does not exist")
    if claimed := _claim(scope):
        return Decision(writes=claimed)
    if scope.job is None and not conditions.has_result(infra):
        return _wait_for_prerequisites(scope.machine, scope.cluster) or create(scope, manager_env)
    return create(scope, manager_env)


def _without_machine(kind: Kind, view: View) -> Decision:
    state = view.get(SECRET_METADATA, names.state_secret(view.name))
    if state is None or STATE_FINALIZER not in (state["metadata"].get("finalizers") or ()):
        return DONE
    return release_orphan(view, state) if labels_of(state).get(names.INFRA_KIND_LABEL) == kind.kind else DONE


def _claim(scope: ProvisionScope) -> tuple[Patch, ...]:
    """Add the finalizer, so that the machine is removed from its provider before the object is deleted."""
    meta = scope.infra["metadata"]
    others = [name for name in meta.get("finalizers") or () if name != FINALIZER]
    finalizers = meta["finalizers"] if FINALIZER in (meta.get("finalizers") or ()) else [*others, FINALIZER]
    labels = {**labels_of(scope.infra), names.MACHINE_NAME_LABEL: names.safe_concat(scope.machine_name)}
    wanted = {**scope.infra, "metadata": {**meta, "finalizers": finalizers, "labels": labels}}
    return object_patch(scope.kind, scope.infra, wanted, "add the finalizer for an ordered removal")


def _wait_for_prerequisites(machine: Object, cluster: Object) -> Decision | None:
    if is_deleting(machine):
        return waiting("its Machine is being deleted", ref(MACHINE, machine))
    provisioned = ((cluster.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned")
    if not provisioned:
        return waiting("the cluster's infrastructure is not provisioned", ref(CLUSTER, cluster))
    if not bootstrap_secret(machine):
        return waiting("the Machine has no bootstrap data yet", ref(MACHINE, machine))
    return None


# --- watches --------------------------------------------------------------------------------------------------------


def _of_cluster(infra: Object) -> Iterable[str]:
    name = labels_of(infra).get(CLUSTER_NAME)
    return (cluster_key(infra["metadata"]["namespace"], name),) if name else ()


def _dependencies(infra: Object) -> Iterable[str]:
    """Index keys of what a Job for this machine needs; none once creation has succeeded or failed."""
    if conditions.has_result(infra) and not is_deleting(infra):
        return
    yield _secret(hosts.HOST_NAMESPACE, hosts.HOST_SECRET)
    yield _driver(driver_of(infra["kind"]))
    if (place := credential_key(infra)) is not None:
        yield _secret(*place)


def _secret(namespace: str, name: str) -> str:
    return f"Secret {namespace}/{name}"


def _secret_key(secret: Object) -> Iterable[str]:
    return (_secret(secret["metadata"]["namespace"], secret["metadata"]["name"]),)


def _driver(name: str) -> str:
    return f"NodeDriver {name}"


def _driver_key(node_driver: Object) -> Iterable[str]:
    return (_driver(known.driver_name(node_driver)),)


def _own_key(obj: Object) -> Iterable[str]:
    return (cluster_key(obj["metadata"]["namespace"], obj["metadata"]["name"]),)


def _infrastructure(kind: Kind) -> MapFunc:
    def keys(machine: Object) -> Iterable[Key]:
        reference = (machine.get("spec") or {}).get("infrastructureRef") or {}
        if (reference.get("apiGroup"), reference.get("kind")) == kind.group_kind:
            yield Key(machine["metadata"]["namespace"], reference["name"])

    return keys


def _labelled(kind: Kind) -> MapFunc:
    """The machine in the labels of a pod or state Secret."""

    def keys(obj: Object) -> Iterable[Key]:
        labels = labels_of(obj)
        if labels.get(names.INFRA_KIND_LABEL) == kind.kind and labels.get(names.INFRA_NAME_LABEL):
            yield Key(obj["metadata"]["namespace"], labels[names.INFRA_NAME_LABEL])

    return keys


def _archived(kind: Kind) -> MapFunc:
    def keys(log: Object) -> Iterable[Key]:
        annotations = annotations_of(log)
        if annotations.get(archive.KIND_OF) == kind.kind:
            yield Key(annotations.get(archive.NAMESPACE_OF, ""), annotations.get(archive.NAME_OF, ""))

    return keys


def controller(kind: Kind, manager_env: Mapping[str, str]) -> Controller:
    return Controller(
        name=f"machine-provision-{kind.plural}",
        kind=kind,
        reconcile=partial(reconcile, kind, manager_env),
        watches=(
            Watches(
                MACHINE,
                _infrastructure(kind),
                changed("spec.bootstrap", "metadata.ownerReferences", "metadata.deletionTimestamp"),
            ),
            Watches(
                CLUSTER,
                Indexed(BY_CLUSTER, _own_key),
                changed("spec.paused", "status.initialization.infrastructureProvisioned", "metadata.deletionTimestamp"),
            ),
            Watches(JOB, owner(kind), changed("status.conditions"), labels=names.INFRA_NAME_LABEL),
            Watches(POD, _labelled(kind), changed("status"), labels=names.INFRA_NAME_LABEL),
            Watches(SECRET_METADATA, _labelled(kind), changed("metadata.finalizers", "metadata.deletionTimestamp")),
            Watches(
                SECRET_METADATA,
                Indexed(
                    BY_DEPENDENCY,
                    lambda secret: (_secret(secret["metadata"]["namespace"], secret["metadata"]["name"]),),
                ),
            ),
            Watches(NODE_DRIVER, Indexed(BY_DEPENDENCY, lambda driver: (_driver(known.driver_name(driver)),))),
            Watches(NAMESPACE.metadata_only()),
            Watches(
                archive.CONFIG_MAP_METADATA, _archived(kind), changed("metadata.annotations"), labels=archive.SELECTOR
            ),
        ),
        predicate=changed(
            "metadata.annotations",
            "metadata.labels",
            "metadata.ownerReferences",
            "metadata.finalizers",
            "metadata.deletionTimestamp",
            "spec",
            "status.conditions",
        ),
        indexes={
            kind: {BY_CLUSTER: _of_cluster, BY_DEPENDENCY: _dependencies},
            POD: {BY_MACHINE: machine_of_pod},
            archive.CONFIG_MAP_METADATA: {BY_MACHINE_SET: failed_machine_set},
        },
        workers=16,
        cluster_of=lambda infra: next(iter(_of_cluster(infra)), ""),
    )


def _kind_of(definition: Object) -> Kind | None:
    driver = labels_of(definition).get(known.DRIVER_LABEL)
    machine = kinds_of(driver).machine if driver else None
    name = f"{machine.plural}.{machine.group}" if machine else ""
    return machine if definition["metadata"]["name"] == name else None


def dynamic_controller(manager_env: Mapping[str, str]) -> DynamicController:
    """`manager_env` is the manager's environment, from which Jobs may inherit variables that a setting lists."""
    return DynamicController("machine-provision", DEFINITION, _kind_of, lambda kind: controller(kind, manager_env))


DYNAMIC_CONTROLLER = dynamic_controller({})
