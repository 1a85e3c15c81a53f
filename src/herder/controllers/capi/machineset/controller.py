"""MachineSets: so many Machines that are all alike."""

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
from herder.api.guards import machines as guards
from herder.api.writing import object_patch, owner_reference, with_owner
from herder.controllers.capi import members as machines
from herder.controllers.capi.machine_templates import (
    REFERS,
    Templates,
    cluster_itself,
    definition_itself,
    external_matters,
    find_templates,
    itself_and_its_cluster,
    refers,
)
from herder.controllers.capi.machineset import creation, deletion, remediation
from herder.controllers.capi.machineset.preflight import failed_checks
from herder.controllers.capi.machineset.propagation import IN_STEP, in_step, propagate
from herder.controllers.capi.machineset.scope import BATCH, Scope, survey
from herder.controllers.capi.machineset.status import Findings, told
from herder.controllers.capi.members import Members
from herder.controllers.capi.reports import paused_status
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Parallel, Ref, Wait, waiting
from herder.engine.runtime.handlers import Follows, Indexed, Watches, changed, owner
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
        return _remove(machine_set, view, Findings(paused))
    if cluster is None:
        return waiting(f"Cluster {name} does not exist", Ref(CLUSTER, name, view.namespace))
    prepared = _prepare(machine_set, cluster)
    if prepared.writes:
        return prepared
    return _keep(survey(view, machine_set, cluster), paused)


def _prepare(machine_set: Object, cluster: Object) -> Decision:
    """Finalizer, owner and labels, in one write."""
    meta = machine_set["metadata"]
    finalizers = list(dict.fromkeys([*(meta.get("finalizers") or []), MACHINE_SET_FINALIZER]))
    labels = {**labels_of(machine_set), CLUSTER_NAME: cluster["metadata"]["name"]}
    wanted = {**machine_set, "metadata": {**meta, "finalizers": finalizers, "labels": labels}}
    if DEPLOYMENT_NAME not in labels:
        wanted = _standing_alone(wanted, cluster)
    return Decision(writes=object_patch(MACHINE_SET, machine_set, wanted, "it belongs to its Cluster"))


def _standing_alone(machine_set: Object, cluster: Object) -> Object:
    """A set of a MachineDeployment gets all this from there."""
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


# --- while it stays -------------------------------------------------------------------------------------------------


def _keep(scope: Scope, paused: Object) -> Decision:
    templates = find_templates(scope.view, scope.machine_set, scope.namespace)
    claims = Decision(writes=templates.claims(scope.cluster))
    adopted = _adopt(scope)
    if adopted.writes:
        return claims + adopted  # they count from the next pass on
    acts, findings = _act(scope, templates, paused)
    return claims + _told_of(scope.view, scope.machine_set, scope.members, acts, findings)


def _told_of(view: View, machine_set: Object, members: Members, acts: Decision, findings: Findings) -> Decision:
    """What a guard has refused is told before it is tried again, since nothing comes after what is refused."""
    refused = str(view.refused) if view.refused and acts.writes else ""
    report = told(machine_set, members, replace(findings, refused=refused), view.now)
    return report + acts if refused else acts + report


def _adopt(scope: Scope) -> Decision:
    """Machines of the same cluster that the selector finds and nobody controls.

    The selector can be wider than the cluster, but its author needs rights on that Cluster alone.
    """
    selector = label_selector_from_object(scope.machine_set["spec"]["selector"])
    if not selector:
        return DONE
    mine = owner_reference(MACHINE_SET, scope.machine_set, controller=True)
    found = scope.view.select(MACHINE, labels=selector, index=(ORPHANS, scope.namespace))
    orphans = [each for each in found if each["spec"]["clusterName"] == scope.machine_set["spec"]["clusterName"]]
    patches = [
        patch
        for orphan in orphans[:BATCH]
        for patch in object_patch(MACHINE, orphan, with_owner(orphan, mine), f"MachineSet {scope.name} selects it")
    ]
    return Decision(writes=(Parallel(tuple(patches)),) if patches else ())


def _act(scope: Scope, templates: Templates, paused: Object) -> tuple[Decision, Findings]:
    """One kind of act at a time: the next pass, which follows each act, sees what became of it."""
    findings = _findings(scope, templates, paused)
    acts = remediation.remediate(scope)
    if not acts.writes:
        acts += propagate(scope)
    if not acts.writes:
        acts += _resize(scope, templates, findings)
    return acts, findings


