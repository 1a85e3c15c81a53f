r"""Decode Kubernetes protobuf bodies to JSON-like objects.

Go clients send built-in kinds as protobuf and do not fall back to JSON. A body is the magic `k8s\0`, followed by a
`runtime.Unknown` with the kind and the object's message, whose field numbers are in the generated data. The result
equals what the same client would have sent as JSON, so that the type model handles both alike.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import msgspec

from herder.engine.apiserver.builtin import data, gotypes, leaves
from herder.engine.apiserver.builtin.gotypes import GoType
from herder.engine.apiserver.builtin.protowire import (
    BYTES,
    FIXED64,
    VARINT,
    Malformed,
    as_bytes,
    as_integer,
    as_text,
    fields_of,
    varint,
)
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import GroupVersion, GroupVersionKind, Object

MAGIC = b"k8s\x00"
_EXCERPT_BYTES = 30  # bytes of the body in an error message


def decode(body: bytes, default: GroupVersionKind | None = None) -> Object:
    """Decode the object in a protobuf body; `default` is its kind if the body has none."""
    try:
        if not body.startswith(MAGIC):
            raise Malformed("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
        if len(body) == len(MAGIC):
            raise Malformed("empty body")
        envelope = _Envelope.read(body[len(MAGIC) :])
        if envelope.content_type == "application/json":
            return _embedded_object(envelope.raw)
    except (Malformed, msgspec.DecodeError, UnicodeDecodeError) as error:
        wanted = f" (must be of type {default.kind})" if default else ""
        raise BadRequest(f"the object provided is unrecognized{wanted}: {error} ({_excerpt(body)})") from None
    return _decode_object(envelope, default)


def _excerpt(body: bytes) -> str:
    """Format a body that is not JSON like kube-apiserver's messages do."""
    text = body[:_EXCERPT_BYTES].hex()
    return f"{text} ..." if len(body) > _EXCERPT_BYTES else text or "<empty>"


@dataclass(frozen=True, slots=True)
class _Envelope:
    """A `runtime.Unknown` message."""

    api_version: str
    kind: str
    raw: bytes
    content_type: str

    @classmethod
    def read(cls, body: bytes) -> _Envelope:
        api_version, kind, raw, content_type = "", "", b"", ""
        for number, wire, value in fields_of(body):
            if number == 1:
                for inner, inner_wire, text in fields_of(as_bytes(wire, value)):
                    if inner == 1:
                        api_version = as_text(inner_wire, text)
                    elif inner == 2:
                        kind = as_text(inner_wire, text)
            elif number == 2:
                raw = as_bytes(wire, value)
            elif number == 3:
                as_text(wire, value)  # contentEncoding is unused, but its wire type is checked
            elif number == 4:
                content_type = as_text(wire, value)
        return cls(api_version, kind, raw, content_type)

    def named(self, default: GroupVersionKind | None) -> GroupVersionKind:
        if default is None:
            return GroupVersionKind(*GroupVersion.parse(self.api_version), self.kind)
        group, version = GroupVersion.parse(self.api_version) if self.api_version else default[:2]
        return GroupVersionKind(group, version, self.kind or default.kind)


