"""JSON encoding that is byte-compatible with Go's encoding/json, for hashes and byte comparisons."""

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


def marshal(value: Any) -> bytes:
    """Encode like a Go map: compact, with sorted keys."""
    return escape_html(msgspec.json.encode(value, order="deterministic"))


def marshal_struct(value: Any) -> bytes:
    """Encode like a Go struct: compact, with the keys in the given order."""
    return escape_html(msgspec.json.encode(value))


def escape_html(encoded: bytes) -> bytes:
    """Escape HTML characters and line separators, as Go's encoder does by default."""
    for character, escape in _HTML.items():
        encoded = encoded.replace(character, escape)
    return encoded
