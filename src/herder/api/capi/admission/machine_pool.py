"""Admission of MachinePool."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.admission import checks, replicas
from herder.api.capi.admission.machine import NODE_DELETION_SECONDS
from herder.api.capi.admission.values import section, text, with_cluster_label, with_default, with_version_prefix
from herder.engine.meta.errors import FieldError, forbidden_field
from herder.engine.meta.kinds import Object

_MACHINE = ("spec", "template", "spec")


def default(obj: Object, old: Object | None) -> Object:
    obj = replicas.with_replicas(with_cluster_label(obj), old)
    obj = with_default(obj, NODE_DELETION_SECONDS, *_MACHINE, "deletion", "nodeDeletionTimeoutSeconds")
    return with_version_prefix(obj, *_MACHINE, "version")


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    machine = section(obj, *_MACHINE)
    return [
        *checks.bootstrap(machine, "spec.template.spec"),
        *checks.cluster_name_unchanged(obj, old),
        *checks.same_cluster_in_template(obj),
        *replicas.problems(obj),
        *checks.version(text(machine, "version"), "spec.template.spec.version"),
        *_no_taints(machine),
        *checks.template_metadata(obj),
    ]


def _no_taints(machine: Object) -> Iterator[FieldError]:
    if machine.get("taints"):
        yield forbidden_field("spec.template.spec.taints", "taints feature for MachinePools is not yet implemented")
