"""Decode JSON to built-in types and normalize it, like Go's decoder and encoder do.

The result is the object as kube-apiserver would encode it: unknown fields are removed (and reported), empty values that
Go omits are removed, those that Go always writes are added (`status: {}`, `resources: {}`), and times and quantities
are canonical. Codecs of structs are built on first use, because most requests need few of the thousand types.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

from herder.engine.apiserver.builtin import gotypes, leaves
from herder.engine.apiserver.builtin.gotypes import GoType
from herder.engine.apiserver.builtin.leaves import Mismatch, json_kind

Unknown = list[str]
"""Paths of unknown fields, in document order."""
Decode = Callable[[Any, Unknown], Any]


class _Field:
    """Decoder and encoding rules of one field."""

    __slots__ = ("always", "decode", "exact", "keep_empty", "path", "zero")

    def __init__(self, decode: Decode, path: list[str], go_type: GoType, omitted: str) -> None:
        self.decode = decode
        self.path = path
        # Values of exactly this Python type need no decoding.
        self.exact: type | None = {"string": str, "bool": bool}.get(go_type.kind)
        is_object = go_type.kind in {"struct", "leaf"}
        # Storage does not distinguish empty lists from absent ones, so responses have null for both.
        is_collection = go_type.kind in {"slice", "map", "bytes"}
        self.keep_empty = go_type.pointer or is_object or not (omitted or is_collection)
        self.always = not omitted or ("z" not in omitted and is_object and not go_type.pointer)
        self.zero: Callable[[], Any] = zero_of(go_type)


class StructCodec:
    """Codec of one Go struct. `decode` returns a new dict and does not modify its argument."""

    __slots__ = ("_always", "_fields", "id", "name")

    def __init__(self, struct: str) -> None:
        self.id = struct
        self.name = struct.rpartition(".")[2]
        self._fields: dict[str, _Field] | None = None
        self._always: list[tuple[str, _Field]] = []

    def fields(self) -> dict[str, _Field]:
        if self._fields is None:
            fields: dict[str, _Field] = {}
            _collect(self.id, [], fields)
            self._always = [(name, field) for name, field in fields.items() if field.always]
            self._fields = fields
        return self._fields

    def decode(self, value: Any, unknown: Unknown) -> dict[str, Any]:
        if type(value) is not dict:
            raise Mismatch(json_kind(value), gotypes.printed(self.id))
        fields = self._fields or self.fields()
        out: dict[str, Any] = {}
        for key, item in value.items():
            field = fields.get(key)
            if field is None:
                unknown.append(key)
                continue
            if item is None:
                continue  # null is the zero value
            if type(item) is not field.exact:
                item = self._decode_field(key, field, item, unknown)
            if item or field.keep_empty:
                out[key] = item
        for key, field in self._always:
            if key not in out:
                out[key] = field.zero()
        return out

    def _decode_field(self, key: str, field: _Field, item: Any, unknown: Unknown) -> Any:
        before = len(unknown)
        try:
            item = field.decode(item, unknown)
        except Mismatch as mismatch:
            mismatch.struct = mismatch.struct or self.name
            mismatch.path[:0] = field.path
            raise
        for position in range(before, len(unknown)):
            below = unknown[position]
            unknown[position] = f"{key}{below}" if below.startswith("[") else f"{key}.{below}"
        return item

    def zero(self) -> dict[str, Any]:
        self.fields()
        return {key: field.zero() for key, field in self._always}


def _collect(struct: str, prefix: list[str], fields: dict[str, _Field]) -> None:
    """Collect the fields of a struct by JSON name, including those of embedded structs."""
    for field in gotypes.struct_fields(struct):
        go_type = gotypes.parse(field.type)
        if not field.json:
            _collect(go_type.id, [*prefix, go_type.id.rpartition(".")[2]], fields)
        else:
            fields[field.json] = _Field(decoder(go_type), [*prefix, field.json], go_type, field.omitted)


@cache
def struct_codec(struct: str) -> StructCodec:
    return StructCodec(struct)


# --- decoders by type -------------------------------------------------------------------------------------------


def decoder(go_type: GoType) -> Decode:
    """Return the decode function of a Go type."""
    kind = go_type.kind
    if kind == "struct":
        return struct_codec(go_type.id).decode
    if kind == "leaf":
        return _LEAVES[go_type.id]
    if kind == "slice":
        assert go_type.element is not None
        return _slice(go_type.name, go_type.element)
    if kind == "map":
        assert go_type.element is not None
        return _map(go_type.name, go_type.element)
    if kind == "bytes":
        return lambda value, _: leaves.byte_string(value)
    return _basic(kind, go_type.name)


def _basic(kind: str, name: str) -> Decode:
    if kind == "string":
        return lambda value, _: value if type(value) is str else _mismatch(value, name)
    if kind == "bool":
        return lambda value, _: value if type(value) is bool else _mismatch(value, name)
    if kind == "float64":
        return lambda value, _: value if type(value) in (int, float) else _mismatch(value, name)
    return lambda value, _: leaves.integer(value, kind, name)


def _mismatch(value: Any, name: str) -> Any:
    raise Mismatch(json_kind(value), name)


def _slice(name: str, element: GoType) -> Decode:
    exact = {"string": str, "bool": bool}.get(element.kind)
    decode, zero = decoder(element), zero_of(element)

    def decode_slice(value: Any, unknown: Unknown) -> Any:
        if type(value) is not list:
            raise Mismatch(json_kind(value), name)
        out: list[Any] = []
        for position, item in enumerate(value):
            if type(item) is exact:
                out.append(item)
            elif item is None:
                out.append(zero())
            else:
                before = len(unknown)
                out.append(decode(item, unknown))
                for index in range(before, len(unknown)):
                    below = unknown[index]
                    unknown[index] = f"[{position}]{below}" if below.startswith("[") else f"[{position}].{below}"
        return out

    return decode_slice


def _map(name: str, element: GoType) -> Decode:
    exact = {"string": str, "bool": bool}.get(element.kind)
    decode = decoder(element) if name != "v1.ResourceList" else (lambda item, _: leaves.resource_quantity(item))
    zero = (lambda: "") if element.kind == "bytes" else zero_of(element)

    def decode_map(value: Any, unknown: Unknown) -> Any:
        if type(value) is not dict:
            raise Mismatch(json_kind(value), name)
        out: dict[str, Any] = {}
        for key, item in value.items():
            if type(item) is exact:
                out[key] = item
            elif item is None:
                out[key] = zero()
            else:
                before = len(unknown)
                out[key] = decode(item, unknown)
                for index in range(before, len(unknown)):
                    below = unknown[index]
                    unknown[index] = f"{key}{below}" if below.startswith("[") else f"{key}.{below}"
        return out

    return decode_map


def _any_value(value: Any, _: Unknown) -> Any:
    return copy.deepcopy(value) if isinstance(value, (dict, list)) else value


_SCHEMA = "apiextensions.v1.JSONSchemaProps"


def _schema_or_array(value: Any, unknown: Unknown) -> Any:
    if isinstance(value, list):
        return [struct_codec(_SCHEMA).decode(item, unknown) for item in value]
    return struct_codec(_SCHEMA).decode(value, unknown) if isinstance(value, dict) else None


def _schema_or_bool(value: Any, unknown: Unknown) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return struct_codec(_SCHEMA).decode(value, unknown)
    raise leaves.Unreadable("boolean or JSON schema expected")


def _schema_or_strings(value: Any, unknown: Unknown) -> Any:
    if isinstance(value, list):
        return _slice("[]string", gotypes.parse("string"))(value, unknown)
    return struct_codec(_SCHEMA).decode(value, unknown) if isinstance(value, dict) else None


_LEAVES: dict[str, Decode] = {
    "meta.v1.Time": lambda value, _: leaves.time(value),
    "meta.v1.MicroTime": lambda value, _: leaves.micro_time(value),
    "meta.v1.Duration": lambda value, _: leaves.duration(value),
    "meta.v1.FieldsV1": _any_value,
    "runtime.RawExtension": _any_value,
    "intstr.IntOrString": lambda value, _: leaves.int_or_string(value),
    "resource.Quantity": lambda value, _: leaves.quantity(value),
    "apiextensions.v1.JSON": _any_value,
    "apiextensions.v1.JSONSchemaPropsOrArray": _schema_or_array,
    "apiextensions.v1.JSONSchemaPropsOrBool": _schema_or_bool,
    "apiextensions.v1.JSONSchemaPropsOrStringArray": _schema_or_strings,
}

_ZERO_LEAVES: dict[str, Any] = {"meta.v1.Duration": "0s", "intstr.IntOrString": 0, "resource.Quantity": "0"}
_ZERO_BASIC: dict[str, Any] = {"string": "", "bool": False, "float64": 0}


def zero_of(go_type: GoType) -> Callable[[], Any]:
    """Return a function that returns what Go encodes for an unset value."""
    if go_type.pointer or go_type.kind in {"slice", "map", "bytes"}:
        return lambda: None
    if go_type.kind == "struct":
        codec = struct_codec(go_type.id)
        return lambda: codec.zero()
    if go_type.kind == "leaf":
        leaf = _ZERO_LEAVES.get(go_type.id)
        return lambda: leaf
    basic = _ZERO_BASIC.get(go_type.kind, 0)
    return lambda: basic
