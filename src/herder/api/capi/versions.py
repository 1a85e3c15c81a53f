"""Kubernetes versions, read as leniently as their users write them: with or without `v`, with or without a patch."""

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
    """ValueError, with what is wrong in words, for what is no version."""
    parsed = semver.parse(text, lenient=True)
    number, plus, build = text.removeprefix("v").partition("+")
    core, dash, prerelease = number.partition("-")
    padded = ".".join([*core.split("."), "0", "0"][:3])
    return Version(f"{padded}{dash}{prerelease}{plus}{build}", *parsed.numbers[:2], parsed.key, build)


def oldest_first(texts: Iterable[str]) -> list[str]:
    """What is no version comes first: it is the more likely to need attention."""
    return sorted(texts, key=_order)


def _order(text: str) -> tuple[bool, tuple[Any, ...], str]:
    try:
        return True, parse(text).order, text
    except ValueError:
        return False, (), text
