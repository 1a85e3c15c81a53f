"""Desired Machines of an in-memory control plane, and whether existing ones are up to date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from herder.api.capi.conditions import Condition, condition
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import (
    CLONED_FROM_GROUP_KIND,
    CLONED_FROM_NAME,
    CLUSTER_NAME,
    CONTROL_PLANE,
    CONTROL_PLANE_NAME,
    MACHINE_FINALIZER,
    annotations_of,
    labels_of,
)
from herder.api.capi.naming import set_name_label
from herder.api.inmemory.kinds import (
    IN_MEMORY_BOOTSTRAP,
    IN_MEMORY_CONTROL_PLANE,
    IN_MEMORY_MACHINE,
    IN_MEMORY_MACHINE_TEMPLATE,
)
from herder.api.references.approvals import without_record
from herder.api.writes import owner_reference
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch

_FROM_TEMPLATE = ("readinessGates", "deletion", "minReadySeconds", "taints")


def wanted_version(plane: Object) -> str:
    """Version with the `v` prefix that the Machine webhook adds."""
    version: str = plane["spec"]["version"]
    return version if version.startswith("v") else f"v{version}"


def template_name(plane: Object) -> str:
    name: str = plane["spec"]["machineTemplate"]["spec"]["infrastructureRef"]["name"]
    return name


def new_machine(plane: Object, cluster: Object, name: str, domain: str) -> Object:
    spec: Object = {
        "clusterName": cluster["metadata"]["name"],
        "version": wanted_version(plane),
        "bootstrap": {"configRef": _reference(IN_MEMORY_BOOTSTRAP, name)},
        "infrastructureRef": _reference(IN_MEMORY_MACHINE, name),
    }
    if domain:
        spec["failureDomain"] = domain
    return _machine(plane, cluster, name, spec)


def updated_machine(plane: Object, cluster: Object, machine: Object) -> Object:
    """Apply configuration of an existing Machine: in-place fields follow the template, the rest stays.

    The UID prevents the apply from recreating a deleted Machine.
    """
    stays = ("clusterName", "version", "bootstrap", "infrastructureRef", "failureDomain")
    spec = {name: machine["spec"][name] for name in stays if name in machine["spec"]}
    spec["bootstrap"] = {"configRef": machine["spec"]["bootstrap"]["configRef"]}
    updated = _machine(plane, cluster, machine["metadata"]["name"], spec)
    return {**updated, "metadata": {**updated["metadata"], "uid": machine["metadata"]["uid"]}}


def has_template_values(machine: Object, updated: Object) -> bool:
    """Whether the Machine has all desired values; values to be removed are not detected here."""
    return bool(
        updated["metadata"]["labels"].items() <= labels_of(machine).items()
        and updated["metadata"]["annotations"].items() <= annotations_of(machine).items()
        and apply_merge_patch(machine["spec"], updated["spec"]) == machine["spec"]
    )


def _machine(plane: Object, cluster: Object, name: str, spec: Object) -> Object:
    labels, annotations = template_metadata(plane)
    template = plane["spec"]["machineTemplate"]["spec"]
    own = {
        CLUSTER_NAME: cluster["metadata"]["name"],
        CONTROL_PLANE: "",
        CONTROL_PLANE_NAME: set_name_label(plane["metadata"]["name"]),
    }
    return {
        "apiVersion": MACHINE.api_version,
        "kind": MACHINE.kind,
        "metadata": {
            "name": name,
            "namespace": plane["metadata"]["namespace"],
            "labels": labels | own,
            "annotations": annotations,
            "finalizers": [MACHINE_FINALIZER],
            "ownerReferences": [owner_reference(IN_MEMORY_CONTROL_PLANE, plane, controller=True)],
        },
        "spec": spec | {field: template[field] for field in _FROM_TEMPLATE if field in template},
    }


def bootstrap_config(plane: Object, machine: Object) -> Object:
    return _part(IN_MEMORY_BOOTSTRAP, plane, machine, {}, {}, {})


def infra_machine(plane: Object, machine: Object, template: Object) -> Object:
    cloned_from = {
        CLONED_FROM_NAME: template["metadata"]["name"],
        CLONED_FROM_GROUP_KIND: str(IN_MEMORY_MACHINE_TEMPLATE.group_kind),
    }
    inner = template["spec"]["template"]
    metadata = inner.get("metadata") or {}
    annotations = without_record(metadata.get("annotations")) | cloned_from
    return _part(IN_MEMORY_MACHINE, plane, machine, inner.get("spec") or {}, metadata.get("labels") or {}, annotations)


def _part(
    kind: Kind, plane: Object, machine: Object, spec: Object, labels: dict[str, str], annotations: dict[str, str]
) -> Object:
    """An object that the Machine owns from the start."""
    template_labels, template_annotations = template_metadata(plane)
    own = {name: labels_of(machine)[name] for name in (CLUSTER_NAME, CONTROL_PLANE, CONTROL_PLANE_NAME)}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": machine["metadata"]["name"],
            "namespace": machine["metadata"]["namespace"],
            "labels": labels | template_labels | own,
            "annotations": template_annotations | annotations,
            "ownerReferences": [owner_reference(MACHINE, machine, controller=True)],
        },
        "spec": spec,
    }


def template_metadata(plane: Object) -> tuple[dict[str, str], dict[str, str]]:
    metadata = plane["spec"]["machineTemplate"].get("metadata") or {}
    return metadata.get("labels") or {}, without_record(metadata.get("annotations"))


def with_template_metadata(plane: Object, part: Object) -> Object:
    """The object with the template's current labels and annotations; none are removed."""
    labels, annotations = template_metadata(plane)
    meta = part["metadata"]
    wanted = {**meta, "labels": labels_of(part) | {k: v for k, v in labels.items() if k not in _OWN_LABELS}}
    if annotations:
        wanted["annotations"] = annotations_of(part) | annotations
    return {**part, "metadata": wanted}


_OWN_LABELS = (CLUSTER_NAME, CONTROL_PLANE, CONTROL_PLANE_NAME)


def up_to_date(plane: Object, machine: Object, infra: Object | None, now: datetime) -> Condition:
    """UpToDate condition of a Machine."""
    reasons = []
    if machine["spec"].get("version") != wanted_version(plane):
        reasons.append(f"Version {machine['spec'].get('version')}, {wanted_version(plane)} required")
    if infra is not None and annotations_of(infra).get(CLONED_FROM_NAME) != template_name(plane):
        reasons.append(f"{IN_MEMORY_MACHINE.kind} is not up-to-date")
    after = rollout_after(plane)
    if after is not None and datetime.fromisoformat(machine["metadata"]["creationTimestamp"]) < after <= now:
        reasons.append(f"{IN_MEMORY_CONTROL_PLANE.kind} spec.rollout.after expired")
    if reasons:
        return condition("UpToDate", "False", "NotUpToDate", "\n".join(f"* {reason}" for reason in reasons))
    return condition("UpToDate", "True", "UpToDate")


def rollout_after(plane: Object) -> datetime | None:
    after = (plane["spec"].get("rollout") or {}).get("after")
    return datetime.fromisoformat(after) if after else None


def failure_domain(cluster: Object, machines: Sequence[Object]) -> str:
    """The control plane failure domain with the fewest Machines; empty if there is none."""
    domains = (cluster.get("status") or {}).get("failureDomains") or []
    good = [domain["name"] for domain in domains if domain.get("controlPlane")]
    taken = Counter(machine["spec"].get("failureDomain") for machine in machines)
    return min(good, key=lambda name: (taken[name], name), default="")


def _reference(kind: Kind, name: str) -> Object:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}
