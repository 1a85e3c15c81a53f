"""Path elements as FieldsV1 encodes them: `f:name`, `k:{"key":…}`, `v:value`, `i:index`.

The encoded form is the identity of an element: field sets are plain dicts keyed by it, so an element must have only one
spelling. `canonical` converts what clients send into the form that the server writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

from herder.engine.meta.work import is_large_computation
from herder.engine.patch.goformat import number, quoted

SELF = "."
"""Not an element: in FieldsV1, marks that a field with children is itself in the set."""

_PLAIN = re.compile(r"[ !#-%'-;=?-\[\]-~]*")  # printable ASCII that needs neither JSON nor HTML-safe escaping
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class UnknownElement(ValueError):
    """An element kind of a later version of the format; ignored."""


_MAX_CACHED_LENGTH = 512
"""Clients control the text of an element: caching long ones would let them fill the memory."""

F = TypeVar("F", bound=Callable[..., Any])


def _cached(function: F) -> F:
    """Like lru_cache, but only for short strings and other scalars.

    Elements of large documents are not cached. They would evict those of all others, and thousands of small long-lived
    strings among millions of freed objects would keep the allocator from returning its arenas.
    """
    cached = lru_cache(maxsize=4096, typed=True)(function)

    @wraps(function)
    def call(*values: Any) -> Any:
        if is_large_computation():
            return function(*values)
        for value in values:
            if type(value) is str and len(value) > _MAX_CACHED_LENGTH:
                return function(*values)
        return cached(*values)

    return cast("F", call)


@_cached
def scalar_key_element(*names_and_values: Any) -> str:
    """Return the element of a list item by its key fields, given as name, value, name, value … in order of names."""
    return key_element(zip(names_and_values[::2], names_and_values[1::2], strict=True))


def key_element(pairs: Iterable[tuple[str, Any]]) -> str:
    """Return the element of a list item by its key fields."""
    return "k:{" + ",".join([f"{_encode(name)}:{_encode(value)}" for name, value in pairs]) + "}"


@_cached
def value_element(value: Any) -> str:
    """Return the element of a scalar item of a set."""
    return "v:" + _encode(value)


def _encode(value: Any) -> str:
    """Encode JSON as Go does, with HTML-safe strings and whole floats without a decimal point."""
    if type(value) is str:
        return f'"{value}"' if _PLAIN.fullmatch(value) else _escape(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_encode(key)}:{_encode(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_encode, value)) + "]"
    return json.dumps(value)


def _escape(text: str) -> str:
    encoded = json.dumps(text, ensure_ascii=False).replace("\\b", "\\u0008").replace("\\f", "\\u000c")
    for character, escape in _ESCAPES.items():
        encoded = encoded.replace(character, escape)
    return encoded


@_cached
def canonical(element: str) -> str:
    """Return the canonical spelling of an element. Raises UnknownElement, or ValueError if it is malformed."""
    kind, content = element[:2], element[2:]
    if len(element) < 2:
        raise ValueError("key must be 2 characters long:")
    if element[1] != ":":
        raise ValueError(f"missing colon: {element}")
    if kind == "f:":
        return element
    if kind == "i:":
        return f"i:{int(content)}"
    if kind == "v:":
        return "v:" + _encode(json.loads(content))
    if kind == "k:":
        fields = json.loads(content)
        if not isinstance(fields, dict):
            raise ValueError(f"expected an object: {element}")
        return key_element(sorted(fields.items()))
    raise UnknownElement(element)


@_cached
def sort_key(element: str) -> tuple[Any, ...]:
    """Sort key: field names, then keys, then values, then indices; values by type."""
    kind, content = element[0], element[2:]
    if kind == "k":
        return (2, [(name, _value_order(value)) for name, value in json.loads(content).items()])
    if kind == "v":
        return (3, _value_order(json.loads(content)))
    if kind == "i":
        return (4, int(content))
    return (1, content) if kind == "f" else (0,)


def _value_order(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, str):
        return (1, value)
    return (3, _encode(value))


def describe(element: str) -> str:
    """Format an element as in error messages: `.name`, `[key="a"]`, `[="a"]`, `[0]`."""
    kind, content = element[0], element[2:]
    if kind == "f":
        return "." + content
    if kind == "k":
        return "[" + ",".join(f"{name}={_describe(value)}" for name, value in json.loads(content).items()) + "]"
    if kind == "v":
        return f"[={_describe(json.loads(content))}]"
    return f"[{content}]"


def _describe(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else _encode(value)
