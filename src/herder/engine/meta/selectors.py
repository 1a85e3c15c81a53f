"""Label and field selectors, parsed once and matched many times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value, required

MAX_REQUIREMENTS = 100
"""All requirements are matched against each object of a list and each event of every watch."""
MAX_VALUES = 8_192
"""Values of one requirement (`in`, `notin`), including repeated ones: each is parsed and validated on the event
loop."""


class SelectorError(ValueError):
    """A selector that cannot be parsed; the message is that of kube-apiserver."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a label selector."""

    key: str
    operator: str  # one of: in, notin, =, ==, !=, exists, !, gt, lt
    values: tuple[str, ...] = ()
    _lookup: frozenset[str] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lookup", frozenset(self.values))

    def matches(self, labels: Mapping[str, str]) -> bool:
        present = self.key in labels
        match self.operator:
            case "in" | "=" | "==":
                return present and labels[self.key] in self._lookup
            case "notin" | "!=":
                return not present or labels[self.key] not in self._lookup
            case "exists":
                return present
            case "!":
                return not present
            case _:
                return present and self._compares(labels[self.key])

    def _compares(self, value: str) -> bool:
        try:
            left, right = int(value), int(self.values[0])
        except ValueError:
            return False
        return left > right if self.operator == "gt" else left < right

    def __str__(self) -> str:
        match self.operator:
            case "exists":
                return self.key
            case "!":
                return f"!{self.key}"
            case "in" | "notin":
                return f"{self.key} {self.operator} ({','.join(sorted(self.values))})"
            case "gt":
                return f"{self.key}>{self.values[0]}"
            case "lt":
                return f"{self.key}<{self.values[0]}"
            case _:
                return f"{self.key}{self.operator}{self.values[0]}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conjunction of requirements; empty selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        present = labels or {}
        return all(requirement.matches(present) for requirement in self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


EVERYTHING = LabelSelector()

_NOT_A_KEY = frozenset({"", ",", "(", ")", "=", "==", "!=", "<", ">"})
_TOKEN = re.compile(r"[ \t\r\n]*(?:(==|!=|[=!,()<>])|([^ \t\r\n=!,()<>]+))")


def parse_label_selector(text: str) -> LabelSelector:
    """Parse the string form of `labelSelector` query parameters."""
    return _LabelParser(text).parse()


def _tokens(text: str) -> Iterator[str]:
    """Yield tokens lazily: a selector that is rejected at its hundredth requirement is not read further."""
    for match in _TOKEN.finditer(text.rstrip(" \t\r\n")):  # the pattern matches any character
        yield match.group(1) or match.group(2)


class _LabelParser:
    """Recursive descent parser for the grammar of apimachinery's labels.Parse."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._ahead = next(self._tokens, "")

    def parse(self) -> LabelSelector:
        requirements: list[Requirement] = []
        if self._peek() == "":
            return EVERYTHING
        while True:
            if self._peek() in _NOT_A_KEY:
                raise SelectorError(f"found '{self._peek()}', expected: !, identifier, or 'end of string'")
            _check_count(len(requirements), MAX_REQUIREMENTS, "requirements")
            try:
                requirements.append(self._requirement())
            except SelectorError as error:
                raise SelectorError(f"unable to parse requirement: {error}") from None
            token = self._next()
            if token == "":
                return LabelSelector(tuple(sorted(requirements, key=lambda item: item.key)))
            if token != ",":
                raise SelectorError(f"found '{token}', expected: ',' or 'end of string'")
            if self._peek() in {"", ","}:
                raise SelectorError(f"found '{self._peek()}', expected: identifier after ','")

    def _peek(self) -> str:
        return self._ahead

    def _next(self) -> str:
        token, self._ahead = self._ahead, next(self._tokens, "")
        return token

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._next()
            return _validate(Requirement(self._key(), "!"))
        key = self._key()
        if self._peek() in {"", ","}:
            return _validate(Requirement(key, "exists"))
        operator = self._next()
        if operator in {"in", "notin"}:
            return _validate(Requirement(key, operator, self._values()))
        if operator in {"=", "==", "!="}:
            return _validate(Requirement(key, operator, (self._exact_value(),)))
        if operator in {"<", ">"}:
            return _validate(Requirement(key, "gt" if operator == ">" else "lt", (self._exact_value(),)))
        raise SelectorError(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def _key(self) -> str:
        token = self._next()
        if token in _NOT_A_KEY or token == "!":
            raise SelectorError(f"found '{token}', expected: identifier")
        return token

    def _exact_value(self) -> str:
        if self._peek() in {"", ","}:
            return ""
        token = self._next()
        if token in {"(", ")", "=", "==", "!=", "<", ">", "!"}:
            raise SelectorError(f"found '{token}', expected: identifier")
        return token

    def _values(self) -> tuple[str, ...]:
        opening = self._next()
        if opening != "(":
            raise SelectorError(f"found '{opening}' expected: '('")
        values: set[str] = set()
        count = 0
        expecting_value = True
        while True:
            token = self._next()
            if token == ")":
                if expecting_value:
                    values.add("")
                return tuple(sorted(values))
            if token == ",":
                count += 1
                _check_count(count, MAX_VALUES, "values")
                if expecting_value:
                    values.add("")
                expecting_value = True
            elif token == "" or token in {"(", "=", "==", "!=", "<", ">", "!"} or not expecting_value:
                raise SelectorError(f"found '{token}', expected: ',', ')' or identifier")
            else:
                values.add(token)
                expecting_value = False


def _check_count(count: int, maximum: int, what: str) -> None:
    if count >= maximum:
        raise SelectorError(f"selector: more than {maximum} {what}")


_NOT_INTEGER = "for 'Gt', 'Lt' operators, the value must be an integer"


def _validate(requirement: Requirement) -> Requirement:
    problems: list[FieldError] = []
    for complaint in names.qualified_name(requirement.key):
        problems.append(invalid_value("key", requirement.key, complaint))
    if requirement.operator in {"gt", "lt"}:
        try:
            if not -(2**63) <= int(requirement.values[0]) < 2**63:
                raise ValueError
        except ValueError:
            problems.append(invalid_value("values[0]", requirement.values[0], _NOT_INTEGER))
    for position, value in enumerate(requirement.values):
        for complaint in names.label_value(value):
            problems.append(invalid_value(f"values[{position}][{requirement.key}]", value, complaint))
    if problems:
        message = str(problems[0]) if len(problems) == 1 else "[" + ", ".join(map(str, problems)) + "]"
        raise SelectorError(message)
    return requirement


_OBJECT_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


def label_selector_from_object(selector: Mapping[str, Any] | None) -> LabelSelector | None:
    """Return the selector of a `metav1.LabelSelector`; None (selects nothing) if absent, everything if empty.

    The object must be valid; `validate_label_selector` reports errors.
    """
    if selector is None:
        return None
    requirements = [Requirement(key, "=", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or []:
        operator = _OBJECT_OPERATORS[expression["operator"]]
        requirements.append(Requirement(expression["key"], operator, tuple(expression.get("values") or ())))
    return LabelSelector(tuple(sorted(requirements, key=lambda item: item.key)))


def validate_label_selector(selector: Mapping[str, Any] | None, path: str) -> Iterable[FieldError]:
    for key, value in ((selector or {}).get("matchLabels") or {}).items():
        for complaint in names.qualified_name(key):
            yield invalid_value(f"{path}.matchLabels", key, complaint)
        for complaint in names.label_value(value):
            yield invalid_value(f"{path}.matchLabels", value, complaint)
    for position, expression in enumerate((selector or {}).get("matchExpressions") or []):
        at = f"{path}.matchExpressions[{position}]"
        operator, values = expression.get("operator"), expression.get("values") or []
        if operator in {"In", "NotIn"}:
            if not values:
                yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in {"Exists", "DoesNotExist"}:
            if values:
                yield forbidden_field(
                    f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )
        else:
            yield invalid_value(f"{at}.operator", operator or "", "not a valid selector operator")
        for complaint in names.qualified_name(expression.get("key") or ""):
            yield invalid_value(f"{at}.key", expression.get("key") or "", complaint)
        for index, value in enumerate(values):
            for complaint in names.label_value(value):
                yield invalid_value(f"{at}.values[{index}]", value, complaint)


# --- field selectors --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """One term of a field selector: equal or not equal."""

    field: str
    equal: bool
    value: str


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Conjunction of field requirements; empty selects everything."""

    requirements: tuple[FieldRequirement, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all((fields.get(item.field, "") == item.value) == item.equal for item in self.requirements)

    def exact(self, field: str) -> str | None:
        """Return the value that the selector requires for `field`, if any."""
        for item in self.requirements:
            if item.equal and item.field == field:
                return item.value
        return None

    def __bool__(self) -> bool:
        return bool(self.requirements)


_ESCAPED = {"\\\\": "\\", "\\,": ",", "\\=": "="}


def parse_field_selector(text: str) -> FieldSelector:
    requirements: list[FieldRequirement] = []
    for term in _split_unescaped(text):
        if not term:
            continue
        _check_count(len(requirements), MAX_REQUIREMENTS, "requirements")
        match = re.match(r"((?:\\.|[^\\=!]|!(?!=))*)(==|!=|=)(.*)\Z", term, re.DOTALL)
        if match is None:
            raise SelectorError(f"invalid selector: '{term}'; can't understand '{term}'")
        field, operator, value = match.groups()
        if not field and not value:
            continue
        requirements.append(FieldRequirement(field, operator != "!=", _unescape(value)))
    return FieldSelector(tuple(requirements))


def _split_unescaped(text: str) -> Iterator[str]:
    start, position = 0, 0
    while position < len(text):
        if text[position] == "\\":
            position += 2
            continue
        if text[position] == ",":
            yield text[start:position]
            start = position + 1
        position += 1
    yield text[start:]


def _unescape(value: str) -> str:
    out, position = [], 0
    while position < len(value):
        if value[position] == "\\":
            pair = value[position : position + 2]
            if pair not in _ESCAPED:
                raise SelectorError(f"invalid field selector: invalid escape sequence: {pair}")
            out.append(_ESCAPED[pair])
            position += 2
        elif value[position] in ",=":
            raise SelectorError(f"invalid field selector: unescaped character in value: {value[position]}")
        else:
            out.append(value[position])
            position += 1
    return "".join(out)


__all__ = [
    "EVERYTHING", "FieldRequirement", "FieldSelector", "LabelSelector", "Requirement", "SelectorError",
    "label_selector_from_object", "parse_field_selector", "parse_label_selector",
    "validate_label_selector",
]  # fmt: skip
