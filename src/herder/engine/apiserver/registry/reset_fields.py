"""Fields that an endpoint resets, as FieldsV1: a manager never becomes the owner of them through that endpoint."""

from __future__ import annotations

from herder.engine.apiserver.registry.resources import Resource, Version
from herder.engine.meta.kinds import GroupResource
from herder.engine.patch.fieldpath.fieldset import FieldSet

_STATUS: FieldSet = {"f:status": {}}
_SPEC: FieldSet = {"f:spec": {}}
_ALL_BUT_STATUS: FieldSet = {"f:metadata": {}, "f:spec": {}}

# Kinds whose status endpoint does not change metadata either; that of all others may change labels and annotations.
_STATUS_KEEPS_METADATA = frozenset(
    GroupResource(group, plural)
    for group, plural in (
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("apiregistration.k8s.io", "apiservices"),
        ("flowcontrol.apiserver.k8s.io", "flowschemas"),
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
        ("internal.apiserver.k8s.io", "storageversions"),
        ("networking.k8s.io", "servicecidrs"),
        ("resource.k8s.io", "devicetaintrules"),
        ("resource.k8s.io", "resourceclaims"),
        ("storage.k8s.io", "volumeattachments"),
        ("storagemigration.k8s.io", "storageversionmigrations"),
    )
)

_REQUESTS = GroupResource("certificates.k8s.io", "certificatesigningrequests")
_SPECIAL: dict[tuple[GroupResource, str], FieldSet] = {
    (GroupResource("", "pods"), "status"): {
        "f:metadata": {"f:deletionTimestamp": {}, "f:ownerReferences": {}},
        "f:spec": {},
    },
    (GroupResource("apps", "deployments"), "status"): {"f:metadata": {"f:labels": {}}, "f:spec": {}},
    (GroupResource("", "namespaces"), "finalize"): _STATUS,
    (_REQUESTS, ""): {"f:spec": {}, "f:status": {}},
    (_REQUESTS, "status"): {"f:spec": {}, "f:status": {"f:conditions": {}}},
    (_REQUESTS, "approval"): {"f:spec": {}, "f:status": {"f:certificate": {}}},
}


def reset_fields(resource: Resource, version: Version, subresource: str) -> FieldSet | None:
    """Return the reset fields of an endpoint (GetResetFields in Kubernetes); None if there are none."""
    special = _SPECIAL.get((resource.group_resource, subresource))
    if special is not None:
        return special
    if not version.status or subresource not in ("", "status"):
        return None
    if not subresource:
        return _STATUS
    keeps_metadata = resource.custom or resource.group_resource in _STATUS_KEEPS_METADATA
    return _ALL_BUT_STATUS if keeps_metadata else _SPEC
