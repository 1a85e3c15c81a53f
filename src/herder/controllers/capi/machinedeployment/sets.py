"""Desired MachineSets of a MachineDeployment."""

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
from herder.api.capi.templates import needs_rollout
from herder.api.references.approvals import APPROVED
from herder.api.writes import owner_reference
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
    """Immutable identity of a MachineSet within its deployment."""

    name: str
    unique: str  # value of the template hash label in its selector
    uid: str = ""


def new_identity(view: View, deployment: Object, revisions: Revisions) -> Identity:
    """Identity of a new set, deterministic per rollout: repeated decisions create one MachineSet."""
    meta, spec = deployment["metadata"], deployment["spec"]["template"]["spec"]
    digest = template_hash({field: spec.get(field) for field in ROLLED_OUT})
    purpose = f"{meta['uid']}/{digest}/{revisions.rollout_after}/{next_revision(revisions)}"
    for attempt in range(100):
        random = view.unique(f"{purpose}/{attempt}" if attempt else purpose)
        name = f"{meta['name']}-"[: MAX_NAME - RANDOM_LENGTH] + random
        if view.get(MACHINE_SET, name) is None:
            break
    return Identity(name, f"{digest}-{random}")


def identity_of(machine_set: Object) -> Identity:
    """An adopted set may lack the hash label; its UID is unique as well."""
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
    rollout_after: str = "",
) -> Object:
    """Apply configuration of a MachineSet.

    It must be complete: server-side apply removes the fields that it omits.
    """
    spec, template = deployment["spec"], deployment["spec"]["template"]
    cluster = {CLUSTER_NAME: spec["clusterName"]}
    unique = {TEMPLATE_HASH: identity.unique}
    labels = {**((template.get("metadata") or {}).get("labels") or {}), **cluster, **unique}
    existing_meta = existing["metadata"] if existing else {}
    meta: Object = {
        "name": identity.name,
        "namespace": deployment["metadata"]["namespace"],
        "labels": {**labels, DEPLOYMENT_NAME: deployment["metadata"]["name"]},
        "annotations": _annotations(deployment, existing, creates, revision, rollout_after),
        "ownerReferences": [owner_reference(MACHINE_DEPLOYMENT, deployment, controller=True)],
        "finalizers": existing_meta.get("finalizers") or [MACHINE_SET_FINALIZER],
    }
    if identity.uid:
        meta["uid"] = identity.uid  # The UID prevents the apply from recreating a deleted set.
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
    """The set keeps its template; only fields that can be changed in place follow the deployment."""
    if existing is None:
        return dict(template)
    kept = {field: value for field, value in existing["spec"]["template"]["spec"].items() if field not in IN_PLACE}
    return {**kept, **{field: template[field] for field in IN_PLACE if field in template}}


def _annotations(
    deployment: Object, existing: Object | None, creates: bool, revision: str, rollout_after: str
) -> dict[str, str]:
    limits = limits_of(deployment["spec"])
    known = annotations_of(existing) if existing else {}
    kept = {key: value for key, value in annotations_of(deployment).items() if key not in NOT_PROPAGATED}
    made = {
        DESIRED_REPLICAS: str(limits.replicas),
        MAX_REPLICAS: str(limits.ceiling),
        DISABLE_MACHINE_CREATE: "false" if creates else "true",
        REVISION: revision or known.get(REVISION, ""),
        ROLLOUT_AFTER: known.get(ROLLOUT_AFTER, "") if existing else rollout_after,
    }
    # A set keeps the references that it was created with, and so their approvals. Those of the deployment may be newer.
    outdated = existing is not None and needs_rollout(existing["spec"]["template"], deployment["spec"]["template"])
    made[APPROVED] = (known if outdated else annotations_of(deployment)).get(APPROVED, "")
    return {**kept, **{key: value for key, value in made.items() if value}}
