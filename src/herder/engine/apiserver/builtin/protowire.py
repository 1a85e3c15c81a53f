"""Protobuf wire format: iterate over the fields of a message."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """The bytes are not a message, or a field has the wrong wire type."""


def fields_of(body: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield the fields of a message as (number, wire type, integer or bytes)."""
    position, end = 0, len(body)
    while position < end:
        tag = body[position]  # fast path: tags, and most lengths, are a single byte
        if tag < 0x80:
            position += 1
        else:
            tag, position = varint(body, position, end)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise Malformed("illegal tag 0")
        if wire == BYTES:
            if position < end and body[position] < 0x80:
                length = body[position]
                position += 1
            else:
                length, position = varint(body, position, end)
        elif wire == VARINT:
            value, position = varint(body, position, end)
            yield number, wire, value
            continue
        elif wire == FIXED64:
            length = 8
        elif wire == FIXED32:
            length = 4
        else:
            raise Malformed(f"illegal wireType {wire}")
        if length > end - position:
            raise Malformed("unexpected EOF")
        yield number, wire, body[position : position + length]
        position += length


def varint(body: bytes, position: int, end: int) -> tuple[int, int]:
    """Decode a varint; return it and the position after it."""
    result, shift = 0, 0
    while position < end:
        byte = body[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise Malformed("integer overflow")
    raise Malformed("unexpected EOF")


def as_bytes(wire: int, value: int | bytes) -> bytes:
    if wire != BYTES or isinstance(value, int):
        raise Malformed(f"wrong wireType = {wire}")
    return value


def as_text(wire: int, value: int | bytes) -> str:
    return as_bytes(wire, value).decode("utf-8", "replace")


def as_integer(wire: int, value: int | bytes, bits: int = 64) -> int:
    if wire != VARINT or not isinstance(value, int):
        raise Malformed(f"wrong wireType = {wire}")
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
