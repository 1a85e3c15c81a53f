"""What a MachineDeployment wants its MachineSets to be."""

from __future__ import annotations

from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import (
    CLUSTER_NAME,
    CONVERSION_DATA,
    DEPLOYMENT_NAME,
    DESIRED_REPLICAS,
    DISABLE_MACHINE_CREATE,
    LAST_APPLIED,
    MACHINE_SET_FINALIZER,
    MAX_REPLICAS,
    REVISION,
    ROLLOUT_AFTER,
    TEMPLATE_HASH,
    annotations_of,
    labels_of,
)
from herder.api.capi.naming import MAX_NAME, RANDOM_LENGTH, template_hash
from herder.api.capi.rollout import limits_of
from herder.api.references.approvals import APPROVED
from herder.api.writing import owner_reference
from herder.controllers.capi.machinedeployment.revisions import Revisions, next_revision
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View

MANAGER = "capi-machinedeployment"

REVISION_HISTORY = "machinedeployment.clusters.x-k8s.io/revision-history"
NOT_PROPAGATED = {LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS, CONVERSION_DATA, APPROVED}

ROLLED_OUT = ("version", "failureDomain", "bootstrap", "infrastructureRef")
IN_PLACE = ("readinessGates", "minReadySeconds", "taints", "deletion")


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one MachineSet from the others of its deployment; kept for life."""

    name: str
    unique: str  # value of the label that its selector has beyond the deployment's
    uid: str = ""


def new_identity(view: View, deployment: Object, revisions: Revisions) -> Identity:
    """The same for the same rollout: however often it is decided, one MachineSet comes of it."""
    meta, spec = deployment["metadata"], deployment["spec"]["template"]["spec"]
    digest = template_hash({field: spec.get(field) for field in ROLLED_OUT})
    purpose = f"{meta['uid']}/{digest}/{revisions.made_for}/{next_revision(revisions)}"
    for attempt in range(100):
        random = view.unique(f"{purpose}/{attempt}" if attempt else purpose)
        name = f"{meta['name']}-"[: MAX_NAME - RANDOM_LENGTH] + random
        if view.get(MACHINE_SET, name) is None:
            break
    return Identity(name, f"{digest}-{random}")


def identity_of(machine_set: Object) -> Identity:
    """An adopted set may lack the label: its name is unique as well."""
    meta = machine_set["metadata"]
    return Identity(meta["name"], labels_of(machine_set).get(TEMPLATE_HASH) or meta["uid"], meta["uid"])


def wanted_set(
    deployment: Object,
    existing: Object | None,
    identity: Identity,
    *,
    replicas: int,
    creates: bool,
    revision: str = "",
    made_for: str = "",
) -> Object:
    """All that the deployment says of a MachineSet: what is left out would be taken away."""
    spec, template = deployment["spec"], deployment["spec"]["template"]
    cluster = {CLUSTER_NAME: spec["clusterName"]}
    unique = {TEMPLATE_HASH: identity.unique}
    labels = {**((template.get("metadata") or {}).get("labels") or {}), **cluster, **unique}
    existing_meta = existing["metadata"] if existing else {}
    meta: Object = {
        "name": identity.name,
        "namespace": deployment["metadata"]["namespace"],
        "labels": {**labels, DEPLOYMENT_NAME: deployment["metadata"]["name"]},
        "annotations": _annotations(deployment, existing, creates, revision, made_for),
        "ownerReferences": [owner_reference(MACHINE_DEPLOYMENT, deployment, controller=True)],
        "finalizers": existing_meta.get("finalizers") or [MACHINE_SET_FINALIZER],
    }
    if identity.uid:
        meta["uid"] = identity.uid  # never makes one anew that has just gone
    given = (template.get("metadata") or {}).get("annotations")
    pattern = {"labels": labels, "annotations": given} if given else {"labels": labels}
    selector = spec["selector"]
    wanted: Object = {
        "clusterName": spec["clusterName"],
        "replicas": replicas,
        "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **unique}},
        "template": {"metadata": pattern, "spec": _machine_spec(template["spec"], existing)},
    }
    for field in ("deletion", "machineNaming"):
        if spec.get(field):
            wanted[field] = spec[field]
    return {"apiVersion": MACHINE_SET.api_version, "kind": MACHINE_SET.kind, "metadata": meta, "spec": wanted}


def _machine_spec(template: Object, existing: Object | None) -> Object:
    """A set's Machines are made as when the set was; what needs no new Machines follows the deployment."""
    if existing is None:
        return dict(template)
    kept = {field: value for field, value in existing["spec"]["template"]["spec"].items() if field not in IN_PLACE}
    return {**kept, **{field: template[field] for field in IN_PLACE if field in template}}


def _annotations(
    deployment: Object, existing: Object | None, creates: bool, revision: str, made_for: str
) -> dict[str, str]:
    limits = limits_of(deployment["spec"])
    known = annotations_of(existing) if existing else {}
    kept = {key: value for key, value in annotations_of(deployment).items() if key not in NOT_PROPAGATED}
    made = {
        DESIRED_REPLICAS: str(limits.replicas),
        MAX_REPLICAS: str(limits.ceiling),
        DISABLE_MACHINE_CREATE: "false" if creates else "true",
        REVISION: revision or known.get(REVISION, ""),
        ROLLOUT_AFTER: known.get(ROLLOUT_AFTER, "") if existing else made_for,
    }
    # A set keeps the references that it was created with, and so their approvals.
    made[APPROVED] = (known if existing else annotations_of(deployment)).get(APPROVED, "")
    return {**kept, **{key: value for key, value in made.items() if value}}
