"""The part of a page of docs/ that is written from data, between two markers; the rest of the page is kept."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_CLOSING = "<!-- end -->"


@dataclass(frozen=True)
class GeneratedPage:
    """A page of docs/ whose generated part begins with the marker `<!-- NAME -->`."""

    name: str
    content: Callable[[], str]

    @property
    def path(self) -> Path:
        return DOCS / f"{self.name}.md"

    def rendered(self, page: str) -> str:
        before, marker, rest = page.partition(f"<!-- {self.name} -->\n")
        if not marker:
            raise SystemExit(f"{self.path.name} has no marker")
        return before + marker + self.content() + _CLOSING + rest.partition(_CLOSING)[2]

    def main(self, description: str | None) -> None:
        """Write the page, or fail with --check if it is not up to date."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
        check = parser.parse_args().check
        current = self.path.read_text()
        expected = self.rendered(current)
        if check:
            sys.exit(
                0 if current == expected else f"{self.path.name} is not up to date: python -m tools.{self.name}_page"
            )
        self.path.write_text(expected)