def _resize(scope: Scope, templates: Templates, findings: Findings) -> Decision:
    missing = 0 if scope.replicas is None else scope.replicas - scope.members.total
    if missing < 0:
        deletes = deletion.shrink(scope, -missing)
        if deletes.writes:
            return deletes
    acts = creation.complete(scope, templates)
    if missing <= 0:
        return acts
    if findings.causes:
        return acts + Decision(wait=Wait("; ".join(findings.causes)))
    return acts + creation.create(scope, templates, missing)


def _findings(scope: Scope, templates: Templates, paused: Object) -> Findings:
    """What keeps Machines from being made; asked only where some are missing."""
    missing_templates = templates.missing()
    if (scope.replicas or 0) <= scope.members.total:
        return Findings(paused, missing_templates)
    if blocked := list(creation.obstacles(scope, templates)):
        return Findings(paused, missing_templates, blocked, "MachineCreationFailed")
    if blocked := failed_checks(scope, "Scale up"):
        return Findings(paused, missing_templates, blocked, "PreflightCheckFailed")
    return Findings(paused, missing_templates, templates.problems(), _cloning_failure(templates))


def _cloning_failure(templates: Templates) -> str:
    if templates.bootstrap and templates.bootstrap.found.obj is None:
        return "BootstrapTemplateCloningFailed"
    return "" if templates.infrastructure.found.obj else "InfrastructureTemplateCloningFailed"


# --- when it goes ---------------------------------------------------------------------------------------------------


def _remove(machine_set: Object, view: View, findings: Findings) -> Decision:
    meta = machine_set["metadata"]
    if MACHINE_SET_FINALIZER not in (meta.get("finalizers") or []):
        return DONE
    members = Members(view, [machine_set])
    if not members.total:
        finalizers = [name for name in meta["finalizers"] if name != MACHINE_SET_FINALIZER]
        freed = {**machine_set, "metadata": {**meta, "finalizers": finalizers}}
        return Decision(writes=object_patch(MACHINE_SET, machine_set, freed, "all its Machines are gone"))
    staying = []
    if members.count(machines.DELETING) < members.total:
        staying = [machine for machine in members.listed() if not is_deleting(machine)]
    acts = deletion.delete_machines(staying, f"MachineSet {meta['name']} is being deleted")
    waits = waiting(f"{members.total} Machines are being deleted")
    return _told_of(view, machine_set, members, acts, findings) + waits


# --- what sets it off -----------------------------------------------------------------------------------------------


def _orphaned(machine: Object) -> Iterable[str]:
    owners = machine["metadata"].get("ownerReferences") or ()
    return () if any(each.get("controller") for each in owners) else (machine["metadata"]["namespace"],)


def _set_or_its_name(machine: Object) -> Iterable[Key]:
    """The set that controls the Machine; for an orphan the one whose name it carries."""
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
        Watches(MACHINE, Indexed(OF_DEPLOYMENT, remediation.deployment_of), remediation.turned),
        Watches(
            MACHINE_DEPLOYMENT,
            Indexed("controller", lambda deployment: [deployment["metadata"]["uid"]]),
            changed("metadata.annotations", "spec.replicas", "spec.remediation", "spec.rollout"),
        ),
        Watches(
            CLUSTER,
            Indexed(REFERS, cluster_itself),
            changed("spec.paused", "spec.controlPlaneRef", "metadata.deletionTimestamp"),
        ),
        Watches(DEFINITION, Indexed(REFERS, definition_itself), changed("metadata.labels")),
    ),
    predicate=changed(*_META, "metadata.finalizers", "spec"),
    indexes={
        MACHINE: {
            **guards.INDEXES,
            **machines.INDEXES,
            **creation.INDEXES,
            **remediation.INDEXES,
            IN_STEP: in_step,
            ORPHANS: _orphaned,
        },
        MACHINE_SET: {REFERS: refers, OF_DEPLOYMENT: remediation.deployment_of},
    },
    cluster_of=lambda machine_set: cluster_key(
        machine_set["metadata"]["namespace"], machine_set["spec"]["clusterName"]
    ),
    follows=Follows(Indexed(REFERS, itself_and_its_cluster), external_matters),
    pace=0.1,
)
