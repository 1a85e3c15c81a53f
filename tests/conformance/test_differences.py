"""Every entry of the table of differences is used by a test."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.differences import DIFFERENCES


def test_every_difference_in_the_table_is_used_by_a_test() -> None:
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert [entry for entry in DIFFERENCES if f'"{entry}"' not in tests] == []
