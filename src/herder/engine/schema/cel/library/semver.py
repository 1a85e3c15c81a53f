"""Semantic versions (2.0.0), parsed strictly, or leniently on request (`semver("v1.2", true)`)."""

from __future__ import annotations

import re
from typing import Any

from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.types import BOOL, INT, SEMVER, STRING

library = Library()
_NUMBER = r"(?:0|[1-9][0-9]*)"
_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9A-Za-z-]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?\Z",
    re.ASCII,
)


class SemverValue:
    """A semantic version (kubernetes.Semver); build metadata is ignored in comparisons."""

    __slots__ = ("key", "numbers")
    cel_type = "kubernetes.Semver"

    def __init__(self, numbers: tuple[int, int, int], prerelease: str | None) -> None:
        self.numbers = numbers
        self.key: tuple[Any, ...] = (*numbers, _prerelease_key(prerelease))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SemverValue) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def compare(self, other: SemverValue) -> int:
        return (self.key > other.key) - (self.key < other.key)


def _prerelease_key(text: str | None) -> tuple[Any, ...]:
    """Sort key: pre-releases before their release; in them numbers before words, and short ones before longer ones."""
    if text is None:
        return (1,)
    identifiers = [(0, len(part), part) if part.isdigit() else (1, 0, part) for part in text.split(".")]
    return (0, *identifiers)


def parse(text: str, lenient: bool = False) -> SemverValue:
    """Parse a version; raises ValueError if it is invalid."""
    match = _VERSION.match(_normalized(text) if lenient else text)
    if match is None or any(len(match[part]) > 20 or int(match[part]) >= 2**64 for part in (1, 2, 3)):
        raise ValueError(_complaint(text))
    return SemverValue((int(match[1]), int(match[2]), int(match[3])), match[4])


def _complaint(text: str) -> str:
    if not text:
        return "Version string empty"
    parts = text.split(".", 2)
    if len(parts) != 3:
        return "No Major.Minor.Patch elements found"
    for part in parts[:2]:
        if not part.isdigit():
            return f'Invalid character(s) found in {"major" if part is parts[0] else "minor"} number "{part}"'
        if len(part) > 1 and part[0] == "0":
            return f'{"Major" if part is parts[0] else "Minor"} number must not contain leading zeroes "{part}"'
    return f'Invalid character(s) found in patch number "{parts[2]}"'


def _normalized(text: str) -> str:
    """Normalize leniently: remove a `v` prefix and leading zeros, and add missing minor and patch numbers."""
    parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and not set("+-") & set(parts[-1]):
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isdigit() else f"0{stripped}"


@library.function("semver", STRING, returns=SEMVER)
@library.function("semver", STRING, BOOL, returns=SEMVER)
def semver(text: str, lenient: bool = False) -> SemverValue:
    try:
        return parse(text, lenient)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


@library.function("isSemver", STRING, returns=BOOL)
@library.function("isSemver", STRING, BOOL, returns=BOOL)
def is_semver(text: str, lenient: bool = False) -> bool:
    try:
        parse(text, lenient)
    except ValueError:
        return False
    return True


library.method("isGreaterThan", SEMVER, SEMVER, returns=BOOL)(lambda left, right: left.compare(right) > 0)
library.method("isLessThan", SEMVER, SEMVER, returns=BOOL)(lambda left, right: left.compare(right) < 0)
library.method("compareTo", SEMVER, SEMVER, returns=INT)(lambda left, right: left.compare(right))
library.method("major", SEMVER, returns=INT)(lambda version: version.numbers[0])
library.method("minor", SEMVER, returns=INT)(lambda version: version.numbers[1])
library.method("patch", SEMVER, returns=INT)(lambda version: version.numbers[2])
