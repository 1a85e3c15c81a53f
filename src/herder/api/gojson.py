"""JSON in the bytes that Go's encoder writes, where their hash or their equality counts."""

from __future__ import annotations

from typing import Any

import msgspec

_HTML = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


def marshalled(value: Any) -> bytes:
    """Compact, the keys of mappings in order."""
    return escaped(msgspec.json.encode(value, order="deterministic"))


def in_given_order(value: Any) -> bytes:
    """The same for what is a structure in Go: its fields are written as they come here."""
    return escaped(msgspec.json.encode(value))


def escaped(encoded: bytes) -> bytes:
    """What may stand in a page as it is must not end a script there: Go writes those characters by their number."""
    for character, escape in _HTML.items():
        encoded = encoded.replace(character, escape)
    return encoded
