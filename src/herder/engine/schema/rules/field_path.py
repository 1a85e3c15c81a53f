"""`fieldPath` of a rule: a path in a small JSONPath dialect, checked against its schema."""

from __future__ import annotations

import re

from herder.engine.schema.nodes import Node

_TOKEN = re.compile(r"'(?:.*?[^\\])?'|[.\[\]]|[^.\[\]]+", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\"}


def normalized(path: str, node: Node) -> str | None:
    """Return the path as field errors format it (`a.b[key]`); None if it does not refer to a field of the schema."""
    tokens = _TOKEN.findall(path)
    shown = ""
    at = 0
    current: Node | None = node
    while at < len(tokens):
        if tokens[at] == ".":
            name, at = tokens[at + 1 : at + 2], at + 2
        elif tokens[at] == "[" and tokens[at + 2 : at + 3] == ["]"] and _is_quoted(tokens[at + 1]):
            unescaped = _unescape(tokens[at + 1][1:-1])
            name, at = [] if unescaped is None else [unescaped], at + 3
        else:
            return None
        if not name or current is None:
            return None
        if current.properties:
            shown += f".{name[0]}" if shown else name[0]
            current = current.properties.get(name[0])
            if current is None:
                return None
        elif current.additional_set:
            shown += f"[{name[0]}]"
            current = current.additional
        else:
            return None
    return shown


def _is_quoted(token: str) -> bool:
    return len(token) >= 2 and token[0] == token[-1] == "'"


def _unescape(text: str) -> str | None:
    found = re.findall(r"\\(.)", text)
    if any(char not in _ESCAPES for char in found):
        return None
    return re.sub(r"\\(.)", lambda match: _ESCAPES[match[1]], text)
