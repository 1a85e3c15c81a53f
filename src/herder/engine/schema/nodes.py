"""Structural schema as a tree of nodes, from which pruning, defaulting, validation and rules are compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from herder.engine.schema import formats

Schema = Mapping[str, Any]
META_FIELDS = frozenset(("apiVersion", "kind", "metadata"))
_NUMBER_FORMATS = {"integer": ("int32", "int64"), "number": ("float", "double")}


@dataclass(slots=True, eq=False)
class Node:
    """One schema, with normalized keywords."""

    schema: Schema
    types: tuple[str, ...]  # both for an int-or-string
    format: str  # empty if the server ignores it
    nullable: bool
    default: Any
    properties: dict[str, Node]
    additional: Node | None
    additional_set: bool  # additionalProperties is set, to a schema or a boolean
    additional_allowed: bool
    items: Node | None
    preserve: bool
    embedded: bool
    int_or_string: bool
    list_type: str
    list_keys: tuple[str, ...]
    rules: tuple[Schema, ...]
    all_of: tuple[Node, ...] = ()
    any_of: tuple[Node, ...] = ()
    one_of: tuple[Node, ...] = ()
    negated: Node | None = None
    required: tuple[str, ...] = ()
    enum: tuple[Any, ...] = ()
    children: tuple[Node, ...] = field(default=())

    @property
    def type(self) -> str:
        return str(self.schema.get("type") or "")


def read(schema: Schema) -> Node:
    additional = schema.get("additionalProperties")
    properties = {name: read(sub) for name, sub in (schema.get("properties") or {}).items()}
    items = schema.get("items")
    node = Node(
        schema=schema,
        types=_types(schema),
        format=_format(schema),
        nullable=bool(schema.get("nullable")),
        default=schema.get("default"),
        properties=properties,
        additional=read(additional) if isinstance(additional, Mapping) else None,
        additional_set=additional is not None,
        additional_allowed=additional is None or isinstance(additional, Mapping) or bool(additional),
        items=read(items) if isinstance(items, Mapping) else None,
        preserve=bool(schema.get("x-kubernetes-preserve-unknown-fields")),
        embedded=bool(schema.get("x-kubernetes-embedded-resource")),
        int_or_string=bool(schema.get("x-kubernetes-int-or-string")),
        list_type=schema.get("x-kubernetes-list-type") or "",
        list_keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
        rules=tuple(schema.get("x-kubernetes-validations") or ()),
        all_of=tuple(read(sub) for sub in schema.get("allOf") or ()),
        any_of=tuple(read(sub) for sub in schema.get("anyOf") or ()),
        one_of=tuple(read(sub) for sub in schema.get("oneOf") or ()),
        negated=read(schema["not"]) if schema.get("not") is not None else None,
        required=tuple(schema.get("required") or ()),
        enum=tuple(schema.get("enum") or ()),
    )
    node.children = (
        *properties.values(),
        *((node.items,) if node.items else ()),
        *((node.additional,) if node.additional else ()),
    )
    return node


def _types(schema: Schema) -> tuple[str, ...]:
    if schema.get("x-kubernetes-int-or-string"):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


def _format(schema: Schema) -> str:
    """Return the format if the server supports it for this type; others are dropped before validation."""
    name: str = schema.get("format") or ""
    types = _types(schema)
    only = types[0] if len(types) == 1 else ""
    if only in ("", "string"):
        return name if formats.check_for(name) else ""
    return name if name in _NUMBER_FORMATS.get(only, ()) else ""


def unrecognized_formats(schema: Schema) -> list[str]:
    """Return the formats in a schema that the server ignores, for a warning."""
    found = [schema["format"]] if schema.get("format") and not _format(schema) else []
    below = [*(schema.get("properties") or {}).values()]
    for keyword in ("allOf", "anyOf", "oneOf"):
        below += schema.get(keyword) or ()
    below += [schema.get(keyword) for keyword in ("items", "additionalProperties", "not")]
    for sub in below:
        if isinstance(sub, Mapping):
            found += unrecognized_formats(sub)
    return found
