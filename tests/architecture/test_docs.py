"""Pages that are written from tables are up to date, and links between pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import compatibility_page

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_tables_of_differences_are_those_of_the_tests() -> None:
    page = compatibility_page.PAGE.read_text()
    assert compatibility_page.rendered(page) == page, "python -m tools.compatibility_page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []
