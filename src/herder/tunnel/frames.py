"""remotedialer messages: `varint(id) varint(connection) varint(kind) [varint(deadline)] payload`.

Varints are Go's signed ones (zig-zag). The ID counts messages and is never interpreted; neither is the deadline, which
only DATA and CONNECT carry.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from herder.tunnel.errors import SessionError

CONNECT_BYTES = 266
ERROR_BYTES = 100
CLIENT_BYTES = 100
END = "EOF"  # message of an orderly close


class Kind(IntEnum):
    """Message types of remotedialer."""

    DATA = 1
    CONNECT = 2
    ERROR = 3
    ADD_CLIENT = 4
    REMOVE_CLIENT = 5
    PAUSE = 6
    RESUME = 7
    SYNC = 8


class Frame(NamedTuple):
    """A decoded message."""

    kind: int  # int instead of Kind: unknown kinds are ignored
    connection: int
    payload: memoryview


class Malformed(SessionError):
    """A message that violates the protocol."""

    def __init__(self, what: str) -> None:
        super().__init__(f"malformed tunnel message: {what}")


# --- encode -------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


_LEGACY_DEADLINE = varint(15_000)
_KINDS = {kind: varint(kind) + (_LEGACY_DEADLINE if kind in (Kind.DATA, Kind.CONNECT) else b"") for kind in Kind}


def head(message_id: int, connection: int, kind: Kind) -> bytes:
    """Return everything of a message except its payload."""
    return varint(message_id) + varint(connection) + _KINDS[kind]


def connect(proto: str, address: str) -> bytes:
    payload = f"{proto}/{address}".encode()
    if not proto or "/" in proto or not address or len(payload) > CONNECT_BYTES:
        raise ValueError(f"{proto}/{address}: not a protocol and an address of at most {CONNECT_BYTES} bytes")
    return payload


def error(text: str) -> bytes:
    return text.encode()[:ERROR_BYTES]


def client(key: str, session_key: int) -> bytes:
    payload = f"{key}/{session_key}".encode()
    if "/" in key or len(payload) > CLIENT_BYTES:
        raise ValueError(f"client key {key!r}: must be short and must not contain '/' to be announced to peers")
    return payload


def connections(ids: Iterable[int]) -> bytes:
    ordered = sorted(ids)
    return struct.pack(f"<{len(ordered)}Q", *ordered)


# --- decode -------------------------------------------------------------------------------------------------------


def decode(message: bytes | bytearray) -> Frame:
    _, offset = _read_varint(message, 0)
    connection, offset = _read_varint(message, offset)
    kind, offset = _read_varint(message, offset)
    if kind in (Kind.DATA, Kind.CONNECT):
        _, offset = _read_varint(message, offset)
    return Frame(kind, connection, memoryview(message)[offset:])


def _read_varint(data: bytes | bytearray, offset: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(offset, min(offset + 10, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
    raise Malformed("varint is truncated or too large")


def read_connect(payload: memoryview) -> tuple[str, str]:
    """Return protocol and address. Too long addresses are refused; remotedialer truncates them to another address."""
    if len(payload) > CONNECT_BYTES:
        raise Malformed(f"address exceeds {CONNECT_BYTES} bytes")
    proto, slash, address = _text(payload).partition("/")
    if not slash:
        raise Malformed("address without a protocol")
    return proto, address


def read_error(payload: memoryview) -> str:
    """Return the error message without control characters: it ends up in conditions and logs, which users read in
    terminals."""
    reported = bytes(payload[:ERROR_BYTES]).decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in reported)


def read_client(payload: memoryview) -> tuple[str, int]:
    key, slash, session_key = _text(payload[: CLIENT_BYTES + 1]).partition("/")
    if len(payload) > CLIENT_BYTES or not slash or not _is_int64(session_key):
        raise Malformed("client is not in the form key/session")
    return key, int(session_key)


def read_connections(payload: memoryview, max_count: int = sys.maxsize) -> Iterator[int]:
    """Yield connection IDs lazily: a list of Python integers would take ten times the memory of the message."""
    if len(payload) % 8:
        raise Malformed("connection list is truncated")
    if len(payload) > 8 * max_count:
        raise Malformed(f"connection list exceeds {max_count} entries")
    return (number for (number,) in struct.iter_unpack("<Q", payload))


def _text(payload: memoryview) -> str:
    try:
        return bytes(payload).decode()
    except UnicodeDecodeError:
        raise Malformed("text is not UTF-8") from None


def _is_int64(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 19
