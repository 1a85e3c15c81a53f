"""What each endpoint of a kind ignores in what it is sent, and so nobody comes to own through it, as FieldsV1."""

from __future__ import annotations

from herder.engine.apiserver.resources import Resource, Version
from herder.engine.meta.kinds import GroupResource
from herder.engine.patch.fieldset import FieldSet

_STATUS: FieldSet = {"f:status": {}}
_SPEC: FieldSet = {"f:spec": {}}
_ALL_BUT_STATUS: FieldSet = {"f:metadata": {}, "f:spec": {}}

# Kinds whose status endpoint leaves metadata alone too; those of all others may change labels and annotations.
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
    special = _SPECIAL.get((resource.group_resource, subresource))
    if special is not None:
        return special
    if not version.status or subresource not in ("", "status"):
        return None
    if not subresource:
        return _STATUS
    keeps = resource.custom or resource.group_resource in _STATUS_KEEPS_METADATA
    return _ALL_BUT_STATUS if keeps else _SPEC
