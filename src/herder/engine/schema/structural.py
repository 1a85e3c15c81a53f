"""Validate the schema of a CustomResourceDefinition.

As in kube-apiserver, there are three checks: the schema is structural (every field has one type, junctors only narrow),
its defaults are valid, and it uses only supported keywords (`keywords`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herder.engine.meta.errors import FieldError, forbidden_field, required
from herder.engine.schema import re2
from herder.engine.schema.default_check import check_defaults
from herder.engine.schema.gotext import format_value
from herder.engine.schema.keywords import check_keywords
from herder.engine.schema.nodes import Schema
from herder.engine.schema.rules.compiler import RuleCompiler, compile_with_cel

_ROOT, _ITEM, _FIELD = "root", "item", "field"
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_UNSUPPORTED = ("id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions")
_ALLOWED_WITH_STATUS = (
    "Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum", "ExclusiveMinimum", "MaxLength",
    "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf", "Required", "Items", "Properties",
    "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations",
)  # fmt: skip
_SPELLED = {
    "x-kubernetes-preserve-unknown-fields": "XPreserveUnknownFields",
    "x-kubernetes-validations": "XValidations",
}


def check_structural(
    schema: Schema, path: str, *, status_subresource: bool = False, rules: RuleCompiler | None = None
) -> list[FieldError]:
    """Return all errors of this schema at `path` for which kube-apiserver rejects a CustomResourceDefinition."""
    errors = _check_root(schema, path, status_subresource=status_subresource)
    compiler = rules or compile_with_cel
    unsupported = _first_unsupported(schema)
    sound = not unsupported
    if sound:
        problems = check_shape(schema, path) or check_defaults(schema, path, compiler)
        errors += problems
        sound = not problems
    errors += check_keywords(schema, path, compiler if sound else None)
    if unsupported and not errors:
        errors.append(invalid(path, "", unsupported))
    return errors


def invalid(field: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", field, f"Invalid value: {format_value(value)}: {detail}")


def _check_root(schema: Schema, path: str, *, status_subresource: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    if status_subresource:
        # Status validation uses only properties.status; other keywords of the root would be lost.
        for keyword, value in schema.items():
            name = _SPELLED.get(keyword, keyword[:1].upper() + keyword[1:])
            if keyword == "type" and value and value != "object":
                message = 'only "object" is allowed as the type at the root of the schema if the status subresource'
                errors.append(invalid(f"{path}.type", value, f"{message} is enabled"))
                break
            if value not in (None, False, "", [], {}) and name not in _ALLOWED_WITH_STATUS:
                allowed = " ".join(_ALLOWED_WITH_STATUS)
                message = f"only [{allowed}] fields are allowed at the root of the schema if the status subresource"
                errors.append(invalid(path, schema, f"{message} is enabled"))
                break
    if schema.get("nullable"):
        errors.append(forbidden_field(f"{path}.nullable", "nullable cannot be true at the root"))
    return errors


def _first_unsupported(schema: Schema) -> str:
    for keyword in _UNSUPPORTED:
        if schema.get(keyword):
            return (
                f"OpenAPIV3Schema '{keyword.removeprefix('$') if keyword == '$schema' else keyword}' is not supported"
            )
    if isinstance(schema.get("items"), list):
        return "OpenAPIV3Schema 'items' must be a schema, but is an array"
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        return "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined"
    for sub in _subschemas(schema):
        problem = _first_unsupported(sub)
        if problem:
            return problem
    return ""


def _subschemas(schema: Schema) -> list[Schema]:
    found = list((schema.get("properties") or {}).values())
    for keyword in ("allOf", "anyOf", "oneOf"):
        found += schema.get(keyword) or ()
    found += [schema[keyword] for keyword in ("items", "additionalProperties", "not") if schema.get(keyword)]
    return [sub for sub in found if isinstance(sub, Mapping)]


# --- structural


def check_shape(schema: Schema, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    _check_invariants(schema, _ROOT, path, errors)
    _check_complete(schema, schema, path, path, errors)
    return sorted(errors, key=str)


def _check_invariants(schema: Schema, level: str, path: str, errors: list[FieldError]) -> None:
    kind = schema.get("type") or ""
    items, additional = schema.get("items"), schema.get("additionalProperties")
    if kind == "array" and items is None:
        errors.append(required(f"{path}.items", "must be specified"))
    if isinstance(items, Mapping):
        _check_invariants(items, _ITEM, f"{path}.items", errors)
    for name, sub in (schema.get("properties") or {}).items():
        _check_invariants(sub, _FIELD, f"{path}.properties[{name}]", errors)
    if additional is not None:
        if level == _ROOT:
            errors.append(forbidden_field(f"{path}.additionalProperties", "must not be used at the root"))
        if isinstance(additional, Mapping):
            _check_invariants(additional, _FIELD, f"{path}.additionalProperties", errors)
    _check_extensions(schema, path, errors)
    _check_values(schema, level, path, errors, skip_any_of=_is_int_or_string(schema.get("anyOf")))
    _check_type(schema, level, path, errors)
    _check_meta(schema, level, path, errors)


def _check_extensions(schema: Schema, path: str, errors: list[FieldError]) -> None:
    if schema.get("x-kubernetes-int-or-string"):
        for keyword in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if schema.get(keyword):
                detail = "must be false if x-kubernetes-int-or-string is true"
                errors.append(invalid(f"{path}.{keyword}", True, detail))


def _check_type(schema: Schema, level: str, path: str, errors: list[FieldError]) -> None:
    kind = schema.get("type") or ""
    at = f"{path}.type"
    embedded = schema.get("x-kubernetes-embedded-resource")
    if embedded and kind != "object":
        detail = "must be object if x-kubernetes-embedded-resource is true"
        errors.append(invalid(at, kind, detail) if kind else required(at, detail))
    elif not kind and not any(
        schema.get(keyword) for keyword in ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    ):
        where = {_ROOT: "at the root", _ITEM: "for specified array items", _FIELD: "for specified object fields"}
        errors.append(required(at, f"must not be empty {where[level]}"))
    if embedded and schema.get("additionalProperties") is not None:
        detail = "must not be used if x-kubernetes-embedded-resource is set"
        errors.append(forbidden_field(f"{path}.additionalProperties", detail))
    if level == _ROOT and kind and kind != "object":
        errors.append(invalid(at, kind, "must be object at the root"))
    if embedded and not schema.get("x-kubernetes-preserve-unknown-fields") and not schema.get("properties"):
        detail = (
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        )
        errors.append(required(f"{path}.properties", detail))


def _check_meta(schema: Schema, level: str, path: str, errors: list[FieldError]) -> None:
    """Check metadata: a schema may only restrict names."""
    properties = schema.get("properties") or {}
    is_resource = level == _ROOT or bool(schema.get("x-kubernetes-embedded-resource"))
    for name in ("kind", "apiVersion"):
        if is_resource and name in properties and properties[name].get("type") != "string":
            declared = properties[name].get("type") or ""
            errors.append(invalid(f"{path}.properties[{name}].type", declared, "must be string"))
    metadata = properties.get("metadata")
    if metadata is None:
        return
    at = f"{path}.properties[metadata]"
    if is_resource and metadata.get("type") != "object":
        errors.append(invalid(f"{at}.type", metadata.get("type") or "", "must be object"))
    if level == _ROOT and not _narrows_names_only(metadata):
        detail = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        errors.append(forbidden_field(at, detail))


def _narrows_names_only(metadata: Schema) -> bool:
    keywords = {keyword for keyword, value in metadata.items() if value not in (None, False, "", [], {})}
    if set(metadata.get("properties") or {}) <= {"name", "generateName"}:
        keywords.discard("properties")
    return keywords <= {"type", "default"}


def _is_int_or_string(any_of: Any) -> bool:
    return bool(any_of == _INT_OR_STRING)


# --- junctors


def _check_values(schema: Schema, level: str, path: str, errors: list[FieldError], *, skip_any_of: bool) -> None:
    all_of = schema.get("allOf") or ()
    if not skip_any_of:
        for index, sub in enumerate(schema.get("anyOf") or ()):
            _check_nested(sub, level, f"{path}.anyOf[{index}]", errors)
    for index, sub in enumerate(all_of):
        first_is_pattern = index == 0 and _is_int_or_string(sub.get("anyOf"))
        _check_nested(sub, level, f"{path}.allOf[{index}]", errors, skip_any_of=first_is_pattern)
    for index, sub in enumerate(schema.get("oneOf") or ()):
        _check_nested(sub, level, f"{path}.oneOf[{index}]", errors)
    if schema.get("not") is not None:
        _check_nested(schema["not"], level, f"{path}.not", errors)
    pattern = schema.get("pattern")
    if pattern:
        try:
            re2.compile(pattern)
        except re2.PatternError as problem:
            detail = f"must be a valid regular expression, but isn't: {problem}"
            errors.append(invalid(f"{path}.pattern", pattern, detail))


_FORBIDDEN_NESTED = (
    ("type", "empty"),
    ("additionalProperties", "undefined"),
    ("default", "undefined"),
    ("title", "empty"),
    ("description", "empty"),
    ("nullable", "false"),
    ("x-kubernetes-preserve-unknown-fields", "false"),
    ("x-kubernetes-embedded-resource", "false"),
    ("x-kubernetes-int-or-string", "false"),
    ("x-kubernetes-list-map-keys", "empty"),
    ("x-kubernetes-list-type", "undefined"),
    ("x-kubernetes-map-type", "undefined"),
    ("x-kubernetes-validations", "empty"),
)


def _check_nested(
    schema: Schema, level: str, path: str, errors: list[FieldError], *, skip_any_of: bool = False
) -> None:
    _check_values(schema, level, path, errors, skip_any_of=skip_any_of)
    if isinstance(schema.get("items"), Mapping):
        _check_nested(schema["items"], level, f"{path}.items", errors)
    for name, sub in (schema.get("properties") or {}).items():
        _check_nested(sub, _FIELD, f"{path}.properties[{name}]", errors)
    for keyword, should_be in _FORBIDDEN_NESTED:
        value = schema.get(keyword)
        declared = value is not None if should_be == "undefined" else bool(value)
        if keyword == "additionalProperties":
            declared = bool(value) or isinstance(value, Mapping)
        if declared:
            errors.append(forbidden_field(f"{path}.{keyword}", f"must be {should_be} to be structural"))
    if "metadata" in (schema.get("properties") or {}):
        detail = "must not be specified in a nested context"
        errors.append(forbidden_field(f"{path}.properties[metadata]", detail))


def _check_complete(values: Schema, spine: Schema | None, at: str, path: str, errors: list[FieldError]) -> None:
    """Require that every field in a junctor is also specified outside of it."""
    for keyword in ("allOf", "anyOf", "oneOf"):
        for index, sub in enumerate(values.get(keyword) or ()):
            _check_nested_complete(sub, spine, at, f"{path}.{keyword}[{index}]", errors)
    if values.get("not") is not None:
        _check_nested_complete(values["not"], spine, at, f"{path}.not", errors)


def _check_nested_complete(values: Schema, spine: Schema | None, at: str, path: str, errors: list[FieldError]) -> None:
    if not isinstance(spine, Mapping):
        errors.append(required(at, f"because it is defined in {path}"))
        return
    _check_complete(values, spine, at, path, errors)
    if isinstance(values.get("items"), Mapping):
        _check_nested_complete(values["items"], spine.get("items"), f"{at}.items", f"{path}.items", errors)
    known = spine.get("properties") or {}
    for name, sub in (values.get("properties") or {}).items():
        place, where = f"{at}.properties[{name}]", f"{path}.properties[{name}]"
        _check_nested_complete(sub, known.get(name), place, where, errors)
