"""JSON in the byte format of Go's encoder, and decoding of users' Secrets."""

from __future__ import annotations

import json
from typing import Any

from herder.api.rke.machine_config.errors import ConfigError

_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def indented(value: Any) -> str:
    """Indented JSON: sorted keys, two spaces, no trailing newline."""
    return _escaped(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))


def compact(value: Any) -> str:
    """Compact JSON in insertion order."""
    return _escaped(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def as_text(raw: bytes, field: str) -> str:
    """Decode a value of a Secret. `field`: the field that names the Secret, for error messages."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{field}: the Secret's content is not UTF-8 text") from None


def _escaped(text: str) -> str:
    for character, escape in _HTML.items():
        text = text.replace(character, escape)
    return text
