"""Parse the Go type expressions of the generated data, for JSON and protobuf decoding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from herder.engine.apiserver.builtin.data import StructField, package

LEAVES = frozenset({
    "meta.v1.Time", "meta.v1.MicroTime", "meta.v1.Duration", "meta.v1.FieldsV1", "runtime.RawExtension",
    "intstr.IntOrString", "resource.Quantity", "apiextensions.v1.JSON", "apiextensions.v1.JSONSchemaPropsOrArray",
    "apiextensions.v1.JSONSchemaPropsOrBool", "apiextensions.v1.JSONSchemaPropsOrStringArray",
})  # fmt: skip
"""Types with custom marshalling: their JSON differs from that of their fields."""

BASIC = frozenset({"string", "bool", "int", "int32", "int64", "uint8", "uint32", "float64"})


@dataclass(frozen=True, slots=True)
class GoType:
    """A parsed Go type."""

    kind: str  # a basic type, or: bytes, slice, map, struct, leaf
    name: str  # as error messages show it: `v1.RestartPolicy`, `[]v1.Container`, `int32`
    pointer: bool = False
    id: str = ""  # structs and leaves: `core.v1.PodSpec`
    element: GoType | None = None  # slices, maps and pointers to them


@cache
def parse(expression: str) -> GoType:
    """Parse a Go type expression, resolving named types."""
    if expression.startswith("*"):
        pointed = parse(expression[1:])
        return GoType(pointed.kind, pointed.name, True, pointed.id, pointed.element)
    if expression in {"[]byte", "[]uint8"}:
        return GoType("bytes", "[]uint8")
    if expression.startswith("[]"):
        return GoType("slice", printed(expression), element=parse(expression[2:]))
    if expression.startswith("map["):
        return GoType("map", printed(expression), element=parse(expression[expression.index("]") + 1 :]))
    if expression in BASIC:
        return GoType(expression, expression)
    return _named(expression)


def _named(expression: str) -> GoType:
    if expression in LEAVES:
        return GoType("leaf", printed(expression), id=expression)
    scope, _, name = expression.rpartition(".")
    if scope == "types":  # apimachinery's string types: UID, NodeName
        return GoType("string", expression)
    known = package(scope)
    if name in known.structs:
        return GoType("struct", printed(expression), id=expression)
    underlying = parse(known.types[name])
    return GoType(underlying.kind, printed(expression), underlying.pointer, underlying.id, underlying.element)


def printed(expression: str) -> str:
    """Format like Go's reflection: the last element of the package path and the name."""
    return re.sub(r"\w+\.(v\d\w*\.\w+)", r"\1", expression).replace("byte", "uint8")


def struct_fields(struct: str) -> list[StructField]:
    """Return the fields of a struct such as `core.v1.PodSpec`."""
    scope, _, name = struct.rpartition(".")
    return package(scope).structs[name]
