"""Admission of MachineSet."""

from __future__ import annotations

from herder.api.capi.admission import checks, replicas
from herder.api.capi.admission.values import section, text, with_cluster_label, with_value, with_version_prefix
from herder.api.capi.names import SET_NAME
from herder.api.capi.naming import set_name_label
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import Object


def default(obj: Object, old: Object | None) -> Object:
    obj = replicas.with_replicas(with_cluster_label(obj), old)
    obj = with_own_selector(obj, SET_NAME, set_name_label(text(obj, "metadata", "name")))
    return with_version_prefix(obj, "spec", "template", "spec", "version")


def with_own_selector(obj: Object, label: str, name: str) -> Object:
    """Select the object's own Machines by its name if no selector is set and the name is known."""
    selector = section(obj, "spec", "selector")
    if not name or selector.get("matchLabels") or selector.get("matchExpressions"):
        return obj
    return with_label_everywhere(obj, label, name)


def with_label_everywhere(obj: Object, label: str, name: str) -> Object:
    """Set the label in both the selector and the template."""
    obj = with_value(obj, name, "spec", "selector", "matchLabels", label)
    return with_value(obj, name, "spec", "template", "metadata", "labels", label)


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    return validate_template(obj, old)


def validate_template(obj: Object, old: Object | None) -> list[FieldError]:
    """Validate what MachineSet and MachineDeployment have in common: the Machine template and its selector."""
    machine, labels = section(obj, "spec", "template", "spec"), section(obj, "spec", "template", "metadata", "labels")
    return [
        *checks.bootstrap(machine, "spec.template.spec"),
        *checks.selects_template(obj),
        *checks.skipped_preflight_checks(obj),
        *checks.cluster_name_unchanged(obj, old),
        *checks.same_cluster_in_template(obj),
        *replicas.problems(obj),
        *checks.version(text(machine, "version"), "spec.template.spec.version"),
        *checks.taints(machine, labels, "spec.template.spec"),
        *checks.machine_naming(obj),
        *checks.template_metadata(obj),
    ]
