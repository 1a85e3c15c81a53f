"""docs/results/mutants.md: one section for each run of mutants, which the next run replaces."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "results" / "mutants.md"
_TITLE = "# Mutants\n\nSmall changes to the source, made by `tools/mutants.py`. Written by `make soak`.\n"


def record(title: str, lines: Sequence[str]) -> None:
    """Replace the section with this title."""
    from bench.__main__ import machine  # imports what is mutated

    text = PAGE.read_text() if PAGE.exists() else _TITLE
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    kept = {section.partition("\n")[0]: section.rstrip("\n") for section in sections}
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    kept[f"## {title}"] = "\n".join([f"## {title}\n", f"{today}, {machine()}.", "", *lines])
    PAGE.write_text("\n\n".join([head.rstrip("\n"), *kept.values()]) + "\n")
