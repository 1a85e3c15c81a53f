"""Printers of service accounts, RBAC, certificates, admission configuration and APIServices."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from herder.engine.apiserver.tables.cells import NONE, UNSET, columns, condition, name_of, spec_of, status_of
from herder.engine.apiserver.tables.duration import age, human_duration
from herder.engine.apiserver.tables.printers import Printer, Printers
from herder.engine.meta.kinds import GroupKind, Object


def _name_and_age(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), age(obj, now)]


def _binding(obj: Object, now: datetime) -> list[Any]:
    role, subjects = obj.get("roleRef") or {}, obj.get("subjects") or ()
    users = [each.get("name", "") for each in subjects if each.get("kind") == "User"]
    groups = [each.get("name", "") for each in subjects if each.get("kind") == "Group"]
    accounts = [
        f"{each.get('namespace', '')}/{each.get('name', '')}"
        for each in subjects
        if each.get("kind") == "ServiceAccount"
    ]
    subject_cells = [", ".join(listed) for listed in (users, groups, accounts)]
    return [name_of(obj), f"{role.get('kind', '')}/{role.get('name', '')}", age(obj, now), *subject_cells]


def _certificate_signing_request(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    seconds = spec.get("expirationSeconds")
    return [
        name_of(obj),
        age(obj, now),
        spec.get("signerName") or NONE,
        spec.get("username", ""),
        NONE if seconds is None else human_duration(seconds),
        _certificate_state(status_of(obj)),
    ]


def _certificate_state(status: Object) -> str:
    kinds = {each.get("type") for each in status.get("conditions") or ()}
    message = "Denied" if "Denied" in kinds else "Approved" if "Approved" in kinds else "Pending"
    if "Failed" in kinds:
        message += ",Failed"
    return message + (",Issued" if status.get("certificate") else "")


def _webhooks(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), len(obj.get("webhooks") or ()), age(obj, now)]


def _validating_policy(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), len(spec_of(obj).get("validations") or ()), _parameter_kind(obj), age(obj, now)]


def _mutating_policy(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), len(spec_of(obj).get("mutations") or ()), _parameter_kind(obj), age(obj, now)]


def _parameter_kind(obj: Object) -> str:
    kind = spec_of(obj).get("paramKind")
    return f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else UNSET


def _policy_binding(obj: Object, now: datetime) -> list[Any]:
    reference = spec_of(obj).get("paramRef") or {}
    message = f"{reference.get('namespace') or '*'}/{reference['name']}" if reference.get("name") else UNSET
    return [name_of(obj), spec_of(obj).get("policyName", ""), message, age(obj, now)]


def _api_service(obj: Object, now: datetime) -> list[Any]:
    service = spec_of(obj).get("service")
    available = condition(status_of(obj).get("conditions"), "Available")
    message = "Unknown"
    if available:
        message = available.get("status", "")
        if message != "True" and available.get("reason"):
            message = f"{message} ({available['reason']})"
    local = f"{service.get('namespace', '')}/{service.get('name', '')}" if service else "Local"
    return [name_of(obj), local, message, age(obj, now)]


_BINDING = Printer(columns("Name", "Role", "Age", "+Users", "+Groups", "+ServiceAccounts"), _binding)
_WEBHOOKS = Printer(columns("Name", "Webhooks:integer", "Age"), _webhooks)
_POLICY_BINDING = Printer(columns("Name", "PolicyName", "ParamRef", "Age"), _policy_binding)
_ADMISSION = "admissionregistration.k8s.io"

PRINTERS: Printers = {
    GroupKind("", "ServiceAccount"): Printer(columns("Name", "Age"), _name_and_age),
    GroupKind("rbac.authorization.k8s.io", "RoleBinding"): _BINDING,
    GroupKind("rbac.authorization.k8s.io", "ClusterRoleBinding"): _BINDING,
    GroupKind("certificates.k8s.io", "CertificateSigningRequest"): Printer(
        columns("Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition"),
        _certificate_signing_request,
    ),
    GroupKind(_ADMISSION, "MutatingWebhookConfiguration"): _WEBHOOKS,
    GroupKind(_ADMISSION, "ValidatingWebhookConfiguration"): _WEBHOOKS,
    GroupKind(_ADMISSION, "ValidatingAdmissionPolicy"): Printer(
        columns("Name", "Validations:integer", "ParamKind", "Age"), _validating_policy
    ),
    GroupKind(_ADMISSION, "ValidatingAdmissionPolicyBinding"): _POLICY_BINDING,
    GroupKind(_ADMISSION, "MutatingAdmissionPolicy"): Printer(
        columns("Name", "Mutations:integer", "ParamKind", "Age"), _mutating_policy
    ),
    GroupKind(_ADMISSION, "MutatingAdmissionPolicyBinding"): _POLICY_BINDING,
    GroupKind("apiregistration.k8s.io", "APIService"): Printer(
        columns("Name", "Service", "Available", "Age"), _api_service
    ),
}
