"""MachineSet reconciler: keeps the desired number of identical Machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from herder.api.capi.conditions import paused_condition
from herder.api.capi.kinds import CLUSTER, DEFINITION, GROUP, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import (
    CLUSTER_NAME,
    DEPLOYMENT_NAME,
    MACHINE_SET_FINALIZER,
    SET_NAME,
    cluster_key,
    is_deleting,
    labels_of,
)
from herder.api.events import normal, recording
from herder.api.guards import machines as guards
from herder.api.writes import object_patch, owner_reference, with_owner
from herder.controllers.capi import set_members
from herder.controllers.capi.machine_templates import (
    REFERENCES_INDEX,
    Templates,
    cluster_index_key,
    definition_index_key,
    external_keys,
    external_predicate,
    find_templates,
    referenced_keys,
)
from herder.controllers.capi.machineset import creation, deletion, remediation
from herder.controllers.capi.machineset.preflight import failed_checks
from herder.controllers.capi.machineset.propagation import PROPAGATED_INDEX, by_propagated_digest, propagate
from herder.controllers.capi.machineset.scope import BATCH, MachineSetScope, new_scope
from herder.controllers.capi.machineset.status import PREFLIGHT_FAILED, Findings, report_status
from herder.controllers.capi.replica_status import paused_status
from herder.controllers.capi.set_members import SetMembers
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Event, Parallel, Ref, Wait, waiting
from herder.engine.runtime.handlers import DynamicWatches, Indexed, Watches, changed, owner
from herder.engine.runtime.view import View

ORPHANS = "set-orphans"
OF_DEPLOYMENT = "sets-of-deployment"


def reconcile(view: View) -> Decision:
    machine_set = view.get(MACHINE_SET, view.name)
    if machine_set is None:
        return DONE
    name = machine_set["spec"]["clusterName"]
    cluster = view.get(CLUSTER, name)
    paused = paused_condition(cluster, machine_set)
    if paused["status"] == "True":
        return paused_status(MACHINE_SET, machine_set, paused, view.now)
    if is_deleting(machine_set):
        return _reconcile_delete(machine_set, view, Findings(paused))
    if cluster is None:
        return waiting(f"Cluster {name} does not exist", Ref(CLUSTER, name, view.namespace))
    prepared = _prepare(machine_set, cluster)
    if prepared.writes:
        return prepared
    return _reconcile_normal(new_scope(view, machine_set, cluster), paused)


def _prepare(machine_set: Object, cluster: Object) -> Decision:
    """Set finalizer, owner reference and labels in one write."""
    meta = machine_set["metadata"]
    finalizers = list(dict.fromkeys([*(meta.get("finalizers") or []), MACHINE_SET_FINALIZER]))
    labels = {**labels_of(machine_set), CLUSTER_NAME: cluster["metadata"]["name"]}
    wanted = {**machine_set, "metadata": {**meta, "finalizers": finalizers, "labels": labels}}
    if DEPLOYMENT_NAME not in labels:
        wanted = _prepare_standalone(wanted, cluster)
    return Decision(writes=object_patch(MACHINE_SET, machine_set, wanted, "it belongs to its Cluster"))


def _prepare_standalone(machine_set: Object, cluster: Object) -> Object:
    """Owner, selector and template labels of a set without a MachineDeployment, which would set them otherwise."""
    spec, name = machine_set["spec"], {CLUSTER_NAME: cluster["metadata"]["name"]}
    selector = {**spec["selector"], "matchLabels": {**(spec["selector"].get("matchLabels") or {}), **name}}
    meta = spec["template"].get("metadata") or {}
    template = {**spec["template"], "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **name}}}
    machine_set = {**machine_set, "spec": {**spec, "selector": selector, "template": template}}
    owners = machine_set["metadata"].get("ownerReferences") or []
    ours = (CLUSTER.kind, MACHINE_DEPLOYMENT.kind)
    if any(each["kind"] in ours and each["apiVersion"].partition("/")[0] == GROUP for each in owners):
        return machine_set
    return with_owner(machine_set, owner_reference(CLUSTER, cluster, controller=False))


# --- normal reconciliation ------------------------------------------------------------------------------------------


def _reconcile_normal(scope: MachineSetScope, paused: Object) -> Decision:
    templates = find_templates(scope.view, scope.machine_set, scope.namespace)
    claims = Decision(writes=templates.claims(scope.cluster))
    adopted = _adopt(scope)
    if adopted.writes:
        return claims + adopted  # The next pass counts the adopted Machines.
    actions, findings = _reconcile_machines(scope, templates, paused)
    return claims + _with_status(scope.view, scope.machine_set, scope.members, actions, findings)


def _with_status(
    view: View, machine_set: Object, members: SetMembers, actions: Decision, findings: Findings
) -> Decision:
    """Join the actions and the status report.

    A guard's refusal aborts the writes after it. So after a refusal the status is written first, before the refused
    action is retried.
    """
    refused = str(view.refused) if view.refused and actions.writes else ""
    report = report_status(machine_set, members, replace(findings, refused=refused), view.now)
    return report + actions if refused else actions + report


def _adopt(scope: MachineSetScope) -> Decision:
    """Adopt Machines of the same cluster that match the selector and have no controller.

    The selector may match Machines of other clusters, but the author of the MachineSet has rights on this Cluster only.
    """
    selector = label_selector_from_object(scope.machine_set["spec"]["selector"])
    if not selector:
        return DONE
    mine = owner_reference(MACHINE_SET, scope.machine_set, controller=True)
    found = scope.view.select(MACHINE, labels=selector, index=(ORPHANS, scope.namespace))
    orphans = [each for each in found if each["spec"]["clusterName"] == scope.machine_set["spec"]["clusterName"]]
    patches = [
        recording(patch, _adopted(scope.machine_set, orphan))
        for orphan in orphans[:BATCH]
        for patch in object_patch(MACHINE, orphan, with_owner(orphan, mine), f"MachineSet {scope.name} selects it")
    ]
    return Decision(writes=(Parallel(tuple(patches)),) if patches else ())


def _adopted(machine_set: Object, machine: Object) -> Event:
    return normal(MACHINE_SET, machine_set, "SuccessfulAdopt", f'Adopted Machine "{machine["metadata"]["name"]}"')


def _reconcile_machines(scope: MachineSetScope, templates: Templates, paused: Object) -> tuple[Decision, Findings]:
    """Decide one kind of action per pass; the pass that follows it sees the outcome."""
    findings = _findings(scope, templates, paused)
    actions = remediation.remediate(scope)
    if not actions.writes:
        actions += propagate(scope)
    if not actions.writes:
        actions += _scale(scope, templates, findings)
    return actions, findings


def _scale(scope: MachineSetScope, templates: Templates, findings: Findings) -> Decision:
    missing = 0 if scope.replicas is None else scope.replicas - scope.members.total
    if missing < 0:
        deletes = deletion.scale_down(scope, -missing)
        if deletes.writes:
            return deletes
    actions = creation.complete(scope, templates)
    if missing <= 0:
        return actions
    if findings.causes:
        return actions + Decision(wait=Wait("; ".join(findings.causes)))
    return actions + creation.create(scope, templates, missing)


def _findings(scope: MachineSetScope, templates: Templates, paused: Object) -> Findings:
    """Reasons why Machines cannot be created; determined only if some are missing."""
    missing_templates = templates.missing()
    if (scope.replicas or 0) <= scope.members.total:
        return Findings(paused, missing_templates)
    if blocked := list(creation.obstacles(scope, templates)):
        return Findings(paused, missing_templates, blocked, "MachineCreationFailed")
    if blocked := failed_checks(scope, "Scale up"):
        return Findings(paused, missing_templates, blocked, PREFLIGHT_FAILED)
    return Findings(paused, missing_templates, templates.problems(), _cloning_failure(templates))


def _cloning_failure(templates: Templates) -> str:
    if templates.bootstrap and templates.bootstrap.found.obj is None:
        return "BootstrapTemplateCloningFailed"
    return "" if templates.infrastructure.found.obj else "InfrastructureTemplateCloningFailed"


# --- deletion -------------------------------------------------------------------------------------------------------


def _reconcile_delete(machine_set: Object, view: View, findings: Findings) -> Decision:
    meta = machine_set["metadata"]
    if MACHINE_SET_FINALIZER not in (meta.get("finalizers") or []):
        return DONE
    members = SetMembers(view, [machine_set])
    if not members.total:
        finalizers = [name for name in meta["finalizers"] if name != MACHINE_SET_FINALIZER]
        released = {**machine_set, "metadata": {**meta, "finalizers": finalizers}}
        return Decision(writes=object_patch(MACHINE_SET, machine_set, released, "all its Machines are deleted"))
    remaining = []
    if members.count(set_members.DELETING) < members.total:
        remaining = [machine for machine in members.listed() if not is_deleting(machine)]
    actions = deletion.delete_machines(machine_set, remaining, f"MachineSet {meta['name']} is being deleted")
    waits = waiting(f"{members.total} Machines are being deleted")
    return _with_status(view, machine_set, members, actions, findings) + waits


# --- watches --------------------------------------------------------------------------------------------------------


def _orphaned(machine: Object) -> Iterable[str]:
    owners = machine["metadata"].get("ownerReferences") or ()
    return () if any(each.get("controller") for each in owners) else (machine["metadata"]["namespace"],)


def _set_or_its_name(machine: Object) -> Iterable[Key]:
    """The set that controls the Machine; for an orphan the set in its label."""
    if not _orphaned(machine):
        return owner(MACHINE_SET)(machine)
    name = labels_of(machine).get(SET_NAME)
    return (Key(machine["metadata"]["namespace"], name),) if name else ()


_META = ("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "metadata.deletionTimestamp")

CONTROLLER = Controller(
    name="machineset",
    kind=MACHINE_SET,
    reconcile=reconcile,
    watches=(
        Watches(
            MACHINE,
            _set_or_its_name,
            changed(
                *_META,
                "spec",
                *("status.conditions", "status.deprecated", "status.deletion", "status.initialization"),
                *("status.nodeRef", "status.nodeInfo"),
            ),
        ),
        Watches(MACHINE, Indexed(OF_DEPLOYMENT, remediation.by_deployment), remediation.remediation_changed),
        Watches(
            MACHINE_DEPLOYMENT,
            Indexed("controller", lambda deployment: [deployment["metadata"]["uid"]]),
            changed("metadata.annotations", "spec.replicas", "spec.remediation", "spec.rollout"),
        ),
        Watches(
            CLUSTER,
            Indexed(REFERENCES_INDEX, cluster_index_key),
            changed("spec.paused", "spec.controlPlaneRef", "metadata.deletionTimestamp"),
        ),
        Watches(DEFINITION, Indexed(REFERENCES_INDEX, definition_index_key), changed("metadata.labels")),
    ),
    predicate=changed(*_META, "metadata.finalizers", "spec"),
    indexes={
        MACHINE: {
            **guards.INDEXES,
            **set_members.INDEXES,
            **creation.INDEXES,
            **remediation.INDEXES,
            PROPAGATED_INDEX: by_propagated_digest,
            ORPHANS: _orphaned,
        },
        MACHINE_SET: {REFERENCES_INDEX: referenced_keys, OF_DEPLOYMENT: remediation.by_deployment},
    },
    cluster_of=lambda machine_set: cluster_key(
        machine_set["metadata"]["namespace"], machine_set["spec"]["clusterName"]
    ),
    dynamic_watches=DynamicWatches(Indexed(REFERENCES_INDEX, external_keys), external_predicate),
    pace=0.1,
)
