"""Encode the OpenAPI v2 document as protobuf (gnostic's openapi.v2.Document), the only format of Go's discovery client.

Supports what our own documents contain. Each function encodes one message; the numbers are gnostic's field numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from herder.engine.meta.kinds import Object

_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
_SCHEMA_TEXTS = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
_SCHEMA_DOUBLES = {"multipleOf": 6, "maximum": 7, "minimum": 9}
_SCHEMA_BOOLS = {"exclusiveMaximum": 8, "exclusiveMinimum": 10, "uniqueItems": 16}
_SCHEMA_INTS = {
    "maxLength": 11,
    "minLength": 12,
    "maxItems": 14,
    "minItems": 15,
    "maxProperties": 17,
    "minProperties": 18,
}


def encode_document(document: Object) -> bytes:
    """Encode a Swagger document."""
    info = _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])
    paths = b"".join(_message(2, _named(path, _path_item(item))) for path, item in document["paths"].items())
    definitions = b"".join(
        _message(1, _named(name, _schema(schema))) for name, schema in document["definitions"].items()
    )
    requirements = b"".join(
        _message(12, _message(1, _named(name, b""))) for each in document["security"] for name in each
    )
    keys = b"".join(
        _message(1, _named(name, _message(2, _api_key(key)))) for name, key in document["securityDefinitions"].items()
    )
    return b"".join((
        _text(1, document["swagger"]),
        _message(2, info),
        _message(8, paths),
        _message(9, definitions),
        requirements,
        _message(13, keys),
    ))  # fmt: skip


def _api_key(key: Object) -> bytes:
    return _text(1, key["type"]) + _text(2, key["name"]) + _text(3, key["in"]) + _text(4, key["description"])


# --- paths -------------------------------------------------------------------------------------------------------


def _path_item(item: Object) -> bytes:
    operations = b"".join(
        _message(number, _operation(item[method])) for method, number in _METHODS.items() if method in item
    )
    return operations + _parameters(9, item)


def _operation(operation: Object) -> bytes:
    responses = b"".join(
        _message(1, _named(code, _message(1, _response(response)))) for code, response in operation["responses"].items()
    )
    return b"".join((
        _texts(1, operation["tags"]),
        _text(5, operation["operationId"]),
        _texts(6, operation["produces"]),
        _texts(7, operation["consumes"]),
        _parameters(8, operation),
        _message(9, responses),
        _texts(10, operation["schemes"]),
        _extensions(13, operation),
    ))  # fmt: skip


def _response(response: Object) -> bytes:
    schema = _message(2, _message(1, _schema(response["schema"]))) if "schema" in response else b""
    return _text(1, response["description"]) + schema


def _parameters(number: int, holder: Object) -> bytes:
    return b"".join(_message(number, _message(1, _parameter(each))) for each in holder.get("parameters", ()))


def _parameter(parameter: Object) -> bytes:
    if parameter["in"] == "body":
        body = _text(2, "body") + _text(3, "body") + _bool(4, parameter["required"])
        return _message(1, body + _message(5, _schema(parameter["schema"])))
    start = _bool(1, bool(parameter.get("required"))) + _text(2, parameter["in"]) + _text(4, parameter["name"])
    if parameter["in"] == "path":
        return _message(2, _message(4, start + _text(5, parameter["type"]) + _bool(19, True)))
    return _message(2, _message(3, start + _text(6, parameter["type"]) + _bool(20, True)))


# --- schemas -----------------------------------------------------------------------------------------------------


def _schema(schema: Mapping[str, Any]) -> bytes:
    parts = [
        *_scalars(schema, _SCHEMA_TEXTS, _text),
        *_scalars(schema, _SCHEMA_DOUBLES, _double),
        *_scalars(schema, _SCHEMA_BOOLS, _bool),
        *_scalars(schema, _SCHEMA_INTS, _int),
        _texts(19, schema.get("required") or ()),
        *(_message(20, _any(value)) for value in schema.get("enum") or ()),
    ]
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        parts.append(_message(21, _message(1, _schema(additional))))
    elif additional is not None:
        parts.append(_message(21, _bool(2, additional)))
    if schema.get("type"):
        parts.append(_message(22, _text(1, schema["type"])))
    if isinstance(schema.get("items"), dict):
        parts.append(_message(23, _message(1, _schema(schema["items"]))))
    parts += [_message(24, _schema(inner)) for inner in schema.get("allOf") or ()]
    properties = schema.get("properties")
    if properties:
        inner = b"".join(_message(1, _named(name, _schema(each))) for name, each in properties.items())
        parts.append(_message(25, inner))
    parts.append(_extensions(31, schema))
    return b"".join(parts)


def _scalars(schema: Mapping[str, Any], fields: Mapping[str, int], write: Callable[[int, Any], bytes]) -> list[bytes]:
    return [write(number, schema[field]) for field, number in fields.items() if schema.get(field) is not None]


def _extensions(number: int, holder: Mapping[str, Any]) -> bytes:
    return b"".join(_message(number, _named(key, _any(value))) for key, value in holder.items() if key.startswith("x-"))


def _any(value: Any) -> bytes:
    """Encode a value as YAML, of which JSON is a subset."""
    return _text(2, msgspec.json.encode(value).decode())


# --- wire format -------------------------------------------------------------------------------------------------


def _named(name: str, value: bytes) -> bytes:
    return _text(1, name) + _message(2, value)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode()) if value else b""


def _texts(number: int, values: Any) -> bytes:
    return b"".join(_message(number, value.encode()) for value in values)


def _bool(number: int, value: bool) -> bytes:
    return _varint(number << 3) + b"\x01" if value else b""


def _int(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)
