"""Format checks run in linear time for any text. The cases of the real server cover what each format accepts."""

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
def test_long_texts_are_checked_in_linear_time(name: str) -> None:
    """A check in quadratic time would not finish."""
    check = formats.check_for(name)
    assert check is not None
    for part in _NASTY:
        for tail in ("", "!", "x", "@"):
            assert check(part * (_LONG // len(part)) + tail) in (True, False)


@pytest.mark.parametrize("name", ["date-time", "datetime", "dat-et-ime"])
def test_dashes_in_a_format_name_are_ignored(name: str) -> None:
    assert formats.check_for(name) is formats.is_date_time


def test_unknown_formats_are_not_checked() -> None:
    assert formats.check_for("int32") is None
