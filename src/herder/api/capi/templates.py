"""Compare Machine templates: when a Machine must be replaced, and the message that explains why.

Only fields that cannot change in place count: version, failure domain, and the references to bootstrap and
infrastructure templates. The contents of those templates are not compared: to roll out a change, reference another
template.
"""

from __future__ import annotations

from typing import Any

from herder.engine.meta.kinds import Object


def needs_rollout(current: Object, desired: Object) -> bool:
    """Whether Machines of `current` must be replaced; both are `spec.template` of a MachineSet or MachineDeployment."""
    return bool(differences(current, desired))


def differences(current: Object, desired: Object) -> list[str]:
    """Return the differences, in the wording of the UpToDate condition of Machines."""
    have, want = current.get("spec") or {}, desired.get("spec") or {}
    found = []
    if have.get("version", "") != want.get("version", ""):
        found.append(f"Version {have.get('version', '')}, {want.get('version', '')} required")
    if _bootstrap(have) != _bootstrap(want):
        found.append(_bootstrap_difference(have, want))
    if _reference(have.get("infrastructureRef")) != _reference(want.get("infrastructureRef")):
        found.append(f"{_cloned_kind(have.get('infrastructureRef'))} is not up-to-date")
    if have.get("failureDomain", "") != want.get("failureDomain", ""):
        found.append(f"Failure domain {have.get('failureDomain', '')}, {want.get('failureDomain', '')} required")
    return found


def _bootstrap_difference(have: Object, want: Object) -> str:
    reference, secret = _bootstrap(have)
    if any(reference):
        return f"{_cloned_kind(have['bootstrap']['configRef'])} is not up-to-date"
    return f"spec.bootstrap.dataSecretName {secret or 'nil'}, {_bootstrap(want)[1] or 'nil'} required"


def _bootstrap(spec: Object) -> tuple[tuple[str, str, str], str]:
    bootstrap = spec.get("bootstrap") or {}
    return _reference(bootstrap.get("configRef")), bootstrap.get("dataSecretName") or ""


def _reference(reference: Any) -> tuple[str, str, str]:
    given = reference or {}
    return given.get("apiGroup", ""), given.get("kind", ""), given.get("name", "")


def _cloned_kind(reference: Object | None) -> str:
    """Return the kind that a template is cloned to."""
    return str((reference or {}).get("kind", "")).removesuffix("Template")
