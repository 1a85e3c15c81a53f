"""JSONPath of printer columns: `.spec.size`, `.status.conditions[?(@.type=="Ready")].status`, `.items[*].name`.

The dialect is kubectl's. A path is parsed once, and syntax errors are raised then. Evaluation never fails: a missing
key, an index out of bounds or a filter on something other than a list yields no values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import takewhile
from typing import Any

Values = list[Any]
Step = Callable[[Values], Values]


class JsonPathError(ValueError):
    """The path is malformed."""


class NoResult(Exception):
    """The path matches nothing in this object."""


class JsonPath:
    """A parsed path. Most paths start with plain names, which are followed without creating intermediate lists."""

    __slots__ = ("_names", "_steps", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        steps = list(_parse(text))
        plain = list(takewhile(lambda step: isinstance(step, Child), steps))
        self._names = tuple(step.name for step in plain if isinstance(step, Child))
        self._steps = tuple(steps[len(plain) :])

    def find(self, obj: Any) -> Values:
        """Return all values at the path."""
        for name in self._names:
            if type(obj) is not dict or name not in obj:
                return []
            obj = obj[name]
        values: Values = [obj]
        try:
            for step in self._steps:
                values = step(values)
        except NoResult:
            return []
        return values

    @property
    def only_name(self) -> str:
        """The field name if the path is a single name; empty otherwise."""
        return self._names[0] if len(self._names) == 1 and not self._steps else ""


@lru_cache(maxsize=1024)
def compile_path(text: str) -> JsonPath:
    return JsonPath(text)


# --- parsing -----------------------------------------------------------------------------------------------------

_FIELD = re.compile(r"(?:[^\\.\[\]{}\s()=<>!,]|\\.)+")
_SLICE = re.compile(r"(-?\d*)(?::(-?\d*))?(?::(-?\d*))?\Z")
_FILTER = re.compile(r"(.+?)(==|!=|<=|>=|<|>)(.+)\Z", re.DOTALL)


def _parse(text: str) -> Iterator[Step]:
    at = 0
    text = text.strip()
    if text.startswith("$"):
        at = 1
    while at < len(text):
        if text.startswith("..", at):
            yield _recursive
            at += 2
            if at < len(text) and text[at] not in "[*":
                name, at = _field_name(text, at)
                yield Child(name)
            continue
        match text[at]:
            case "." if text[at + 1 : at + 2] in {"", "["}:
                at += 1
            case ".":
                at += 1
                if text[at] == "*":
                    yield _wildcard
                    at += 1
                else:
                    name, at = _field_name(text, at)
                    yield Child(name)
            case "*":
                yield _wildcard
                at += 1
            case "[":
                inner, at = _brackets(text, at)
                yield _subscript(inner)
            case _ if at == 0 or (at == 1 and text[0] in "$@"):
                name, at = _field_name(text, at)
                yield Child(name)
            case other:
                raise JsonPathError(f"unrecognized character in action: {other!r}")


def _field_name(text: str, at: int) -> tuple[str, int]:
    match = _FIELD.match(text, at)
    if not match:
        raise JsonPathError(f"unrecognized character in action: {text[at : at + 1]!r}")
    return re.sub(r"\\(.)", r"\1", match.group()), match.end()


def _brackets(text: str, start: int) -> tuple[str, int]:
    """Return the text between matching brackets, ignoring those in quotes."""
    depth, quote, at = 0, "", start
    while at < len(text):
        letter = text[at]
        if quote:
            if letter == "\\":
                at += 1
            elif letter == quote:
                quote = ""
        elif letter in "\"'":
            quote = letter
        elif letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
            if depth == 0:
                return text[start + 1 : at].strip(), at + 1
        at += 1
    raise JsonPathError("unterminated array")


def _subscript(inner: str) -> Step:
    if inner == "*":
        return _wildcard
    if inner.startswith("?(") and inner.endswith(")"):
        return _filter(inner[2:-1].strip())
    parts = _split_union(inner)
    if len(parts) > 1:
        return _union([_subscript(part) for part in parts])
    if inner[:1] in {"'", '"'} and inner[-1:] == inner[:1] and len(inner) > 1:
        return Child(_unquote(inner))
    match = _SLICE.match(inner)
    if not match or not inner:
        raise JsonPathError(f"invalid array index {inner}")
    first, second, third = match.groups()
    if second is None and third is None:
        return _index(int(first)) if first else _wildcard
    return _slice(*(int(part) if part else None for part in (first, second, third)))


def _split_union(inner: str) -> list[str]:
    return [part.strip() for part in re.findall(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,])+""", inner)]


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


