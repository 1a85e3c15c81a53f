"""Machine reconciler: order of the phases, and what it watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from herder.api.capi.conditions import is_true
from herder.api.capi.contract import definition_name, reference_group
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import (
    DEPLOYMENT_NAME,
    MACHINE_FINALIZER,
    REVISION,
    annotations_of,
    cluster_key,
    is_deleting,
    is_paused,
    labels_of,
)
from herder.api.writes import object_patch
from herder.controllers.capi.machine import deletion
from herder.controllers.capi.machine.bootstrap import Bootstrap, bootstrap
from herder.controllers.capi.machine.infrastructure import Infrastructure, infrastructure
from herder.controllers.capi.machine.node import observe_node
from herder.controllers.capi.machine.node_sync import sync, with_sync_record
from herder.controllers.capi.machine.ownership import adopted, claim, with_finalizer
from herder.controllers.capi.machine.scope import MachineScope, new_scope, status_of
from herder.controllers.capi.machine.status import LEGACY_OWNED, OWNED, Findings, report_paused, report_status
from herder.engine.control.cache import Change, Indexer
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Parallel, Patch, Ref, Writes, waiting
from herder.engine.runtime.handlers import DynamicWatches, Indexed, Predicate, Watches, changed
from herder.engine.runtime.view import View


def reconcile(view: View) -> Decision:
    machine = view.get(MACHINE, view.name)
    if machine is None or _is_finalized(machine):
        return DONE
    cluster = view.get(CLUSTER, machine["spec"]["clusterName"])
    if cluster is None and not is_deleting(machine):
        missing = Ref(CLUSTER, machine["spec"]["clusterName"], view.namespace)
        return waiting(f"{missing} does not exist", missing)
    if not _has_finalizer(machine):
        return Decision(
            object_patch(MACHINE, machine, with_finalizer(machine), "add the finalizer for an ordered deletion")
        )
    if is_paused(cluster, machine):
        return Decision(report_paused(machine, cluster, view.now))
    return _reconcile_machine(view, new_scope(view, machine, cluster or _deleted_cluster(machine)))


def _has_finalizer(machine: Object) -> bool:
    return MACHINE_FINALIZER in (machine["metadata"].get("finalizers") or ())


def _is_finalized(machine: Object) -> bool:
    """Whether the Machine is being deleted and our finalizer is already removed."""
    return is_deleting(machine) and not _has_finalizer(machine)


def _deleted_cluster(machine: Object) -> Object:
    """Stand-in for a Cluster that no longer exists: treated like one that is being deleted."""
    name, namespace = machine["spec"]["clusterName"], machine["metadata"]["namespace"]
    going = machine["metadata"]["deletionTimestamp"]
    return {"metadata": {"name": name, "namespace": namespace, "uid": "", "deletionTimestamp": going}}


def _reconcile_machine(view: View, scope: MachineScope) -> Decision:
    """Run the phases: bootstrap, infrastructure, Node; and deletion if the Machine is being deleted.

    Changes of the Machine's spec are written first and the status in the next pass: a status is written only over the
    revision it was computed from.
    """
    bootstrap_data, host = bootstrap(scope), infrastructure(scope)
    changes = () if scope.deleting else _spec_changes(view, scope, bootstrap_data, host)
    observation = observe_node(view, scope, host.provider_id or scope.machine["spec"].get("providerID") or "")
    decision = Decision(changes + _claims(scope), observe=observation.observe)
    if observation.node is not None and not scope.deleting:
        decision += Decision(sync(view, scope, observation.node))
    if changes:
        return decision
    if not scope.deleting:
        return decision + report_status(Findings(scope, bootstrap_data, host, observation), view.now)
    step = deletion.step(
        view, scope.machine, scope.cluster, infrastructure=scope.infrastructure, bootstrap=scope.bootstrap
    )
    if step.finished:
        return step.decision
    return decision + report_status(Findings(scope, bootstrap_data, host, observation, step), view.now) + step.decision


def _spec_changes(
    view: View, scope: MachineScope, bootstrap_data: Bootstrap, host: Infrastructure
) -> tuple[Patch, ...]:
    """Patch the Machine's spec with the providers' results and its metadata with the Cluster's label and owner."""
    wanted = with_sync_record(scope, adopted(scope.machine, scope.cluster), view.setting)
    spec = {**wanted["spec"]}
    if bootstrap_data.secret:
        spec["bootstrap"] = {**(spec.get("bootstrap") or {}), "dataSecretName": bootstrap_data.secret}
    if host.provider_id:
        spec["providerID"] = host.provider_id
    if host.wanted_domain:
        spec["failureDomain"] = host.wanted_domain
    return object_patch(MACHINE, scope.machine, {**wanted, "spec": spec}, "record the results of its providers")


