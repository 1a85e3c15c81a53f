"""Build structural schemas. A property whose name ends in `!` is required."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from herder.engine.meta.kinds import Object

Schema = Object

BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
INT_OR_STRING: Schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
ANYTHING: Schema = {"x-kubernetes-preserve-unknown-fields": True}
OPEN_OBJECT: Schema = {"type": "object", **ANYTHING}


def string(
    description: str = "",
    *,
    min: int | None = None,
    max: int | None = None,
    pattern: str | None = None,
    enum: Sequence[str] | None = None,
    rules: Sequence[Schema] | None = None,
) -> Schema:
    return _facets(
        "string",
        description=description or None,
        minLength=min,
        maxLength=max,
        pattern=pattern,
        enum=list(enum) if enum else None,
        **_rules(rules),
    )


def int32(description: str = "", *, min: int | None = None, max: int | None = None) -> Schema:
    return _facets("integer", description=description or None, format="int32", minimum=min, maximum=max)


def int64(description: str = "", *, min: int | None = None) -> Schema:
    return _facets("integer", description=description or None, format="int64", minimum=min)


def record(
    properties: Mapping[str, Schema], description: str = "", *, filled: bool = False, atomic: bool = False
) -> Schema:
    """Return an object schema. `filled` requires at least one property; `atomic` is applied as a whole."""
    required = [name.removesuffix("!") for name in properties if name.endswith("!")]
    facets = _facets(
        "object", description=description or None, minProperties=1 if filled else None, required=required or None
    )
    facets["properties"] = {name.removesuffix("!"): schema for name, schema in properties.items()}
    return facets | {"x-kubernetes-map-type": "atomic"} if atomic else facets


def string_map(description: str = "") -> Schema:
    return _facets("object", description=description or None, additionalProperties={"type": "string"})


def plain_list(items: Schema, description: str = "") -> Schema:
    """Return a list schema without a merge strategy."""
    return _facets("array", description=description or None, items=items)


def atomic_list(
    items: Schema,
    description: str = "",
    *,
    min: int | None = None,
    max: int | None = None,
    rules: Sequence[Schema] | None = None,
) -> Schema:
    facets = _facets("array", description=description or None, minItems=min, maxItems=max, **_rules(rules))
    return facets | {"items": items, "x-kubernetes-list-type": "atomic"}


def map_list(
    keys: Sequence[str], items: Schema, description: str = "", *, min: int | None = None, max: int | None = None
) -> Schema:
    """Return a list schema whose items are identified by the values of `keys`."""
    facets = _facets("array", description=description or None, minItems=min, maxItems=max)
    return facets | {"items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def rule(expression: str, message: str) -> Schema:
    return {"rule": expression, "message": message}


def with_description(schema: Schema, description: str) -> Schema:
    """Return a copy of a shared schema with another description."""
    return {**schema, "description": description}


def _rules(rules: Sequence[Schema] | None) -> Schema:
    return {"x-kubernetes-validations": list(rules) if rules else None}


def _facets(type_: str, **facets: Any) -> Schema:
    return {"type": type_, **{name: value for name, value in facets.items() if value is not None}}
