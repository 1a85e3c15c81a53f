"""JSON as Go writes it, where bytes count; and what users have put into Secrets, read as text."""

from __future__ import annotations

import json
from typing import Any

from herder.controllers.planner.distributions.interface import ConfigError

_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def indented(value: Any) -> str:
    """Keys sorted, two spaces, no newline at the end."""
    return _escaped(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))


def in_order(value: Any) -> str:
    """Compact, keys as they come."""
    return _escaped(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def as_text(raw: bytes, field: str) -> str:
    """`field`: who named the Secret, for an error."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{field}: what is in the Secret is not text") from None


def _escaped(text: str) -> str:
    for character, escape in _HTML.items():
        text = text.replace(character, escape)
    return text