def _decode_object(envelope: _Envelope, default: GroupVersionKind | None) -> Object:
    kind = envelope.named(default)
    obj: Object = {"kind": kind.kind, "apiVersion": kind.api_version}
    try:
        _message(_struct_for(kind), obj, envelope.raw)
    except (Malformed, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(kind, default, str(error)) from None
    except RecursionError:
        raise _unreadable(kind, default, "messages nested too deeply") from None
    return obj


def _unreadable(kind: GroupVersionKind, default: GroupVersionKind | None, why: str) -> BadRequest:
    wanted = (default or kind).kind
    return BadRequest(f'{kind.kind} in version "{kind.version}" cannot be handled as a {wanted}: {why}')


def _embedded_object(raw: bytes) -> Object:
    obj = msgspec.json.decode(raw)
    if not isinstance(obj, dict):
        raise Malformed("the embedded document is not an object")
    return obj


def _struct_for(kind: GroupVersionKind) -> str:
    """Return the struct of a kind. Options and meta kinds are registered in every group version."""
    short = data.package_of(kind.group, kind.version)
    if short in data.index().packages.values() and kind.kind in data.package(short).structs:
        return f"{short}.{kind.kind}"
    if kind.kind in data.package("meta.v1").structs:
        return f"meta.v1.{kind.kind}"
    raise Malformed(f'no kind "{kind.kind}" is registered for version "{kind.api_version}"')


# --- messages ---------------------------------------------------------------------------------------------------

Read = Callable[[int, int | bytes], Any]
# Sets one field of a message in the JSON object under construction.
Put = Callable[[Object, int, int | bytes], None]


def _message(struct: str, into: Object, body: bytes) -> None:
    fields = _struct_fields(struct)
    for number, wire, value in fields_of(body):
        put = fields.get(number)
        if put is not None:  # unknown fields of newer clients are skipped, like in Go
            put(into, wire, value)


@cache
def _struct_fields(struct: str) -> dict[int, Put]:
    return {
        field.number: _embedded(gotypes.parse(field.type).id) if not field.json else _put(field)
        for field in gotypes.struct_fields(struct)
        if field.number
    }


def _embedded(struct: str) -> Put:
    return lambda into, wire, value: _message(struct, into, as_bytes(wire, value))


def _put(field: data.StructField) -> Put:
    go_type, name = gotypes.parse(field.type), field.json
    if go_type.kind == "slice" and not _is_message(go_type):
        return _repeated(name, go_type)
    if go_type.kind == "map":
        return _map_entry(name, go_type)
    if go_type.kind == "struct":
        struct = go_type.id

        def put_message(into: Object, wire: int, value: int | bytes) -> None:
            _message(struct, into.setdefault(name, {}), as_bytes(wire, value))

        return put_message
    read = _reader(go_type)

    def put_value(into: Object, wire: int, value: int | bytes) -> None:
        into[name] = read(wire, value)

    return put_value


def _is_message(slice_type: GoType) -> bool:
    """Whether a named slice of strings (ExtraValue, Verbs) is a message of its own, with the items as field 1."""
    named = not slice_type.name.startswith("[]")
    return named and slice_type.element is not None and slice_type.element.kind == "string"


def _repeated(name: str, go_type: GoType) -> Put:
    assert go_type.element is not None
    read = _reader(go_type.element)
    packable = go_type.element.kind in {"int32", "int64", "bool"}

    def put_item(into: Object, wire: int, value: int | bytes) -> None:
        items = into.setdefault(name, [])
        if packable and wire == BYTES and not isinstance(value, int):
            position = 0
            while position < len(value):
                number, position = varint(value, position, len(value))
                items.append(read(VARINT, number))
        else:
            items.append(read(wire, value))

    return put_item


def _map_entry(name: str, go_type: GoType) -> Put:
    assert go_type.element is not None
    read = _reader(go_type.element)
    empty = {"string": "", "bytes": ""}.get(go_type.element.kind)

    def put_entry(into: Object, wire: int, value: int | bytes) -> None:
        key, item = "", empty
        for number, inner, field in fields_of(as_bytes(wire, value)):
            if number == 1:
                key = as_text(inner, field)
            elif number == 2:
                item = read(inner, field)
        into.setdefault(name, {})[key] = item

    return put_entry


def _reader(go_type: GoType) -> Read:
    kind = go_type.kind
    if kind == "struct":
        return lambda wire, value: _new_message(go_type.id, as_bytes(wire, value))
    if kind == "leaf":
        leaf = _LEAVES[go_type.id]
        return lambda wire, value: leaf(as_bytes(wire, value))
    if kind == "slice":
        assert go_type.element is not None
        put = _repeated("items", go_type)
        return lambda wire, value: _named_slice(put, as_bytes(wire, value))
    return _BASIC[kind]


def _new_message(struct: str, body: bytes) -> Object:
    obj: Object = {}
    _message(struct, obj, body)
    return obj


def _named_slice(put: Put, body: bytes) -> list[Any]:
    holder: Object = {"items": []}
    for number, wire, value in fields_of(body):
        if number == 1:
            put(holder, wire, value)
    items: list[Any] = holder["items"]
    return items


def _double(wire: int, value: int | bytes) -> float:
    import struct

    if wire != FIXED64 or isinstance(value, int):
        raise Malformed(f"wrong wireType = {wire}")
    number: float = struct.unpack("<d", value)[0]
    return int(number) if number.is_integer() else number


_BASIC: dict[str, Read] = {
    "string": as_text,
    "bytes": lambda wire, value: base64.b64encode(as_bytes(wire, value)).decode(),
    "bool": lambda wire, value: as_integer(wire, value) != 0,
    "int32": lambda wire, value: as_integer(wire, value, 32),
    "int64": as_integer,
    "int": as_integer,
    "uint32": lambda wire, value: as_integer(wire, value) & 0xFFFFFFFF,
    "float64": _double,
}


# --- types with custom marshalling ------------------------------------------------------------------------------


def _numbers(body: bytes) -> dict[int, int]:
    """Return the integer fields 1 and 2 of a message; other fields are skipped."""
    return {number: as_integer(wire, value) for number, wire, value in fields_of(body) if number in (1, 2)}


def _time(body: bytes) -> str | None:
    return _moment(body, "%Y-%m-%dT%H:%M:%SZ")


def _micro_time(body: bytes) -> str | None:
    return _moment(body, "%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(body: bytes, layout: str) -> str | None:
    numbers = _numbers(body)
    if not numbers:
        return None
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            seconds=numbers.get(1, 0), microseconds=numbers.get(2, 0) // 1000
        )
    except OverflowError:
        raise Malformed("time out of range") from None
    return None if moment.year == 1 else moment.strftime(layout)


def _json(body: bytes) -> Any:
    for number, wire, value in fields_of(body):
        if number == 1:
            raw = as_bytes(wire, value)
            if raw.startswith(MAGIC):
                return _decode_object(_Envelope.read(raw[len(MAGIC) :]), None)
            return msgspec.json.decode(raw) if len(raw) else None
    return None


def _int_or_string(body: bytes) -> int | str:
    kind, number_value, text = 0, 0, ""
    for number, wire, value in fields_of(body):
        if number == 1:
            kind = as_integer(wire, value)
        elif number == 2:
            number_value = as_integer(wire, value, 32)
        elif number == 3:
            text = as_text(wire, value)
    return text if kind == 1 else number_value


def _quantity(body: bytes) -> str:
    return next((as_text(wire, value) for number, wire, value in fields_of(body) if number == 1), "0") or "0"


_SCHEMA = "apiextensions.v1.JSONSchemaProps"


def _schema_or_array(body: bytes) -> Any:
    several: list[Object] = []
    for number, wire, value in fields_of(body):
        if number == 1:
            return _new_message(_SCHEMA, as_bytes(wire, value))
        if number == 2:
            several.append(_new_message(_SCHEMA, as_bytes(wire, value)))
    return several


def _schema_or_bool(body: bytes) -> Any:
    allows = False
    for number, wire, value in fields_of(body):
        if number == 1:
            allows = as_integer(wire, value) != 0
        elif number == 2:
            return _new_message(_SCHEMA, as_bytes(wire, value))
    return allows


def _schema_or_strings(body: bytes) -> Any:
    texts: list[str] = []
    for number, wire, value in fields_of(body):
        if number == 1:
            return _new_message(_SCHEMA, as_bytes(wire, value))
        if number == 2:
            texts.append(as_text(wire, value))
    return texts


_LEAVES: dict[str, Callable[[bytes], Any]] = {
    "meta.v1.Time": _time,
    "meta.v1.MicroTime": _micro_time,
    "meta.v1.Duration": lambda body: leaves.format_duration(_numbers(body).get(1, 0)),
    "meta.v1.FieldsV1": _json,
    "runtime.RawExtension": _json,
    "intstr.IntOrString": _int_or_string,
    "resource.Quantity": _quantity,
    "apiextensions.v1.JSON": _json,
    "apiextensions.v1.JSONSchemaPropsOrArray": _schema_or_array,
    "apiextensions.v1.JSONSchemaPropsOrBool": _schema_or_bool,
    "apiextensions.v1.JSONSchemaPropsOrStringArray": _schema_or_strings,
}
