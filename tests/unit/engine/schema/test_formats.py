"""Checks of formats answer at once, whatever the text; what each accepts is among the cases of the real server."""

from __future__ import annotations

import pytest

from herder.engine.schema import formats
from tests.unit.engine.schema.cases import FORMATS

_LONG = 200_000
_NASTY = [
    "1",
    " ",
    "a",
    "a.",
    "-",
    "0",
    ":",
    "%",
    '"',
    "\\",
    "(",
    "1h",
    "1 ",
    "aGVs",
    "<",
    "@",
    "/",
    "é",
    "\n",
    "[",
    "1.",
]


@pytest.mark.parametrize("name", FORMATS)
def test_long_texts_are_answered_in_linear_time(name: str) -> None:
    """A check that took quadratic time would not come back from here."""
    check = formats.check_for(name)
    assert check is not None
    for part in _NASTY:
        for tail in ("", "!", "x", "@"):
            assert check(part * (_LONG // len(part)) + tail) in (True, False)


@pytest.mark.parametrize("name", ["date-time", "datetime", "dat-et-ime"])
def test_dashes_in_a_name_do_not_count(name: str) -> None:
    assert formats.check_for(name) is formats.is_date_time


def test_formats_that_the_server_does_not_know_have_no_check() -> None:
    assert formats.check_for("int32") is None
