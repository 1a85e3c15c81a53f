"""The security page names existing tests for each class of vulnerabilities."""

from __future__ import annotations

from tests.support.checks.named_tests import ROOT, TEST, missing_tests

PAGE = ROOT / "docs" / "security.md"


def rows() -> list[str]:
    return [line for line in PAGE.read_text().splitlines() if line.startswith("| **")]


def test_every_class_names_existing_tests() -> None:
    assert rows()
    for row in rows():
        assert TEST.findall(row), row[:60]
        assert missing_tests(row) == [], row[:60]


def test_every_reference_to_a_test_is_checked() -> None:
    assert PAGE.read_text().count("::") == sum(len(TEST.findall(row)) for row in rows())
