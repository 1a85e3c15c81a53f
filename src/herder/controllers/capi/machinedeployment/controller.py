"""MachineDeployments: Machines that are all alike, and replaced step by step when they should be different."""

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
from herder.api.writing import delete, object_patch, owner_reference, with_owner
from herder.controllers.capi.machine_templates import (
    REFERS,
    cluster_itself,
    definition_itself,
    external_matters,
    find_templates,
    itself_and_its_cluster,
    refers,
)
from herder.controllers.capi.machinedeployment.planning import advance, clean_up, rollout_of
from herder.controllers.capi.machinedeployment.revisions import find_revisions
from herder.controllers.capi.machinedeployment.status import Findings, told
from herder.controllers.capi.members import INDEXES, Members
from herder.controllers.capi.reports import paused_status
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Parallel, Patch, Ref, waiting
from herder.engine.runtime.handlers import Follows, Indexed, Watches, changed, labelled, owner
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
        return _remove(view, deployment, paused)
    if cluster is None:
        return waiting(f"Cluster {name} does not exist", Ref(CLUSTER, name, view.namespace))
    prepared = _prepare(deployment, cluster)
    if prepared.writes:
        return prepared
    return _keep(view, deployment, cluster, paused)


def _prepare(deployment: Object, cluster: Object) -> Decision:
    """Finalizer, owner and label, in one write."""
    meta = deployment["metadata"]
    finalizers = list(dict.fromkeys([*(meta.get("finalizers") or []), MACHINE_DEPLOYMENT_FINALIZER]))
    labels = {**labels_of(deployment), CLUSTER_NAME: cluster["metadata"]["name"]}
    wanted = {**deployment, "metadata": {**meta, "finalizers": finalizers, "labels": labels}}
    if not any(each["uid"] == cluster["metadata"]["uid"] for each in meta.get("ownerReferences") or []):
        wanted = with_owner(wanted, owner_reference(CLUSTER, cluster, controller=False))
    return Decision(writes=object_patch(MACHINE_DEPLOYMENT, deployment, wanted, "it belongs to its Cluster"))


# --- while it stays -------------------------------------------------------------------------------------------------


def _keep(view: View, deployment: Object, cluster: Object, paused: Object) -> Decision:
    spec, namespace = deployment["spec"], deployment["metadata"]["namespace"]
    templates = find_templates(view, deployment, namespace)
    claims = Decision(writes=templates.claims(cluster))
    adopted = _adopt(view, deployment)
    if adopted.writes:
        return claims + adopted  # they count from the next pass on
    sets = view.owned(MACHINE_SET, deployment["metadata"]["uid"])
    members = Members(view, sets)
    missing = "; ".join(filter(None, [templates.missing(), *templates.problems()]))
    if spec.get("replicas") is None:
        findings = Findings(paused, sets, missing_templates=missing)
        return claims + told(deployment, members, findings, view.now) + waiting("spec.replicas is not set")
    revisions = find_revisions(deployment, sets, view.now)
    may_create = templates.complete and not spec.get("paused") and not is_deleting(cluster)
    rollout = rollout_of(view, deployment, revisions, may_create=may_create)
    acts = claims + advance(rollout) + clean_up(rollout, members) + Decision(wake_at=revisions.rollout_at)
    if any(isinstance(write, Patch) and write.ref.kind == MACHINE_DEPLOYMENT for write in acts.writes):
        return acts  # which changes the object that the status would be told of
    return acts + told(deployment, members, Findings(paused, sets, revisions.current, missing), view.now)


def _adopt(view: View, deployment: Object) -> Decision:
    """MachineSets of the same cluster that the selector finds and nobody controls."""
    selector = label_selector_from_object(deployment["spec"].get("selector"))
    if not selector:
        return DONE
    mine = owner_reference(MACHINE_DEPLOYMENT, deployment, controller=True)
    found = view.select(MACHINE_SET, labels=selector, index=(ORPHANS, deployment["metadata"]["namespace"]))
    orphans = [each for each in found if each["spec"]["clusterName"] == deployment["spec"]["clusterName"]]
    reason = f"MachineDeployment {deployment['metadata']['name']} selects it"
    patches = [patch for each in orphans for patch in object_patch(MACHINE_SET, each, with_owner(each, mine), reason)]
    return Decision(writes=(Parallel(tuple(patches)),) if patches else ())


# --- when it goes ---------------------------------------------------------------------------------------------------


def _remove(view: View, deployment: Object, paused: Object) -> Decision:
    meta = deployment["metadata"]
    if MACHINE_DEPLOYMENT_FINALIZER not in (meta.get("finalizers") or []):
        return DONE
    sets = view.owned(MACHINE_SET, meta["uid"])
    if not sets:
        finalizers = [name for name in meta["finalizers"] if name != MACHINE_DEPLOYMENT_FINALIZER]
        freed = {**deployment, "metadata": {**meta, "finalizers": finalizers}}
        return Decision(writes=object_patch(MACHINE_DEPLOYMENT, deployment, freed, "all its MachineSets are gone"))
    deletes = [delete(MACHINE_SET, each, f"MachineDeployment {meta['name']} is being deleted") for each in sets]
    going = Decision(writes=(Parallel(tuple(deletes)),))
    waits = waiting(
        f"{len(sets)} MachineSets are being deleted", Ref(MACHINE_SET, sets[0]["metadata"]["name"], view.namespace)
    )
    return going + told(deployment, Members(view, sets), Findings(paused, sets), view.now) + waits


# --- what sets it off -----------------------------------------------------------------------------------------------


def _orphaned(machine_set: Object) -> Iterable[str]:
    owners = machine_set["metadata"].get("ownerReferences") or ()
    return () if any(each.get("controller") for each in owners) else (machine_set["metadata"]["namespace"],)


def _deployment_or_its_name(machine_set: Object) -> Iterable[Key]:
    """The deployment that controls the set; for an orphan the one whose name it carries."""
    find = labelled(DEPLOYMENT_NAME) if _orphaned(machine_set) else owner(MACHINE_DEPLOYMENT)
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
            labelled(DEPLOYMENT_NAME),
            changed("status.conditions", "metadata.ownerReferences", "metadata.deletionTimestamp"),
        ),
        Watches(CLUSTER, Indexed(REFERS, cluster_itself), changed("spec.paused", "metadata.deletionTimestamp")),
        Watches(DEFINITION, Indexed(REFERS, definition_itself), changed("metadata.labels")),
    ),
    predicate=changed(*_META, "metadata.finalizers", "spec"),
    indexes={
        MACHINE: INDEXES,
        MACHINE_SET: {ORPHANS: _orphaned},
        MACHINE_DEPLOYMENT: {REFERS: refers},
    },
    cluster_of=lambda deployment: cluster_key(deployment["metadata"]["namespace"], deployment["spec"]["clusterName"]),
    follows=Follows(Indexed(REFERS, itself_and_its_cluster), external_matters),
    pace=0.1,
)
