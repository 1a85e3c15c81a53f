"""Kubernetes versions, parsed leniently: with or without `v`, with or without a patch version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from herder.engine.schema.cel.library import semver


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    text: str  # without the `v`
    major: int
    minor: int
    order: tuple[Any, ...]
    build: str = ""

    def __str__(self) -> str:
        return self.text

    def newer_than(self, other: Version) -> bool:
        return self.order > other.order

    def same_but_build(self, other: Version) -> bool:
        return self.order == other.order and self.build != other.build


def parse(text: str) -> Version:
    """Parse a version; raise ValueError with the reason if it is invalid."""
    parsed = semver.parse(text, lenient=True)
    number, plus, build = text.removeprefix("v").partition("+")
    core, dash, prerelease = number.partition("-")
    padded = ".".join([*core.split("."), "0", "0"][:3])
    return Version(f"{padded}{dash}{prerelease}{plus}{build}", *parsed.numbers[:2], parsed.key, build)


def oldest_first(texts: Iterable[str]) -> list[str]:
    """Sort versions; invalid ones come first, because they most likely need attention."""
    return sorted(texts, key=_order)


def _order(text: str) -> tuple[bool, tuple[Any, ...], str]:
    try:
        return True, parse(text).order, text
    except ValueError:
        return False, (), text
