"""Each page of an operation has the same parts, and names existing tests for what it states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.checks.named_tests import ROOT, TEST, missing_tests

OVERVIEW = ROOT / "docs" / "operations.md"
PAGES = sorted((ROOT / "docs" / "operations").glob("*.md"))
PARTS = ("Touches", "Took", "Can go wrong", "Undone by")
TESTED = ("Touches", "Can go wrong", "Undone by")
"""What a measurement took is not tested."""


def rows(page: Path) -> list[str]:
    """The rows of the table in the section Tests."""
    section = page.read_text().partition("\n## Tests\n")[2]
    return [line for line in section.splitlines() if line.startswith("| **")]


def test_the_overview_links_every_page() -> None:
    linked = set(re.findall(r"\]\(operations/([\w-]+\.md)", OVERVIEW.read_text()))
    assert PAGES
    assert linked == {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_has_the_same_parts(page: Path) -> None:
    text = page.read_text()
    assert [part for part in PARTS if f"\n- **{part}:** " not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_statement_names_existing_tests(page: Path) -> None:
    found = rows(page)
    assert [part for part in TESTED if not any(row.startswith(f"| **{part}:** ") for row in found)] == []
    for row in found:
        assert TEST.findall(row), row
        assert missing_tests(row) == [], row
    assert page.read_text().count("::") == sum(len(TEST.findall(row)) for row in found)
