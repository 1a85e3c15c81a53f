"""Desired Machines of a MachineSet, and clones of its bootstrap and infrastructure templates."""

from __future__ import annotations

from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.api.capi.names import (
    CLONED_FROM_GROUP_KIND,
    CLONED_FROM_NAME,
    CLUSTER_NAME,
    DEPLOYMENT_NAME,
    MACHINE_FINALIZER,
    PROPAGATED,
    SET_NAME,
    labels_of,
)
from herder.api.capi.naming import set_name_label
from herder.api.references.approvals import derived_record, without_record
from herder.api.writes import owner_reference
from herder.controllers.capi.machine_templates import Template, Templates
from herder.engine.meta.kinds import GroupKind, Kind, Object

IN_PLACE = ("readinessGates", "minReadySeconds", "taints", "deletion")
"""Fields of a Machine's spec that are updated in place from the template; all others are set at creation only."""


def new_machine(machine_set: Object, templates: Templates, name: str) -> Object:
    """A Machine that references its bootstrap and infrastructure objects.

    They are created after it, so that it can own them from the start.
    """
    spec = dict(machine_set["spec"]["template"]["spec"])
    spec["infrastructureRef"] = _cloned_reference(templates.infrastructure, name)
    if templates.bootstrap:
        spec["bootstrap"] = {**spec["bootstrap"], "configRef": _cloned_reference(templates.bootstrap, name)}
    return _machine(machine_set, {"name": name, "finalizers": [MACHINE_FINALIZER]}, spec)


def updated_machine(machine_set: Object, machine: Object) -> Object:
    """Apply configuration for an existing Machine.

    It must be complete: server-side apply removes the fields that it omits.
    """
    meta, have = machine["metadata"], machine["spec"]
    spec = dict(machine_set["spec"]["template"]["spec"])
    for field in ("infrastructureRef", "version", "failureDomain"):
        spec.pop(field, None)
        if have.get(field):
            spec[field] = have[field]
    wanted, known = spec.pop("bootstrap", None) or {}, have.get("bootstrap") or {}
    # An adopted Machine keeps its bootstrap data: the author of the template may not be allowed to choose it.
    bootstrap = {name: value for name, value in wanted.items() if name != "configRef" and known.get(name) == value}
    if known.get("configRef"):
        bootstrap["configRef"] = known["configRef"]
    if bootstrap:
        spec["bootstrap"] = bootstrap
    finalizers = list(dict.fromkeys([*(meta.get("finalizers") or []), MACHINE_FINALIZER]))
    return _machine(machine_set, {"name": meta["name"], "uid": meta["uid"], "finalizers": finalizers}, spec)


def cloned(template: Template, kind: Kind, machine_set: Object, machine: Object) -> Object:
    """Clone of a template for one Machine, in the API version of the template."""
    assert template.found.obj is not None
    source = template.found.obj
    pattern = (source.get("spec") or {}).get("template") or {}
    given = pattern.get("metadata") or {}
    origin = {
        CLONED_FROM_NAME: source["metadata"]["name"],
        CLONED_FROM_GROUP_KIND: str(GroupKind(kind.group, source["kind"])),
    }
    approved = derived_record(source, lambda each: each.path.removeprefix("spec.template."))
    metadata = {
        "name": machine["metadata"]["name"],
        "namespace": machine["metadata"]["namespace"],
        "labels": {**(given.get("labels") or {}), **machine_labels(machine_set)},
        "annotations": {
            **without_record(given.get("annotations")),
            **machine_annotations(machine_set),
            **origin,
            **approved,
        },
        "ownerReferences": [owner_reference(MACHINE, machine, controller=True)],
    }
    made: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    return {**made, "spec": pattern["spec"]} if "spec" in pattern else made


def machine_labels(machine_set: Object) -> dict[str, str]:
    """Labels of the template plus the names of cluster, set and deployment."""
    labels = dict((machine_set["spec"]["template"].get("metadata") or {}).get("labels") or {})
    labels[CLUSTER_NAME] = machine_set["spec"]["clusterName"]
    labels[SET_NAME] = set_name_label(machine_set["metadata"]["name"])
    deployment = labels_of(machine_set).get(DEPLOYMENT_NAME)
    return {**labels, DEPLOYMENT_NAME: deployment} if deployment else labels


def machine_annotations(machine_set: Object) -> dict[str, str]:
    return without_record((machine_set["spec"]["template"].get("metadata") or {}).get("annotations"))


def propagated_keys(machine_set: Object) -> str:
    """Value of the annotation that records which labels and annotations come from the template, so that they can be
    removed later."""
    return f"{','.join(sorted(machine_labels(machine_set)))};{','.join(sorted(machine_annotations(machine_set)))}"


def _machine(machine_set: Object, meta: Object, spec: Object) -> Object:
    metadata = {
        **meta,
        "namespace": machine_set["metadata"]["namespace"],
        "labels": machine_labels(machine_set),
        "annotations": {**machine_annotations(machine_set), PROPAGATED: propagated_keys(machine_set)},
        "ownerReferences": [owner_reference(MACHINE_SET, machine_set, controller=True)],
    }
    named = {**spec, "clusterName": machine_set["spec"]["clusterName"]}
    return {"apiVersion": MACHINE.api_version, "kind": MACHINE.kind, "metadata": metadata, "spec": named}


def _cloned_reference(template: Template, name: str) -> Object:
    return {"apiGroup": reference_group(template.reference), "kind": template.cloned_kind, "name": name}
