"""Admission of Machine."""

from __future__ import annotations

from herder.api.capi.admission import checks
from herder.api.capi.admission.values import section, text, with_cluster_label, with_default, with_version_prefix
from herder.api.capi.names import POOL_NAME, labels_of
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import Object

NODE_DELETION_SECONDS = 10


def default(obj: Object, old: Object | None) -> Object:
    obj = with_version_prefix(with_cluster_label(obj), "spec", "version")
    return with_default(obj, NODE_DELETION_SECONDS, "spec", "deletion", "nodeDeletionTimeoutSeconds")


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    spec = section(obj, "spec")
    return [
        *([] if _belongs_to_pool(obj) else checks.bootstrap(spec, "spec")),
        *checks.cluster_name_unchanged(obj, old),
        *checks.version(text(spec, "version"), "spec.version"),
        *checks.taints(spec, labels_of(obj), "spec"),
    ]


def _belongs_to_pool(obj: Object) -> bool:
    """Machines of a MachinePool need no bootstrap configuration of their own."""
    owners = obj["metadata"].get("ownerReferences") or []
    return POOL_NAME in labels_of(obj) or any(owner.get("kind") == "MachinePool" for owner in owners)
