"""Convert OpenAPI schemas to CEL types: the type of `self` and the maximum size of each part.

Sizes matter because a rule is rejected if its worst case over the largest possible request is too expensive. They
follow from `maxLength`, `maxItems` and `maxProperties`, or else from what fits into one request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herder.engine.schema.cel.parse.escaping import escape
from herder.engine.schema.cel.types import BOOL, DOUBLE, INT, STRING, Field, ObjectType, Type

Schema = Mapping[str, Any]

MAX_REQUEST_BYTES = 3 * 1024 * 1024
_MAX_STRING_BYTES = MAX_REQUEST_BYTES - 2
_MAX_TIME_LENGTH = 32
_DATE_SIZE = 12

_STRING_SCHEMA: Schema = {"type": "string"}
_META_SCHEMA: Schema = {"type": "object", "properties": {"name": _STRING_SCHEMA, "generateName": _STRING_SCHEMA}}
_ROOT_PROPERTIES: Mapping[str, Schema] = {
    "kind": _STRING_SCHEMA,
    "apiVersion": _STRING_SCHEMA,
    "metadata": _META_SCHEMA,
}


def schema_type(schema: Schema, *, resource_root: bool = False, name: str = "selfType") -> Type | None:
    """Return the CEL type of values of `schema`, or None if expressions cannot access such values.

    At the root of a resource (also an embedded one), apiVersion, kind and metadata.name/generateName are always
    present.
    """
    if schema.get("x-kubernetes-int-or-string"):
        return _int_or_string(schema)
    kind = schema.get("type")
    if resource_root:
        return _object(_with_root_properties(schema), name)
    if kind == "object":
        return _map_or_object(schema, name)
    if kind == "array":
        return _array(schema, name)
    if kind == "string":
        return _string(schema)
    return {"boolean": BOOL, "number": DOUBLE, "integer": INT}.get(kind or "")


def _int_or_string(schema: Schema) -> Type:
    longest = 4 * schema["maxLength"] if "maxLength" in schema else _MAX_STRING_BYTES
    return Type("dyn", max_elements=longest, min_size=1)


def _with_root_properties(schema: Schema) -> Schema:
    properties = schema.get("properties") or {}
    meta = properties.get("metadata") or {}
    meta_properties = meta.get("properties") or {}
    complete = (
        _is_string(properties.get("kind"))
        and _is_string(properties.get("apiVersion"))
        and meta.get("type") == "object"
        and _is_string(meta_properties.get("name"))
        and _is_string(meta_properties.get("generateName"))
    )
    if complete:
        return schema
    return {**schema, "properties": {**properties, **_ROOT_PROPERTIES}}


def _is_string(schema: Schema | None) -> bool:
    return bool(schema) and schema is not None and schema.get("type") == "string"


def _map_or_object(schema: Schema, name: str) -> Type | None:
    extra = schema.get("additionalProperties")
    if not isinstance(extra, Mapping):
        return _object(schema, name)
    value = schema_type(extra, resource_root=_embedded(extra), name=f"{name}.@elem")
    if value is None:
        return None
    largest = (MAX_REQUEST_BYTES - 2) // (value.min_size + 6)
    most = _bound(schema, "maxProperties", largest)
    return Type("map", "map", (STRING, value), max_elements=most, min_size=2)


def _object(schema: Schema, name: str) -> Type:
    required = set(schema.get("required") or ())
    fields: dict[str, Field] = {}
    min_size = 2
    for key, prop in (schema.get("properties") or {}).items():
        escaped = escape(key)
        type = schema_type(prop, resource_root=_embedded(prop), name=f"{name}.{escaped}")
        if type is None:
            continue
        if escaped is not None:
            fields[escaped] = Field(key, type)
        if key in required and prop.get("default") is None:
            min_size += len(key) + type.min_size + 4
    return ObjectType(name, fields, min_size=min_size)


def _array(schema: Schema, name: str) -> Type | None:
    items = schema.get("items")
    if not isinstance(items, Mapping):
        return None
    element = schema_type(items, resource_root=_embedded(items), name=f"{name}.@idx")
    if element is None:
        return None
    most = _bound(schema, "maxItems", (MAX_REQUEST_BYTES - 2) // (element.min_size + 1))
    return Type(
        "list",
        "list",
        (element,),
        max_elements=most,
        min_size=2,
        list_type=schema.get("x-kubernetes-list-type") or "atomic",
        list_keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
    )


def _string(schema: Schema) -> Type:
    match schema.get("format"):
        case "byte":
            return Type("bytes", max_elements=_bound(schema, "maxLength", _MAX_STRING_BYTES), min_size=2)
        case "duration":
            return Type("duration", "google.protobuf.Duration", max_elements=_MAX_TIME_LENGTH, min_size=3)
        case "date":
            return Type("timestamp", "google.protobuf.Timestamp", max_elements=_DATE_SIZE, min_size=_DATE_SIZE)
        case "date-time":
            return Type("timestamp", "google.protobuf.Timestamp", max_elements=_MAX_TIME_LENGTH, min_size=21)
    return Type("string", max_elements=_max_string_bytes(schema), min_size=2)


def _max_string_bytes(schema: Schema) -> int:
    """Return the maximum size in bytes: a character of `maxLength` may take four."""
    if "maxLength" in schema:
        return 4 * max(0, int(schema["maxLength"]))
    values = schema.get("enum")
    if values:
        return max((len(value.encode()) for value in values if isinstance(value, str)), default=0)
    return _MAX_STRING_BYTES


def _bound(schema: Schema, keyword: str, otherwise: int) -> int:
    value = schema.get(keyword)
    return otherwise if value is None else max(0, int(value))


def _embedded(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-embedded-resource"))
