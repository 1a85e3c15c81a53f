"""Patch strategies and merge keys of a type, from its OpenAPI schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from herder.engine.patch.patches.strategic_errors import failed

Schema = Mapping[str, Any]
Definitions = Mapping[str, Schema] | Callable[[str], Schema]


class Strategy(NamedTuple):
    """x-kubernetes-patch-strategy and merge key of a field."""

    merges: bool = False
    replaces: bool = False
    merge_key: str = ""


class PatchSchema:
    """Schema of one object. Below a map with arbitrary keys, lookups return an empty schema."""

    __slots__ = ("_definitions", "_schema")

    def __init__(self, schema: Schema, definitions: Definitions) -> None:
        self._schema = dereference(schema, definitions)
        self._definitions = definitions

    def struct_field(self, key: str) -> tuple[PatchSchema, Strategy]:
        field = self._field(key)
        return PatchSchema(field, self._definitions), _strategy(field)

    def list_field(self, key: str) -> tuple[PatchSchema, Strategy]:
        field = self._field(key)
        items = dereference(field, self._definitions).get("items") or {}
        return PatchSchema(items, self._definitions), _strategy(field)

    def kind_name(self) -> str:
        return str(self._schema.get("type") or "struct")

    def _field(self, key: str) -> Schema:
        found = (self._schema.get("properties") or {}).get(key)
        if found is None:
            found = self._schema.get("additionalProperties")
            if not isinstance(found, Mapping):
                found = {} if not self._schema.get("properties") else None
        if found is None:
            raise failed(f'unable to find api field "{key}"')
        return found


def _strategy(field: Schema) -> Strategy:
    strategies = str(field.get("x-kubernetes-patch-strategy") or "").split(",")
    return Strategy(
        "merge" in strategies, "replace" in strategies, str(field.get("x-kubernetes-patch-merge-key") or "")
    )


def dereference(schema: Schema, definitions: Definitions) -> Schema:
    """Return the schema that a `$ref` refers to, also if it is the only entry of an `allOf`, as in OpenAPI v3."""
    name = reference_name(schema)
    if not name:
        return schema
    return definitions(name) if callable(definitions) else definitions[name]


def reference_name(schema: Schema) -> str:
    target = schema.get("$ref")
    if target is None:
        parts: Sequence[Schema] = schema.get("allOf") or ()
        target = parts[0].get("$ref") if len(parts) == 1 else None
    return str(target).rpartition("/")[2] if target else ""
