"""MachineDeployment reconciler: rolls out template changes through MachineSets."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.conditions import paused_condition
from herder.api.capi.kinds import CLUSTER, DEFINITION, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import (
    CLUSTER_NAME,
    DEPLOYMENT_NAME,
    MACHINE_DEPLOYMENT_FINALIZER,
    cluster_key,
    is_deleting,
    labels_of,
)
from herder.api.events import normal, recording
from herder.api.writes import object_patch, owner_reference, with_owner
from herder.controllers.capi.machine_templates import (
    REFERENCES_INDEX,
    cluster_index_key,
    definition_index_key,
    external_keys,
    external_predicate,
    find_templates,
    referenced_keys,
)
from herder.controllers.capi.machinedeployment.revisions import find_revisions
from herder.controllers.capi.machinedeployment.rollout import advance, clean_up, deleted, rollout_of
from herder.controllers.capi.machinedeployment.status import Findings, report_status
from herder.controllers.capi.replica_status import paused_status
from herder.controllers.capi.set_members import INDEXES, SetMembers, sets_of
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Event, Parallel, Patch, Ref, waiting
from herder.engine.runtime.handlers import DynamicWatches, Indexed, Watches, changed, named_by_label, owner
from herder.engine.runtime.view import View

ORPHANS = "deployment-orphans"


def reconcile(view: View) -> Decision:
    deployment = view.get(MACHINE_DEPLOYMENT, view.name)
    if deployment is None:
        return DONE
    name = deployment["spec"]["clusterName"]
    cluster = view.get(CLUSTER, name)
    paused = paused_condition(cluster, deployment)
    if paused["status"] == "True":
        return paused_status(MACHINE_DEPLOYMENT, deployment, paused, view.now)
    if is_deleting(deployment):
        return _reconcile_delete(view, deployment, paused)
    if cluster is None:
        return waiting(f"Cluster {name} does not exist", Ref(CLUSTER, name, view.namespace))
    prepared = _prepare(deployment, cluster)
    if prepared.writes:
        return prepared
    return _reconcile_normal(view, deployment, cluster, paused)


def _prepare(deployment: Object, cluster: Object) -> Decision:
    """Set finalizer, owner reference and label in one write."""
    meta = deployment["metadata"]
    finalizers = list(dict.fromkeys([*(meta.get("finalizers") or []), MACHINE_DEPLOYMENT_FINALIZER]))
    labels = {**labels_of(deployment), CLUSTER_NAME: cluster["metadata"]["name"]}
    wanted = {**deployment, "metadata": {**meta, "finalizers": finalizers, "labels": labels}}
    if not any(each["uid"] == cluster["metadata"]["uid"] for each in meta.get("ownerReferences") or []):
        wanted = with_owner(wanted, owner_reference(CLUSTER, cluster, controller=False))
    return Decision(writes=object_patch(MACHINE_DEPLOYMENT, deployment, wanted, "it belongs to its Cluster"))


# --- normal reconciliation ------------------------------------------------------------------------------------------


def _reconcile_normal(view: View, deployment: Object, cluster: Object, paused: Object) -> Decision:
    spec, namespace = deployment["spec"], deployment["metadata"]["namespace"]
    templates = find_templates(view, deployment, namespace)
    claims = Decision(writes=templates.claims(cluster))
    adopted = _adopt(view, deployment)
    if adopted.writes:
        return claims + adopted  # The next pass counts the adopted sets.
    sets = sets_of(view, deployment)
    members = SetMembers(view, sets)
    missing = "; ".join(filter(None, [templates.missing(), *templates.problems()]))
    if spec.get("replicas") is None:
        findings = Findings(paused, sets, missing_templates=missing)
        return claims + report_status(deployment, members, findings, view.now) + waiting("spec.replicas is not set")
    revisions = find_revisions(deployment, sets, view.now)
    may_create = templates.complete and not spec.get("paused") and not is_deleting(cluster)
    rollout = rollout_of(view, deployment, revisions, may_create=may_create)
    actions = claims + advance(rollout) + clean_up(rollout, members) + Decision(wake_at=revisions.rollout_at)
    if any(isinstance(write, Patch) and write.ref.kind == MACHINE_DEPLOYMENT for write in actions.writes):
        return actions  # The next pass reports the status of the changed object.
    return actions + report_status(deployment, members, Findings(paused, sets, revisions.current, missing), view.now)


def _adopt(view: View, deployment: Object) -> Decision:
    """Adopt MachineSets of the same cluster that match the selector and have no controller."""
    selector = label_selector_from_object(deployment["spec"].get("selector"))
    if not selector:
        return DONE
    mine = owner_reference(MACHINE_DEPLOYMENT, deployment, controller=True)
    found = view.select(MACHINE_SET, labels=selector, index=(ORPHANS, deployment["metadata"]["namespace"]))
    orphans = [each for each in found if each["spec"]["clusterName"] == deployment["spec"]["clusterName"]]
    reason = f"MachineDeployment {deployment['metadata']['name']} selects it"
    patches = [
        recording(patch, _adopted(deployment, each))
        for each in orphans
        for patch in object_patch(MACHINE_SET, each, with_owner(each, mine), reason)
    ]
    return Decision(writes=(Parallel(tuple(patches)),) if patches else ())


def _adopted(deployment: Object, machine_set: Object) -> Event:
    message = f'Adopted MachineSet "{machine_set["metadata"]["name"]}"'
    return normal(MACHINE_DEPLOYMENT, deployment, "SuccessfulAdopt", message)


# --- deletion -------------------------------------------------------------------------------------------------------


def _reconcile_delete(view: View, deployment: Object, paused: Object) -> Decision:
    meta = deployment["metadata"]
    if MACHINE_DEPLOYMENT_FINALIZER not in (meta.get("finalizers") or []):
        return DONE
    sets = sets_of(view, deployment)
    if not sets:
        finalizers = [name for name in meta["finalizers"] if name != MACHINE_DEPLOYMENT_FINALIZER]
        released = {**deployment, "metadata": {**meta, "finalizers": finalizers}}
        return Decision(
            writes=object_patch(MACHINE_DEPLOYMENT, deployment, released, "all its MachineSets are deleted")
        )
    deletes = [deleted(deployment, each, f"MachineDeployment {meta['name']} is being deleted") for each in sets]
    going = Decision(writes=(Parallel(tuple(deletes)),))
    waits = waiting(
        f"{len(sets)} MachineSets are being deleted", Ref(MACHINE_SET, sets[0]["metadata"]["name"], view.namespace)
    )
    return going + report_status(deployment, SetMembers(view, sets), Findings(paused, sets), view.now) + waits


# --- watches --------------------------------------------------------------------------------------------------------


def _orphaned(machine_set: Object) -> Iterable[str]:
    owners = machine_set["metadata"].get("ownerReferences") or ()
    return () if any(each.get("controller") for each in owners) else (machine_set["metadata"]["namespace"],)


def _deployment_or_its_name(machine_set: Object) -> Iterable[Key]:
    """The deployment that controls the set; for an orphan the deployment in its label."""
    find = named_by_label(DEPLOYMENT_NAME) if _orphaned(machine_set) else owner(MACHINE_DEPLOYMENT)
    return find(machine_set)


_META = ("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "metadata.deletionTimestamp")

CONTROLLER = Controller(
    name="machinedeployment",
    kind=MACHINE_DEPLOYMENT,
    reconcile=reconcile,
    watches=(
        Watches(MACHINE_SET, _deployment_or_its_name, changed(*_META, "spec", "status")),
        Watches(
            MACHINE,
            named_by_label(DEPLOYMENT_NAME),
            changed("status.conditions", "metadata.ownerReferences", "metadata.deletionTimestamp"),
        ),
        Watches(
            CLUSTER, Indexed(REFERENCES_INDEX, cluster_index_key), changed("spec.paused", "metadata.deletionTimestamp")
        ),
        Watches(DEFINITION, Indexed(REFERENCES_INDEX, definition_index_key), changed("metadata.labels")),
    ),
    predicate=changed(*_META, "metadata.finalizers", "spec"),
    indexes={
        MACHINE: INDEXES,
        MACHINE_SET: {ORPHANS: _orphaned},
        MACHINE_DEPLOYMENT: {REFERENCES_INDEX: referenced_keys},
    },
    cluster_of=lambda deployment: cluster_key(deployment["metadata"]["namespace"], deployment["spec"]["clusterName"]),
    dynamic_watches=DynamicWatches(Indexed(REFERENCES_INDEX, external_keys), external_predicate),
    pace=0.1,
)
