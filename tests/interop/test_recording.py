"""Recordings are compared as strictly as chance allows."""

from __future__ import annotations

import pytest

from tests.support.recording import Told, alike

SOME = "* Machine <machine of <set 1>>: not ready"
MORE = "* Machines <machine of <set 1>>, <machine of <set 1>>: not ready"


def told(*texts: str, fleeting: tuple[int, ...] = ()) -> list[Told]:
    """Each for ten seconds, or for a tenth of one."""
    found, now = [], 0.0
    for number, text in enumerate(texts):
        lasting = 0.1 if number in fleeting else 10.0
        found.append(Told(text, now, now + lasting))
        now += lasting
    return found


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (told("a", "b"), told("a", "b"), True),
        (told("a", "b"), told("b", "a"), False),
        (told("a", "b"), told("a"), False),
        (told("a"), told("a", "b"), False),
        (told("a", "x", "b", fleeting=(1,)), told("a", "b"), True),
        (told("a", "x", "b", fleeting=(1,)), told("a", "x", "b"), True),
        (told("a", "x", "b", fleeting=(1,)), told("a", "y", "b"), False),
        (told("a", "x", "a", fleeting=(1,)), told("a"), True),
        (told("a", "x", "a"), told("a"), False),
        (told("* Machine m: Condition Ready not yet reported", "a"), told("a"), True),
        (told(SOME, MORE), told(MORE), True),
        (told(MORE, SOME), told(MORE), False),
    ],
)
def test_only_what_chance_decides_may_be_missed(one: list[Told], other: list[Told], same: bool) -> None:
    assert alike(one, other) is same
    assert alike(other, one) is same
