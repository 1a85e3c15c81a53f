"""Kubernetes protobuf bodies into JSON-shaped objects.

Go clients send built-in kinds this way and do not fall back to JSON. A body is the magic `k8s\\0`, then a
`runtime.Unknown` that names the kind and holds the object's own message, whose field numbers are in the generated
data. The object that comes out is what the same client would have sent as JSON; the type model then treats both alike.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import msgspec

from herder.engine.apiserver.builtin import data, gotypes, leaves
from herder.engine.apiserver.builtin.gotypes import GoType
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import GroupVersion, GroupVersionKind, Object

MAGIC = b"k8s\x00"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class _Malformed(ValueError):
    pass


def decode(body: bytes, default: GroupVersionKind | None = None) -> Object:
    """The object in a protobuf body; `default` is its kind where the body names none."""
    if not body.startswith(MAGIC):
        raise BadRequest("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    try:
        return _decode_envelope(memoryview(body)[len(MAGIC) :], default)
    except (_Malformed, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"unable to decode protobuf body: {error}") from None
    except RecursionError:
        raise BadRequest("unable to decode protobuf body: messages nested too deeply") from None


def _decode_envelope(body: memoryview, default: GroupVersionKind | None) -> Object:
    api_version, kind, raw, content_type = "", "", memoryview(b""), ""
    for number, wire, value in _fields(body):
        if number == 1:
            for inner, inner_wire, text in _fields(_bytes(wire, value)):
                if inner == 1:
                    api_version = _text(inner_wire, text)
                elif inner == 2:
                    kind = _text(inner_wire, text)
        elif number == 2:
            raw = _bytes(wire, value)
        elif number == 4:
            content_type = _text(wire, value)
    if content_type == "application/json":
        return _embedded_object(raw)
    named = GroupVersionKind(*GroupVersion.parse(api_version), kind)
    named = GroupVersionKind(
        named.group if api_version or not default else default.group,
        named.version or (default.version if default else ""),
        kind or (default.kind if default else ""),
    )
    obj: Object = {"kind": named.kind, "apiVersion": named.api_version}
    _message(_struct_for(named), obj, raw)
    return obj


def _embedded_object(raw: memoryview) -> Object:
    obj = msgspec.json.decode(raw)
    if not isinstance(obj, dict):
        raise _Malformed("the embedded document is not an object")
    return obj


def _struct_for(kind: GroupVersionKind) -> str:
    """The struct of a kind. Options and meta kinds are registered in every group, under its own version."""
    short = data.package_of(kind.group, kind.version)
    if short in data.index().packages.values() and kind.kind in data.package(short).structs:
        return f"{short}.{kind.kind}"
    if kind.kind in data.package("meta.v1").structs:
        return f"meta.v1.{kind.kind}"
    raise BadRequest(f'no kind "{kind.kind}" is registered for version "{kind.api_version}" in scheme')


# --- the wire ---------------------------------------------------------------------------------------------------


def _fields(body: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """The fields of one message as (number, wire type, integer or bytes)."""
    position, end = 0, len(body)
    while position < end:
        tag, position = _varint(body, position, end)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise _Malformed("illegal tag 0")
        if wire == VARINT:
            value, position = _varint(body, position, end)
            yield number, wire, value
            continue
        if wire == BYTES:
            length, position = _varint(body, position, end)
        elif wire == FIXED64:
            length = 8
        elif wire == FIXED32:
            length = 4
        else:
            raise _Malformed(f"illegal wireType {wire}")
        if length > end - position:
            raise _Malformed("unexpected EOF")
        yield number, wire, body[position : position + length]
        position += length


def _varint(body: memoryview, position: int, end: int) -> tuple[int, int]:
    result, shift = 0, 0
    while position < end:
        byte = body[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise _Malformed("integer overflow")
    raise _Malformed("unexpected EOF")


def _bytes(wire: int, value: int | memoryview) -> memoryview:
    if wire != BYTES or isinstance(value, int):
        raise _Malformed(f"wrong wireType = {wire}")
    return value


def _text(wire: int, value: int | memoryview) -> str:
    return str(_bytes(wire, value), "utf-8", "replace")


def _integer(wire: int, value: int | memoryview, bits: int = 64) -> int:
    if wire != VARINT or not isinstance(value, int):
        raise _Malformed(f"wrong wireType = {wire}")
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


# --- messages ---------------------------------------------------------------------------------------------------

Read = Callable[[int, int | memoryview], Any]
# Puts one field of a message into the JSON object that is being built.
Put = Callable[[Object, int, int | memoryview], None]


def _message(struct: str, into: Object, body: memoryview) -> None:
    fields = _struct_fields(struct)
    for number, wire, value in _fields(body):
        put = fields.get(number)
        if put is not None:  # fields of newer clients are passed over, as Go does
            put(into, wire, value)


@cache
def _struct_fields(struct: str) -> dict[int, Put]:
    return {
        field.number: _embedded(gotypes.parse(field.type).id) if not field.json else _put(field)
        for field in gotypes.struct_fields(struct)
        if field.number
    }


def _embedded(struct: str) -> Put:
    return lambda into, wire, value: _message(struct, into, _bytes(wire, value))


def _put(field: data.StructField) -> Put:
    go_type, name = gotypes.parse(field.type), field.json
    if go_type.kind == "slice" and not _is_message(go_type):
        return _repeated(name, go_type)
    if go_type.kind == "map":
        return _map_entry(name, go_type)
    if go_type.kind == "struct":
        struct = go_type.id

        def put_message(into: Object, wire: int, value: int | memoryview) -> None:
            _message(struct, into.setdefault(name, {}), _bytes(wire, value))

        return put_message
    read = _reader(go_type)

    def put_value(into: Object, wire: int, value: int | memoryview) -> None:
        into[name] = read(wire, value)

    return put_value


def _is_message(slice_type: GoType) -> bool:
    """Named slices of strings (ExtraValue, Verbs) are messages of their own, with the items as field 1."""
    named = not slice_type.name.startswith("[]")
    return named and slice_type.element is not None and slice_type.element.kind == "string"


def _repeated(name: str, go_type: GoType) -> Put:
    assert go_type.element is not None
    read = _reader(go_type.element)
    packable = go_type.element.kind in {"int32", "int64", "bool"}

    def put_item(into: Object, wire: int, value: int | memoryview) -> None:
        items = into.setdefault(name, [])
        if packable and wire == BYTES and not isinstance(value, int):
            position = 0
            while position < len(value):
                number, position = _varint(value, position, len(value))
                items.append(read(VARINT, number))
        else:
            items.append(read(wire, value))

    return put_item


def _map_entry(name: str, go_type: GoType) -> Put:
    assert go_type.element is not None
    read = _reader(go_type.element)
    empty = {"string": "", "bytes": ""}.get(go_type.element.kind)

    def put_entry(into: Object, wire: int, value: int | memoryview) -> None:
        key, item = "", empty
        for number, inner, field in _fields(_bytes(wire, value)):
            if number == 1:
                key = _text(inner, field)
            elif number == 2:
                item = read(inner, field)
        into.setdefault(name, {})[key] = item

    return put_entry


def _reader(go_type: GoType) -> Read:
    kind = go_type.kind
    if kind == "struct":
        return lambda wire, value: _new_message(go_type.id, _bytes(wire, value))
    if kind == "leaf":
        leaf = _LEAVES[go_type.id]
        return lambda wire, value: leaf(_bytes(wire, value))
    if kind == "slice":
        assert go_type.element is not None
        put = _repeated("items", go_type)
        return lambda wire, value: _named_slice(put, _bytes(wire, value))
    return _BASIC[kind]


def _new_message(struct: str, body: memoryview) -> Object:
    obj: Object = {}
    _message(struct, obj, body)
    return obj


def _named_slice(put: Put, body: memoryview) -> list[Any]:
    holder: Object = {"items": []}
    for number, wire, value in _fields(body):
        if number == 1:
            put(holder, wire, value)
    items: list[Any] = holder["items"]
    return items


def _double(wire: int, value: int | memoryview) -> float:
    import struct

    if wire != FIXED64 or isinstance(value, int):
        raise _Malformed(f"wrong wireType = {wire}")
    number: float = struct.unpack("<d", value)[0]
    return int(number) if number.is_integer() else number


_BASIC: dict[str, Read] = {
    "string": _text,
    "bytes": lambda wire, value: base64.b64encode(_bytes(wire, value)).decode(),
    "bool": lambda wire, value: _integer(wire, value) != 0,
    "int32": lambda wire, value: _integer(wire, value, 32),
    "int64": _integer,
    "int": _integer,
    "uint32": lambda wire, value: _integer(wire, value) & 0xFFFFFFFF,
    "float64": _double,
}


# --- types that marshal themselves ------------------------------------------------------------------------------


def _numbers(body: memoryview) -> dict[int, int]:
    return {number: _integer(wire, value) for number, wire, value in _fields(body) if wire == VARINT}


def _time(body: memoryview) -> str | None:
    return _moment(body, "%Y-%m-%dT%H:%M:%SZ")


def _micro_time(body: memoryview) -> str | None:
    return _moment(body, "%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(body: memoryview, layout: str) -> str | None:
    numbers = _numbers(body)
    if not numbers:
        return None
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            seconds=numbers.get(1, 0), microseconds=numbers.get(2, 0) // 1000
        )
    except OverflowError:
        raise _Malformed("time out of range") from None
    return None if moment.year == 1 else moment.strftime(layout)


def _json(body: memoryview) -> Any:
    for number, wire, value in _fields(body):
        if number == 1:
            raw = _bytes(wire, value)
            if bytes(raw[:4]) == MAGIC:
                return _decode_envelope(raw[4:], None)
            return msgspec.json.decode(raw) if len(raw) else None
    return None


def _int_or_string(body: memoryview) -> int | str:
    kind, number_value, text = 0, 0, ""
    for number, wire, value in _fields(body):
        if number == 1:
            kind = _integer(wire, value)
        elif number == 2:
            number_value = _integer(wire, value, 32)
        elif number == 3:
            text = _text(wire, value)
    return text if kind == 1 else number_value


def _quantity(body: memoryview) -> str:
    return next((_text(wire, value) for number, wire, value in _fields(body) if number == 1), "0") or "0"


_SCHEMA = "apiextensions.v1.JSONSchemaProps"


def _schema_or_array(body: memoryview) -> Any:
    several: list[Object] = []
    for number, wire, value in _fields(body):
        if number == 1:
            return _new_message(_SCHEMA, _bytes(wire, value))
        if number == 2:
            several.append(_new_message(_SCHEMA, _bytes(wire, value)))
    return several


def _schema_or_bool(body: memoryview) -> Any:
    allows = False
    for number, wire, value in _fields(body):
        if number == 1:
            allows = _integer(wire, value) != 0
        elif number == 2:
            return _new_message(_SCHEMA, _bytes(wire, value))
    return allows


def _schema_or_strings(body: memoryview) -> Any:
    texts: list[str] = []
    for number, wire, value in _fields(body):
        if number == 1:
            return _new_message(_SCHEMA, _bytes(wire, value))
        if number == 2:
            texts.append(_text(wire, value))
    return texts


_LEAVES: dict[str, Callable[[memoryview], Any]] = {
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
