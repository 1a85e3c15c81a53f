"""Validate CustomResourceDefinitions, with kube-apiserver's messages.

kube-apiserver moves fields that all versions share (always with a single version) to the top of the spec before it
validates. Its errors therefore name `spec.validation`, `spec.subresources` and so on, and so do these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from herder.engine.apiserver.crds.ca_bundle import bundle_of, bundle_problem
from herder.engine.apiserver.crds.conversion_validation import check_conversion
from herder.engine.apiserver.crds.status import APPROVED, approval_state, condition_is, is_protected_group
from herder.engine.apiserver.crds.version_validation import (
    check_columns,
    check_deprecation,
    check_selectable,
    check_subresources,
)
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, invalid_value, not_supported, required
from herder.engine.meta.kinds import Object

_SHARED = {
    "schema": "validation",
    "subresources": "subresources",
    "additionalPrinterColumns": "additionalPrinterColumns",
    "selectableFields": "selectableFields",
}
"""Fields of versions, and their names at the top of the spec."""


def check_definition(crd: Object) -> Iterator[FieldError]:
    """Validate a CRD by itself."""
    spec: Object = crd.get("spec") or {}
    expected = f"{(spec.get('names') or {}).get('plural', '')}.{spec.get('group', '')}"
    name = (crd.get("metadata") or {}).get("name") or ""
    if name and name != expected:
        yield invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    yield from _check_spec(spec)
    yield from check_status(crd)
    yield from _check_stored_versions((crd.get("status") or {}).get("storedVersions"), spec)
    if spec.get("preserveUnknownFields"):
        yield invalid_value(
            "spec.preserveUnknownFields",
            True,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        )


def check_change(crd: Object, old: Object) -> Iterator[FieldError]:
    """Validate an update: fields that identify stored objects are immutable."""
    new_spec, old_spec = crd.get("spec") or {}, old.get("spec") or {}
    if condition_is(old, "Established", "True"):
        yield from _immutable("spec.scope", new_spec.get("scope"), old_spec.get("scope"))
        yield from _immutable("spec.names.kind", _name(new_spec, "kind"), _name(old_spec, "kind"))
        yield from _check_bundle(bundle_of(crd), bundle_of(old))
    yield from _immutable("spec.group", new_spec.get("group"), old_spec.get("group"))
    yield from _immutable("spec.names.plural", _name(new_spec, "plural"), _name(old_spec, "plural"))
    yield from check_approval(crd, old)


def _check_bundle(bundle: str, old: str) -> Iterator[FieldError]:
    """Reject an invalid caBundle, unless the old one was invalid, too."""
    problem = bundle_problem(bundle)
    if problem and not bundle_problem(old):
        yield invalid_value("spec.conversion.webhookClientConfig.caBundle", bundle, problem)


def check_status(crd: Object) -> Iterator[FieldError]:
    """Validate status.acceptedNames."""
    accepted = (crd.get("status") or {}).get("acceptedNames") or {}
    yield from _check_names(accepted, "status.acceptedNames")


def check_approval(crd: Object, old: Object | None) -> Iterator[FieldError]:
    """Protected groups need an approval annotation; one that was wrong before may stay wrong."""
    if not is_protected_group((crd.get("spec") or {}).get("group", "")):
        return
    state, message = approval_state(crd)
    if old is not None and approval_state(old)[0] == state:
        return
    field = f"metadata.annotations[{APPROVED}]"
    if state == "missing":
        yield required(field, message)
    elif state == "invalid":
        yield invalid_value(field, crd["metadata"]["annotations"][APPROVED], message)


# --- spec --------------------------------------------------------------------------------------------------------


def _check_spec(spec: Object) -> Iterator[FieldError]:
    yield from _check_group(spec.get("group", ""))
    yield from _one_of("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced"))
    versions: list[Object] = spec.get("versions") or []
    shared = {field for field in _SHARED if versions and all(v.get(field) == versions[0].get(field) for v in versions)}
    for index, version in enumerate(versions):
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            yield required(f"spec.versions[{index}].schema.openAPIV3Schema")
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        problems = names.dns1035_label(version.get("name", ""))
        if problems:
            yield invalid_value(f"{path}.name", version.get("name", ""), ",".join(problems))
        yield from check_deprecation(version, path)
        own = {field for field in _SHARED if field not in shared}
        yield from _check_parts(version, own, {field: f"{path}.{field}" for field in own})
    seen = [version.get("name") for version in versions]
    if len(set(seen)) != len(seen):
        yield invalid_value("spec.versions", _as_checked(versions, shared), "must contain unique version names")
    if sum(bool(version.get("storage")) for version in versions) != 1:
        message = "must have exactly one version marked as storage version"
        yield invalid_value("spec.versions", _as_checked(versions, shared), message)
    yield from _check_first_version(versions)
    expected = spec.get("names") or {}
    for field in ("plural", "singular", "kind", "listKind"):
        if not expected.get(field):
            yield required(f"spec.names.{field}")
    yield from _check_names(expected, "spec.names")
    if versions:
        yield from _check_parts(versions[0], shared, {field: f"spec.{_SHARED[field]}" for field in shared})
    yield from check_conversion(spec.get("conversion"), "spec.conversion")


def _check_parts(version: Object, fields: set[str], paths: dict[str, str]) -> Iterator[FieldError]:
    from herder.engine.schema import check_structural

    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    subresources = version.get("subresources")
    if "schema" in fields and schema is not None:
        has_status = (subresources or {}).get("status") is not None
        yield from check_structural(schema, f"{paths['schema']}.openAPIV3Schema", status_subresource=has_status)
    if "subresources" in fields:
        yield from check_subresources(subresources, paths["subresources"])
    if "additionalPrinterColumns" in fields:
        yield from check_columns(version.get("additionalPrinterColumns") or (), paths["additionalPrinterColumns"])
    if "selectableFields" in fields and version.get("selectableFields"):
        yield from check_selectable(version["selectableFields"], schema, paths["selectableFields"])


def _check_first_version(versions: list[Object]) -> Iterator[FieldError]:
    """Validate the deprecated spec.version, which is the name of the first version."""
    name = versions[0].get("name", "") if versions else ""
    problems = names.dns1035_label(name) if name else []
    if problems:
        yield invalid_value("spec.version", name, ",".join(problems))


def _as_checked(versions: list[Object], shared: set[str]) -> list[Object]:
    """Return the versions as the error shows them: without the shared fields."""
    return [
        {
            "Name": version.get("name", ""),
            "Served": bool(version.get("served")),
            "Storage": bool(version.get("storage")),
            "Deprecated": bool(version.get("deprecated")),
            "DeprecationWarning": version.get("deprecationWarning"),
            **{field[:1].upper() + field[1:]: None if field in shared else version.get(field) for field in _SHARED},
        }
        for version in versions
    ]


def _check_group(group: str) -> Iterator[FieldError]:
    if not group:
        yield required("spec.group")
        return
    problems = names.dns1123_subdomain(group)
    if problems:
        yield invalid_value("spec.group", group, ",".join(problems))
    elif "." not in group:
        yield invalid_value("spec.group", group, "should be a domain with at least one dot")


def _check_names(expected: Object, path: str) -> Iterator[FieldError]:
    for field in ("plural", "singular"):
        value = expected.get(field) or ""
        problems = names.dns1035_label(value) if value else []
        if problems:
            yield invalid_value(f"{path}.{field}", value, ",".join(problems))
    for field in ("kind", "listKind"):
        value = expected.get(field) or ""
        problems = names.dns1035_label(value.lower()) if value else []
        if problems:
            message = "may have mixed case, but should otherwise match: " + ",".join(problems)
            yield invalid_value(f"{path}.{field}", value, message)
    yield from _check_labels(expected.get("shortNames") or (), f"{path}.shortNames")
    kind = expected.get("kind")
    if kind and kind == expected.get("listKind"):
        yield invalid_value(f"{path}.listKind", kind, "kind and listKind may not be the same")
    yield from _check_labels(expected.get("categories") or (), f"{path}.categories")


def _check_labels(values: Iterable[str], path: str) -> Iterator[FieldError]:
    for index, value in enumerate(values):
        problems = names.dns1035_label(value)
        if problems:
            yield invalid_value(f"{path}[{index}]", value, ",".join(problems))


def _check_stored_versions(stored: list[str] | None, spec: Object) -> Iterator[FieldError]:
    path = "status.storedVersions"
    if not stored:
        yield invalid_value(path, stored, "must have at least one stored version")
        return
    versions = spec.get("versions") or []
    for version in versions:
        if version.get("storage") and version.get("name") not in stored:
            yield invalid_value(path, stored, f"must have the storage version {version.get('name')}")
    declared = {version.get("name") for version in versions}
    for index, name in enumerate(stored):
        if name not in declared:
            yield invalid_value(
                f"{path}[{index}]",
                name,
                f"missing from spec.versions; {name} was previously a storage version, and must remain in "
                f"spec.versions until a storage migration ensures no data remains persisted in {name} and removes "
                f"{name} from status.storedVersions",
            )


def _one_of(path: str, value: str, accepted: tuple[str, ...]) -> Iterator[FieldError]:
    if not value:
        yield required(path)
    elif value not in accepted:
        yield not_supported(path, value, accepted)


def _immutable(path: str, new: Any, old: Any) -> Iterator[FieldError]:
    if new != old:
        yield invalid_value(path, new, "field is immutable")


def _name(spec: Object, field: str) -> Any:
    return (spec.get("names") or {}).get(field)
