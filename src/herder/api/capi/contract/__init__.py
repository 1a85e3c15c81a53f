"""The contract with providers: which version of it a kind follows, and where that version keeps each fact.

A module per role reads objects of that role: `infra_cluster`, `infra_machine`, `bootstrap_config`, `control_plane`.
"""

from __future__ import annotations

import re
from enum import StrEnum

from herder.api.capi.kinds import GROUP
from herder.api.capi.plurals import plural
from herder.engine.meta.kinds import Kind, Object


class Contract(StrEnum):
    V1BETA1 = "v1beta1"
    V1BETA2 = "v1beta2"


KNOWN = (Contract.V1BETA2, Contract.V1BETA1)
"""The best one first."""


def definition_name(api_group: str, kind: str) -> str:
    """The name of the CustomResourceDefinition that the contract prescribes for a kind."""
    return f"{plural(kind.lower())}.{api_group}"


def reference_group(reference: Object) -> str:
    """References of v1beta2 name the group alone, older ones also a version, which is not to be trusted."""
    group: str = reference.get("apiGroup") or str(reference.get("apiVersion", "")).rpartition("/")[0]
    return group


def external_kind(reference: Object, definition: Object | None) -> tuple[Kind, Contract] | str:
    """The kind that a reference means, in the version that follows the best contract known here; or what is wrong."""
    name = definition_name(reference_group(reference), reference["kind"])
    if definition is None:
        return f"CustomResourceDefinition {name} does not exist"
    labels = definition["metadata"].get("labels") or {}
    for contract in KNOWN:
        versions = [version for version in labels.get(f"{GROUP}/{contract}", "").split("_") if version]
        if versions:
            resource = definition["metadata"]["name"].partition(".")[0]
            newest = max(versions, key=_maturity)
            return Kind(reference_group(reference), newest, reference["kind"], resource), contract
    wanted = " or ".join(f"{GROUP}/{contract}" for contract in KNOWN)
    return f"CustomResourceDefinition {name} names no version for a contract known here: its label {wanted} is not set"


def _maturity(version: str) -> tuple[int, int, int]:
    """As Kubernetes orders versions: stable ones, then beta, then alpha, each by number."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return -1, 0, 0
    major, stage, minor = found.groups()
    return {None: 2, "beta": 1, "alpha": 0}[stage], int(major), int(minor or 0)


_VERSION = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")
