"""The provider contract: which contract version a kind follows, and where that version keeps each field.

One module per provider role: `infra_cluster`, `infra_machine`, `bootstrap_config`, `control_plane`.
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
"""Contract versions, the preferred one first."""


def definition_name(api_group: str, kind: str) -> str:
    """Return the name that the contract prescribes for the CustomResourceDefinition of a kind."""
    return f"{plural(kind.lower())}.{api_group}"


def reference_group(reference: Object) -> str:
    """Return the API group of a reference. v1beta2 references have apiGroup; the version in older ones is ignored."""
    group: str = reference.get("apiGroup") or str(reference.get("apiVersion", "")).rpartition("/")[0]
    return group


def refers_to(reference: Object | None, kind: Kind, name: str) -> bool:
    """Return whether a reference names this object.

    Controllers check it for the object that an owner reference names: users write owner references, so one alone is no
    proof that the owner uses the object.
    """
    found = reference or {}
    return (reference_group(found), found.get("kind"), found.get("name")) == (*kind.group_kind, name)


def external_kind(reference: Object, definition: Object | None) -> tuple[Kind, Contract] | str:
    """Resolve a reference to the kind and version that follows the best known contract, or return an error message."""
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
    return f"CustomResourceDefinition {name} has no version for a supported contract: label {wanted} is not set"


def _maturity(version: str) -> tuple[int, int, int]:
    """Sort key of API versions in Kubernetes order: stable, beta, alpha, each by number."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return -1, 0, 0
    major, stage, minor = found.groups()
    return {None: 2, "beta": 1, "alpha": 0}[stage], int(major), int(minor or 0)


_VERSION = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")
