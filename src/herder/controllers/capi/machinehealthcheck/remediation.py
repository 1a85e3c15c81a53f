"""Remediate a Machine through its owner, or through an external remediation provider."""

from __future__ import annotations

from dataclasses import dataclass

from herder.api.capi.conditions import Condition, condition, find, find_legacy, is_true, legacy, merged, merged_legacy
from herder.api.capi.contract import definition_name, external_kind
from herder.api.capi.kinds import DEFINITION, MACHINE
from herder.api.capi.names import CLONED_FROM_GROUP_KIND, CLONED_FROM_NAME, CLUSTER_NAME
from herder.api.references.approvals import derived_record, problem, without_record
from herder.api.references.catalogue import Target
from herder.api.writes import owner_reference, status_patch
from herder.controllers.capi.machinehealthcheck.health import Health
from herder.engine.meta.kinds import GroupKind, Kind, Object
from herder.engine.runtime.decision import Create, Patch
from herder.engine.runtime.view import View

OWNER_REMEDIATED = "OwnerRemediated"
EXTERNALLY_REMEDIATED = "ExternallyRemediated"
TEMPLATE = "Template"


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """Conditions for both lists (v1beta2 and v1beta1)."""

    conditions: tuple[Condition, ...] = ()
    legacy: tuple[Condition, ...] = ()

    def __add__(self, other: ConditionReport) -> ConditionReport:
        return ConditionReport(self.conditions + other.conditions, self.legacy + other.legacy)

    @classmethod
    def of(cls, health: Health) -> ConditionReport:
        return cls(
            (health.condition,) if health.condition else (),
            (health.legacy_condition,) if health.legacy_condition else (),
        )


def patch_machine(
    view: View, machine: Object, report: ConditionReport, reason: str, *, debounce: float = 0.0
) -> tuple[Patch, ...]:
    """Write conditions that changed; one that only has an older observedGeneration is left as it is."""
    fresh = [wanted for wanted in report.conditions if not _is_same(find(machine, wanted["type"]), wanted)]
    older = [wanted for wanted in report.legacy if not _is_same(find_legacy(machine, wanted["type"]), wanted)]
    if not fresh and not older:
        return ()
    status = machine.get("status") or {}
    deprecated = status.get("deprecated") or {}
    v1beta1 = deprecated.get("v1beta1") or {}
    generation = machine["metadata"].get("generation", 0)
    wanted_status = {
        **status,
        "conditions": merged(status.get("conditions"), fresh, view.now, generation=generation),
        "deprecated": {
            **deprecated,
            "v1beta1": {**v1beta1, "conditions": merged_legacy(v1beta1.get("conditions"), older, view.now)},
        },
    }
    return status_patch(MACHINE, machine, wanted_status, reason, debounce=debounce)


def _is_same(known: Condition | None, wanted: Condition) -> bool:
    fields = ("status", "reason", "severity", "message")
    return known is not None and all(known.get(field, "") == wanted.get(field, "") for field in fields)


# --- remediation by the owner ---------------------------------------------------------------------------------------


def is_owner_remediating(machine: Object) -> bool:
    """The owner reports ongoing remediation; a new one can start only after it finished."""
    return find(machine, OWNER_REMEDIATED) is not None and not is_true(machine, OWNER_REMEDIATED)


def owner_remediation_requested(machine: Object) -> ConditionReport:
    older = find_legacy(machine, OWNER_REMEDIATED)
    new = condition(OWNER_REMEDIATED, "False", "WaitingForRemediation", "Waiting for remediation")
    new_legacy = legacy(OWNER_REMEDIATED, "False", "WaitingForRemediation", "Warning")
    return ConditionReport(
        () if is_owner_remediating(machine) else (new,),
        (new_legacy,) if older is None or older.get("status") == "True" else (),
    )


# --- external remediation -------------------------------------------------------------------------------------------


class External:
    """Remediation requests: named like their Machine, created from the template that the check references."""

    def __init__(self, view: View, check: Object, reference: Object) -> None:
        self._view = view
        self._namespace: str = check["metadata"]["namespace"]
        group, _, version = reference["apiVersion"].rpartition("/")
        template_kind = self._kind(group, version, reference["kind"])
        self.kind = self._kind(group, version, reference["kind"].removesuffix(TEMPLATE))
        self._template = self._read(template_kind, reference["name"])
        self.problem = self._problem(check, template_kind, reference["name"])

    def _problem(self, check: Object, kind: Kind, name: str) -> str:
        if not kind.kind.endswith(TEMPLATE):
            return f"spec.remediation.templateRef.kind: must end in {TEMPLATE}, as in {kind.kind}{TEMPLATE}"
        if self._template is None:
            return f"Error retrieving remediation template {kind.kind} {self._namespace}/{name}"
        target = Target(kind.group, kind.plural, self._namespace, name)
        return problem(check, "spec.remediation.templateRef", target, self._template["metadata"]["uid"])

    def has_request(self, machine: Object) -> bool:
        return self._read(self.kind, machine["metadata"]["name"]) is not None

    def own_request(self, machine: Object) -> Object | None:
        """The request that was created for this Machine, not another object of the same name."""
        found = self._read(self.kind, machine["metadata"]["name"])
        owners = (found or {"metadata": {}})["metadata"].get("ownerReferences") or ()
        return found if any(owner["uid"] == machine["metadata"]["uid"] for owner in owners) else None

    def create(self, machine: Object) -> Create:
        assert self._template is not None
        pattern = (self._template.get("spec") or {}).get("template") or {}
        given = pattern.get("metadata") or {}
        origin = {
            CLONED_FROM_NAME: self._template["metadata"]["name"],
            CLONED_FROM_GROUP_KIND: str(GroupKind(self.kind.group, self._template["kind"])),
        }
        approved = derived_record(self._template, lambda each: each.path.removeprefix("spec.template."))
        metadata = {
            "name": machine["metadata"]["name"],
            "namespace": self._namespace,
            "labels": {**(given.get("labels") or {}), CLUSTER_NAME: machine["spec"]["clusterName"]},
            "annotations": {**without_record(given.get("annotations")), **origin, **approved},
            "ownerReferences": [owner_reference(MACHINE, machine, controller=False)],
        }
        made: Object = {"apiVersion": self.kind.api_version, "kind": self.kind.kind, "metadata": metadata}
        if "spec" in pattern:
            made["spec"] = pattern["spec"]
        return Create(self.kind, made, "its Machine is unhealthy")

    def _kind(self, group: str, version: str, kind: str) -> Kind:
        """In the version of its contract; in that of the reference where the definition names none. Each version that
        references name would be watched."""
        name = definition_name(group, kind)
        found = external_kind({"apiGroup": group, "kind": kind}, self._view.get(DEFINITION, name))
        return Kind(group, version, kind, name.partition(".")[0]) if isinstance(found, str) else found[0]

    def _read(self, kind: Kind, name: str) -> Object | None:
        definition = self._view.get(DEFINITION, definition_name(kind.group, kind.kind))
        return None if definition is None else self._view.get(kind, name, self._namespace)


def waiting_for_provider(machine: Object) -> ConditionReport:
    """Report only the start; the provider reports the progress."""
    found = find(machine, EXTERNALLY_REMEDIATED)
    if found is not None and found["status"] == "False" and found.get("reason") != "RemediationTemplateNotFound":
        return ConditionReport()
    return ConditionReport((condition(EXTERNALLY_REMEDIATED, "False", "WaitingForRemediation"),))


def without_template(message: str) -> ConditionReport:
    return ConditionReport((condition(EXTERNALLY_REMEDIATED, "False", "RemediationTemplateNotFound", message),))
