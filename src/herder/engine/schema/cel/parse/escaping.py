"""Escaping of property names that are not CEL identifiers (`foo-bar` → `foo__dash__bar`)."""

from __future__ import annotations

import re

RESERVED = frozenset(
    [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
"""Words that cannot be variable names."""

KEYWORDS = frozenset({"true", "false", "null", "in"})
"""Reserved words that are tokens, so that not even a field can be selected by them."""

_PLAIN = re.compile(r"[A-Za-z0-9_]+\Z")
_ESCAPABLE = re.compile(r"[A-Za-z0-9_./-]+\Z")
_EXPANDED = re.compile(r"__|[-./]")
_EXPANSIONS = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}


def escape(name: str) -> str | None:
    """Return the identifier of a property, or None if it is not accessible."""
    if not name or name[0].isdigit():
        return None
    if name in RESERVED:
        return f"__{name}__"
    if "__" not in name and _PLAIN.match(name):
        return name
    if not _ESCAPABLE.match(name):
        return None
    return _EXPANDED.sub(lambda match: _EXPANSIONS[match[0]], name)
