"""When a Machine's template has changed so that the Machine must be replaced, and what to tell about it.

Only what cannot be changed in place counts: version, failure domain, and which bootstrap and infrastructure templates
are named. What those templates hold is never compared: to roll out a change of theirs, name another.
"""

from __future__ import annotations

from typing import Any

from herder.engine.meta.kinds import Object


def needs_rollout(current: Object, desired: Object) -> bool:
    """Both are templates of Machines: `spec.template` of a MachineSet or a MachineDeployment."""
    return bool(differences(current, desired))


def differences(current: Object, desired: Object) -> list[str]:
    """What is not up to date, as Machines tell it in their UpToDate condition."""
    have, want = current.get("spec") or {}, desired.get("spec") or {}
    found = []
    if have.get("version", "") != want.get("version", ""):
        found.append(f"Version {have.get('version', '')}, {want.get('version', '')} required")
    if _bootstrap(have) != _bootstrap(want):
        found.append(_bootstrap_difference(have, want))
    if _reference(have.get("infrastructureRef")) != _reference(want.get("infrastructureRef")):
        found.append(f"{_made_of(have.get('infrastructureRef'))} is not up-to-date")
    if have.get("failureDomain", "") != want.get("failureDomain", ""):
        found.append(f"Failure domain {have.get('failureDomain', '')}, {want.get('failureDomain', '')} required")
    return found


def _bootstrap_difference(have: Object, want: Object) -> str:
    reference, secret = _bootstrap(have)
    if any(reference):
        return f"{_made_of(have['bootstrap']['configRef'])} is not up-to-date"
    return f"spec.bootstrap.dataSecretName {secret or 'nil'}, {_bootstrap(want)[1] or 'nil'} required"


def _bootstrap(spec: Object) -> tuple[tuple[str, str, str], str]:
    bootstrap = spec.get("bootstrap") or {}
    return _reference(bootstrap.get("configRef")), bootstrap.get("dataSecretName") or ""


def _reference(reference: Any) -> tuple[str, str, str]:
    given = reference or {}
    return given.get("apiGroup", ""), given.get("kind", ""), given.get("name", "")


def _made_of(reference: Object | None) -> str:
    """The kind that a template makes."""
    return str((reference or {}).get("kind", "")).removesuffix("Template")