def _claims(scope: MachineScope) -> Writes:
    if scope.deleting:
        return ()
    patches = claim(scope, scope.bootstrap) + claim(scope, scope.infrastructure)
    return (Parallel(patches),) if patches else ()


# --- watches --------------------------------------------------------------------------------------------------------


def _changed_facts(facts_of: Callable[[Object], Any]) -> Predicate:
    """Predicate: creation, deletion, and changes of these facts."""

    def matters(change: Change) -> bool:
        return change.old is None or change.new is None or facts_of(change.old) != facts_of(change.new)

    return matters


def _machine_facts(machine: Object) -> Any:
    """Everything except the status that this controller writes."""
    meta = machine["metadata"]
    legacy = (status_of(machine, "deprecated", {}).get("v1beta1") or {}).get("conditions") or ()
    return (
        machine["spec"],
        [meta.get(part) for part in ("labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp")],
        status_of(machine, "deletion", None),
        [known for known in status_of(machine, "conditions", ()) if known["type"] not in OWNED],
        [known for known in legacy if known["type"] not in LEGACY_OWNED],
    )


def _cluster_facts(cluster: Object) -> Any:
    spec = cluster.get("spec") or {}
    return (
        spec.get("paused"),
        spec.get("controlPlaneRef"),
        status_of(cluster, "initialization", {}).get("infrastructureProvisioned"),
        is_true(cluster, "ControlPlaneInitialized"),
        is_deleting(cluster),
    )


def _template_facts(obj: Object) -> Any:
    """Facts of a MachineSet or MachineDeployment that decide whether a Machine is up to date."""
    template = obj["spec"]["template"]["spec"]
    return (
        [template.get(part) for part in ("version", "failureDomain", "bootstrap", "infrastructureRef")],
        obj["spec"].get("rollout"),
        annotations_of(obj).get(REVISION),
        labels_of(obj).get(DEPLOYMENT_NAME),
    )


def _own_name(obj: Object) -> Iterable[str]:
    meta = obj["metadata"]
    return (f"{meta['namespace']}/{meta['name']}",)


def _own_uid(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["uid"],)


def _own_reference(obj: Object) -> Iterable[str]:
    group = obj["apiVersion"].rpartition("/")[0]
    return (_reference(group, obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]),)


def _reference(group: str, kind: str, namespace: str, name: str) -> str:
    return f"{group}/{kind}/{namespace}/{name}"


def _cluster_of(machine: Object) -> str:
    return cluster_key(machine["metadata"]["namespace"], machine["spec"]["clusterName"])


def _by_deployment(machine: Object) -> Iterable[str]:
    name = labels_of(machine).get(DEPLOYMENT_NAME)
    return (f"{machine['metadata']['namespace']}/{name}",) if name else ()


def _by_reference(machine: Object) -> Iterable[str]:
    namespace = machine["metadata"]["namespace"]
    return [
        _reference(reference_group(reference), reference["kind"], namespace, reference["name"])
        for reference in _references(machine)
    ]


def _by_definition(machine: Object) -> Iterable[str]:
    return [definition_name(reference_group(reference), reference["kind"]) for reference in _references(machine)]


def _references(machine: Object) -> list[Object]:
    spec = machine["spec"]
    found = ((spec.get("bootstrap") or {}).get("configRef"), spec.get("infrastructureRef"))
    return [reference for reference in found if reference]


_INDEXES: dict[str, Indexer] = {
    "machine.cluster": lambda machine: (_cluster_of(machine),),
    "machine.deployment": _by_deployment,
    "machine.reference": _by_reference,
    "machine.definition": _by_definition,
}

CONTROLLER = Controller(
    name="machine",
    kind=MACHINE,
    reconcile=reconcile,
    predicate=_changed_facts(_machine_facts),
    watches=(
        Watches(CLUSTER, Indexed("machine.cluster", _own_name), _changed_facts(_cluster_facts)),
        Watches(MACHINE_SET, Indexed("controller", _own_uid), _changed_facts(_template_facts)),
        Watches(MACHINE_DEPLOYMENT, Indexed("machine.deployment", _own_name), _changed_facts(_template_facts)),
        Watches(
            DEFINITION,
            Indexed("machine.definition", lambda obj: (obj["metadata"]["name"],)),
            changed("metadata.labels"),
        ),
        *deletion.WATCHES,
    ),
    # Indexed by the Machine's references: its objects trigger a reconcile regardless of who owns them.
    dynamic_watches=DynamicWatches(
        Indexed("machine.reference", _own_reference),
        changed(
            "metadata.labels",
            "metadata.annotations",
            "metadata.ownerReferences",
            "metadata.deletionTimestamp",
            "spec",
            "status",
        ),
    ),
    indexes={**deletion.INDEXES, MACHINE: {**deletion.INDEXES.get(MACHINE, {}), **_INDEXES}},
    workers=16,
    cluster_of=_cluster_of,
)
