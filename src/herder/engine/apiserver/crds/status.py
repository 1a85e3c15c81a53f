"""Status of CustomResourceDefinitions: accepted names and conditions. Pure functions.

A name belongs to the first CRD of the group that had it accepted. Another CRD with the same name waits until it is
released.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from herder.engine.apiserver.crds.ca_bundle import bundle_of, bundle_problem
from herder.engine.meta.kinds import Object

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
APPROVED = "api-approved.kubernetes.io"
_APPROVAL_HELP = "see https://github.com/kubernetes/enhancements/pull/1111"


@dataclass(slots=True)
class TakenNames:
    """Accepted names of the other CRDs of the group."""

    resources: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)

    @classmethod
    def by(cls, definitions: Iterable[Object]) -> TakenNames:
        taken = cls()
        for definition in definitions:
            names = (definition.get("status") or {}).get("acceptedNames") or {}
            taken.resources |= {names.get("plural", ""), names.get("singular", ""), *(names.get("shortNames") or ())}
            taken.kinds |= {names.get("kind", ""), names.get("listKind", "")}
        return taken


def with_desired_status(crd: Object, taken: TakenNames, now: str) -> Object:
    """Return the CRD with the status it should have: accepted names and conditions."""
    crd = {**crd, "status": copy.deepcopy(crd.get("status") or {})}
    accepted, problem = accept_names(crd, taken)
    if accepted != crd["status"].get("acceptedNames") or not find_condition(crd, "NamesAccepted"):
        crd["status"]["acceptedNames"] = accepted
    if problem:
        set_condition(crd, "NamesAccepted", "False", *problem, now=now)
        if not find_condition(crd, "Established"):
            set_condition(crd, "Established", "False", "NotAccepted", "not all names are accepted", now=now)
    else:
        set_condition(crd, "NamesAccepted", "True", "NoConflicts", "no conflicts found", now=now)
        if not condition_is(crd, "Established", "True"):
            set_condition(crd, "Established", *_establishment(crd), now=now)
    approval = approval_condition(crd)
    if approval:
        set_condition(crd, "KubernetesAPIApprovalPolicyConformant", *approval, now=now)
    return crd


def _establishment(crd: Object) -> tuple[str, str, str]:
    """Return status, reason and message of Established for a CRD whose names are accepted."""
    if bundle_problem(bundle_of(crd)):
        return "False", "InvalidCABundle", "The conversion webhook CABundle is invalid"
    return "True", "InitialNamesAccepted", "the initial names have been accepted"


def accept_names(crd: Object, taken: TakenNames) -> tuple[Object, tuple[str, str] | None]:
    """Return the accepted names, and reason and message of the last conflict, if any."""
    wanted: Object = crd["spec"]["names"]
    current: Object = (crd.get("status") or {}).get("acceptedNames") or {}
    accepted = {"plural": "", "kind": "", **current}
    problem: tuple[str, str] | None = None
    for name, used, reason in (
        ("plural", taken.resources, "PluralConflict"),
        ("singular", taken.resources, "SingularConflict"),
        ("shortNames", taken.resources, "ShortNamesConflict"),
        ("kind", taken.kinds, "KindConflict"),
        ("listKind", taken.kinds, "ListKindConflict"),
    ):
        conflicts = _conflicts(wanted.get(name), current.get(name), used)
        if conflicts:
            problem = (reason, conflicts)
        else:
            _put(accepted, name, wanted.get(name))
    _put(accepted, "categories", wanted.get("categories"))
    return accepted, problem


def _conflicts(wanted: Any, current: Any, used: set[str]) -> str:
    if isinstance(wanted, list):
        fresh = [name for name in wanted if name not in (current or ())]
        messages = [f'"{name}" is already in use' for name in fresh if name in used]
        return messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]" if messages else ""
    return f'"{wanted}" is already in use' if wanted and wanted != current and wanted in used else ""


def _put(names: Object, name: str, value: Any) -> None:
    if value:
        names[name] = value
    elif name not in {"plural", "kind"}:
        names.pop(name, None)


# --- conditions --------------------------------------------------------------------------------------------------


def find_condition(crd: Object, kind: str) -> Object | None:
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def condition_is(crd: Object, kind: str, status: str) -> bool:
    condition = find_condition(crd, kind)
    return condition is not None and condition.get("status") == status


def set_condition(crd: Object, kind: str, status: str, reason: str, message: str, *, now: str) -> None:
    """Set a condition in place. lastTransitionTime changes only with the status."""
    condition = find_condition(crd, kind)
    if condition is None:
        condition = {"type": kind}
        holder = crd.setdefault("status", {})
        holder["conditions"] = [*(holder.get("conditions") or ()), condition]
    if condition.get("status") != status or not condition.get("lastTransitionTime"):
        condition["lastTransitionTime"] = now
    condition |= {"status": status, "reason": reason, "message": message}


# --- API approval of protected groups ------------------------------------------------------------------------------


def is_protected_group(group: str) -> bool:
    """Whether the group belongs to the Kubernetes community, and its CRDs need API approval."""
    return group in {"k8s.io", "kubernetes.io"} or group.endswith((".k8s.io", ".kubernetes.io"))


def approval_state(crd: Object) -> tuple[str, str]:
    """Return approved, bypassed, missing or invalid, and the message."""
    annotation = ((crd.get("metadata") or {}).get("annotations") or {}).get(APPROVED, "")
    if not annotation:
        return "missing", f'protected groups must have approval annotation "{APPROVED}", {_APPROVAL_HELP}'
    if annotation.startswith("unapproved"):
        return "bypassed", f'not approved: "{annotation}"'
    try:
        address = urlsplit(annotation)
    except ValueError:
        address = urlsplit("")
    if address.scheme and address.netloc:
        return "approved", f"approved in {annotation}"
    return "invalid", (
        f'protected groups must have approval annotation "{APPROVED}" with either a URL or a reason starting with '
        f'"unapproved", {_APPROVAL_HELP}'
    )


def approval_condition(crd: Object) -> tuple[str, str, str] | None:
    """Return status, reason and message; None if the group needs no approval."""
    if not is_protected_group(crd["spec"]["group"]):
        return None
    state, message = approval_state(crd)
    status = "True" if state == "approved" else "False"
    reason = {
        "approved": "ApprovedAnnotation",
        "bypassed": "UnapprovedAnnotation",
        "missing": "MissingAnnotation",
        "invalid": "InvalidAnnotation",
    }[state]
    return status, reason, message
