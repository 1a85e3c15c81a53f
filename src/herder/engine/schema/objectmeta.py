"""Metadata of embedded resources, which is ObjectMeta regardless of the schema.

Its fields are decoded as in kube-apiserver, into a struct: unknown fields are dropped with a warning, and a wrong type
rejects the request. Then names, labels and so on are validated as for any object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.meta import names
from herder.engine.meta.errors import BadRequest, FieldError
from herder.engine.meta.kinds import Object
from herder.engine.schema.gotext import format_value
from herder.engine.schema.nodes import Node

Visit = Callable[[Any, str], None]

_STRING, _INT, _BOOL, _TIME, _ANY = "string", "int64", "bool", "Time", "FieldsV1"
_OWNER = {
    "apiVersion": _STRING, "kind": _STRING, "name": _STRING, "uid": "types.UID", "controller": _BOOL,
    "blockOwnerDeletion": _BOOL,
}  # fmt: skip
_MANAGED = {
    "manager": _STRING, "operation": "v1.ManagedFieldsOperationType", "apiVersion": _STRING, "time": _TIME,
    "fieldsType": _STRING, "fieldsV1": _ANY, "subresource": _STRING,
}  # fmt: skip
_META: dict[str, Any] = {
    "name": _STRING, "generateName": _STRING, "namespace": _STRING, "selfLink": _STRING, "uid": "types.UID",
    "resourceVersion": _STRING, "generation": _INT, "creationTimestamp": _TIME, "deletionTimestamp": _TIME,
    "deletionGracePeriodSeconds": _INT, "labels": "map", "annotations": "map",
    "ownerReferences": ("OwnerReference", _OWNER), "finalizers": "strings",
    "managedFields": ("ManagedFieldsEntry", _MANAGED),
}  # fmt: skip


class _Malformed(Exception):
    pass


def coerce(metadata: Any, unknown: list[str], path: str = "metadata") -> None:
    """Drop fields that ObjectMeta does not have, in place, and add their paths to `unknown`; raises ValueError if it
    cannot be decoded."""
    try:
        _decode_struct(metadata, _META, "ObjectMeta", "v1.ObjectMeta", "", path, unknown)
    except _Malformed as problem:
        raise ValueError(str(problem)) from None
    if metadata.get("creationTimestamp", "") is None:
        del metadata["creationTimestamp"]


def _decode_struct(
    value: Any, fields: dict[str, Any], struct: str, go_type: str, inside: str, path: str, unknown: list[str]
) -> None:
    if type(value) is not dict:
        raise _Malformed(_mismatch(value, struct, inside, go_type))
    for name in list(value):
        kind = fields.get(name)
        if kind is None:
            unknown.append(f"{path}.{name}")
            del value[name]
        elif value[name] is None and kind != _TIME:
            del value[name]  # like decoding null into a struct field: it keeps its zero value
        else:
            _decode_field(value[name], kind, struct, f"{inside}.{name}" if inside else name, f"{path}.{name}", unknown)
            if kind != _ANY and value[name] in ({}, []):
                del value[name]  # Go omits empty fields


def _decode_field(value: Any, kind: Any, struct: str, inside: str, path: str, unknown: list[str]) -> None:
    if kind == "map":
        _expect(value, dict, struct, inside, "map[string]string")
        for key, sub in value.items():
            _expect(sub, str, struct, inside, _STRING)
            value[key] = sub or ""
    elif kind == "strings":
        _expect(value, list, struct, inside, "[]string")
        for index, sub in enumerate(value):
            _expect(sub, str, struct, inside, _STRING)
            value[index] = sub or ""
    elif isinstance(kind, tuple):
        _expect(value, list, struct, inside, f"[]v1.{kind[0]}")
        for index, item in enumerate(value):
            if item is None:
                value[index] = item = {}
            _decode_struct(item, kind[1], kind[0], f"v1.{kind[0]}", inside, f"{path}[{index}]", unknown)
    elif kind == _INT:
        _expect(value, int, struct, inside, _INT)
        if not -(2**63) <= value < 2**63:
            raise _Malformed(_mismatch(value, struct, inside, _INT))
    elif kind == _BOOL:
        _expect(value, bool, struct, inside, _BOOL)
    elif kind == _TIME:
        if value is not None:
            _expect(value, str, struct, inside, _STRING)
    elif kind != _ANY:
        _expect(value, str, struct, inside, kind)


def _expect(value: Any, wanted: type, struct: str, inside: str, go_type: str) -> None:
    if type(value) is not wanted and not (value is None and wanted is str):
        raise _Malformed(_mismatch(value, struct, inside, go_type))


def _mismatch(value: Any, struct: str, inside: str, go_type: str) -> str:
    kinds = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    kind = kinds.get(type(value), "null")
    if kind == "number" and go_type == _INT:
        kind = f"number {value}"
    place = f"Go struct field {struct}.{inside}" if inside else "Go value"
    return f"json: cannot unmarshal {kind} into {place} of type {go_type}"


def coerce_embedded(node: Node, obj: Object, unknown: list[str]) -> None:
    """Coerce the metadata of every embedded resource; raises BadRequest if it or a type field has a wrong type."""

    def visit(value: Any, path: str) -> None:
        for name in ("apiVersion", "kind"):
            if name in value and type(value[name]) is not str:
                raise _undecodable(obj, f"{path}.{name}", value[name], "must be a string")
        if "metadata" in value:
            try:
                coerce(value["metadata"], unknown, f"{path}.metadata")
            except ValueError as problem:
                raise _undecodable(obj, f"{path}.metadata", value["metadata"], str(problem)) from None

    _visit_embedded(node, obj, "", visit)


def _undecodable(obj: Object, field: str, value: Any, detail: str) -> BadRequest:
    kind, version = obj.get("kind"), str(obj.get("apiVersion", "")).rpartition("/")[2]
    problem = f"{field}: Invalid value: {format_value(value)}: {detail}"
    return BadRequest(f'{kind} in version "{version}" cannot be handled as a {kind}: {problem}')


def has_embedded(node: Node) -> bool:
    return node.embedded or any(map(has_embedded, node.children))


def _visit_embedded(node: Node | None, value: Any, path: str, visit: Visit) -> None:
    if node is None:
        return
    if type(value) is dict:
        if node.embedded:
            visit(value, path)
        for name, sub in value.items():
            if name in node.properties:
                _visit_embedded(node.properties[name], sub, f"{path}.{name}" if path else name, visit)
            elif node.additional is not None:
                _visit_embedded(node.additional, sub, f"{path}[{name}]", visit)
    elif type(value) is list:
        for index, item in enumerate(value):
            _visit_embedded(node.items, item, f"{path}[{index}]", visit)


def validate_embedded(node: Node, obj: Any, base: str = "", *, root: bool = False) -> list[FieldError]:
    """Return the errors in type and metadata of embedded resources, and of the value itself if it is a resource."""
    errors: list[FieldError] = []
    if root and not node.embedded and type(obj) is dict:
        _validate_one(obj, base, errors)
    _visit_embedded(node, obj, base, lambda value, path: _validate_one(value, path, errors))
    return errors


def _validate_one(value: Object, path: str, errors: list[FieldError]) -> None:
    at = f"{path}." if path else ""
    for name in ("apiVersion", "kind"):
        if name not in value:
            errors.append(FieldError("FieldValueRequired", f"{at}{name}", "Required value"))
        else:
            problem = _type_problem(name, value[name])
            if problem:
                errors.append(_invalid(f"{at}{name}", value[name], problem))
    if "metadata" in value:
        try:
            coerce(value["metadata"], [])
        except ValueError as malformed:
            errors.append(_invalid(f"{at}metadata", value["metadata"], str(malformed)))
        else:
            _validate_metadata(value["metadata"], f"{at}metadata", errors)


def _type_problem(name: str, value: Any) -> str:
    if type(value) is not str:
        return "must be a string"
    if not value:
        return "must not be empty"
    if name == "apiVersion":
        return f"unexpected GroupVersion string: {value}" if value.count("/") > 1 else ""
    problems = names.dns1035_label(value.lower())
    return "may have mixed case, but should otherwise match: " + ",".join(problems) if problems else ""


def _invalid(field: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", field, f"Invalid value: {format_value(value)}: {detail}")


def _validate_metadata(metadata: Object, path: str, errors: list[FieldError]) -> None:
    """Validate what a client can set: names, label and annotation keys and values, owners, finalizers."""
    for name in ("generateName", "name"):
        if metadata.get(name):
            errors.extend(_invalid(f"{path}.{name}", metadata[name], p) for p in names.path_segment(metadata[name]))
    if metadata.get("namespace"):
        problems = names.dns1123_label(metadata["namespace"])
        errors.extend(_invalid(f"{path}.namespace", metadata["namespace"], p) for p in problems)
    if (metadata.get("generation") or 0) < 0:
        errors.append(_invalid(f"{path}.generation", metadata["generation"], "must be greater than or equal to 0"))
    for key, value in (metadata.get("labels") or {}).items():
        errors.extend(_invalid(f"{path}.labels", key, p) for p in names.qualified_name(key))
        errors.extend(_invalid(f"{path}.labels", value, p) for p in names.label_value(value))
    for key in metadata.get("annotations") or {}:
        errors.extend(_invalid(f"{path}.annotations", key, p) for p in names.qualified_name(key.lower()))
    for owner in metadata.get("ownerReferences") or ():
        _validate_owner(owner, f"{path}.ownerReferences", errors)
    for finalizer in metadata.get("finalizers") or ():
        errors.extend(_invalid(f"{path}.finalizers", finalizer, p) for p in names.qualified_name(finalizer))


def _validate_owner(owner: Object, path: str, errors: list[FieldError]) -> None:
    version = str(owner.get("apiVersion") or "").rpartition("/")[2]
    for name, value, message in (
        ("apiVersion", version, "version must not be empty"),
        ("kind", owner.get("kind"), "must not be empty"),
        ("name", owner.get("name"), "must not be empty"),
        ("uid", owner.get("uid"), "must not be empty"),
    ):
        if not value:
            errors.append(_invalid(f"{path}.{name}", owner.get(name) or "", message))