# --- steps -------------------------------------------------------------------------------------------------------


class Child:
    """A step to the field of an object."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, values: Values) -> Values:
        name = self.name
        return [value[name] for value in values if isinstance(value, dict) and name in value]


def _wildcard(values: Values) -> Values:
    found: Values = []
    for value in values:
        if isinstance(value, dict):
            found += [value[key] for key in sorted(value)]
        elif isinstance(value, list):
            found += value
    return found


def _recursive(values: Values) -> Values:
    found: Values = []
    for value in values:
        inner = _wildcard([value])
        if inner:
            found.append(value)
            found += _recursive(inner)
    return found


def _index(index: int) -> Step:
    def step(values: Values) -> Values:
        found = []
        for value in values:
            if value is None:
                continue
            if not isinstance(value, list) or not -len(value) <= index < len(value):
                raise NoResult
            found.append(value[index])
        return found

    return step


def _slice(start: int | None, stop: int | None, stride: int | None) -> Step:
    def step(values: Values) -> Values:
        found: Values = []
        for value in values:
            if value is None:
                continue
            if not isinstance(value, list) or (stride is not None and stride <= 0):
                raise NoResult
            found += value[start:stop:stride]
        return found

    return step


def _union(steps: list[Step]) -> Step:
    def step(values: Values) -> Values:
        return [found for each in steps for found in each(values)]

    return step


def _filter(condition: str) -> Step:
    match = _FILTER.match(condition)
    left, operator, right = match.groups() if match else (condition, "", "")
    passes = _condition(_operand(left), operator, _operand(right) if match else None)

    def step(values: Values) -> Values:
        found: Values = []
        for value in values:
            if not isinstance(value, list):
                raise NoResult
            found += [item for item in value if passes(item)]
        return found

    return step


Operand = JsonPath | tuple[Any]
"""Operand of a filter: a path relative to the item, or a constant."""


def _operand(text: str) -> Operand:
    text = text.strip()
    if text[:1] in {"'", '"'}:
        return (_unquote(text),)
    if text.startswith("@"):
        return JsonPath(text[1:] or ".")
    if text in {"true", "false"}:
        return (text == "true",)
    try:
        return (float(text) if "." in text else int(text),)
    except ValueError:
        raise JsonPathError(f"unrecognized identifier {text}") from None


def _condition(left: Operand, operator: str, right: Operand | None) -> Callable[[Any], bool]:
    # Fast path: nearly every filter selects a condition by its type.
    name = left.only_name if isinstance(left, JsonPath) else ""
    if name and operator == "==" and isinstance(right, tuple) and isinstance(right[0], str):
        text = right[0]
        return lambda item: type(item) is dict and item.get(name) == text

    def values_of(operand: Operand, item: Any) -> Values:
        return operand.find(item) if isinstance(operand, JsonPath) else [operand[0]]

    def passes(item: Any) -> bool:
        lefts = values_of(left, item)
        if right is None:
            return bool(lefts)
        rights = values_of(right, item)
        return bool(lefts) and bool(rights) and _compare(lefts[0], operator, rights[0])

    return passes


def _compare(left: Any, operator: str, right: Any) -> bool:
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if isinstance(left, bool) != isinstance(right, bool) or not (numbers or type(left) is type(right)):
        return False
    match operator:
        case "==":
            return bool(left == right)
        case "!=":
            return bool(left != right)
        case "<":
            return bool(left < right)
        case "<=":
            return bool(left <= right)
        case ">":
            return bool(left > right)
        case _:
            return bool(left >= right)
