"""The published page of the crash matrix: written from outcomes, and read back."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[3] / "docs" / "results" / "crash-matrix.md"
API_SERVER, NETWORK = "API server", "network"
ACTORS = ("manager", "agent", "machine", API_SERVER, NETWORK)
COMMAND = "python -m tests.simulation.plans.crash_matrix"
BROKEN, NOT_RUN = "BROKEN", "not run yet"
DISTRIBUTIONS = ("k3s", "rke2", "kubeadm", "embedded")


class Cell(NamedTuple):
    title: str  # of the operation
    phase: str
    actor: str
    distribution: str


def read_page() -> dict[Cell, str]:
    """Outcomes by cell; cells that the page lacks are missing."""
    found: dict[Cell, str] = {}
    title = ""
    for line in PAGE.read_text().splitlines() if PAGE.exists() else ():
        if line.startswith("## "):
            title = line[3:]
        columns = [each.strip() for each in line.strip("|").split("|")] if line.startswith("| ") else []
        if len(columns) != 2 + len(DISTRIBUTIONS) or columns[1] not in ACTORS:
            continue
        phase = columns[0].strip("`")
        outcomes = zip(DISTRIBUTIONS, columns[2:], strict=True)
        found |= {Cell(title, phase, columns[1], each): outcome for each, outcome in outcomes if outcome}
    return found


def publish(found: Mapping[Cell, str], cells: Iterable[Cell], seed: int) -> None:
    """Write these outcomes. Keep those of other cells, and the text above the first table."""
    outcomes = {**read_page(), **found}
    tables = _tables(outcomes, cells)
    shown = [outcome for rows in tables.values() for row in rows.values() for outcome in row.values()]
    done = sum(outcome != NOT_RUN for outcome in shown)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    written = f"{today}, seed {seed}, {done} of {len(shown)} cells. Written by `{COMMAND}`."
    text = PAGE.read_text().partition("\n## ")[0] if PAGE.exists() else f"# Crash matrix\n\n{written}\n"
    lines = [written if COMMAND in line else line for line in text.rstrip().splitlines()]
    for title, rows in tables.items():
        lines += ["", f"## {title}", "", f"| phase | crashed | {' | '.join(DISTRIBUTIONS)} |", "|---|---|" + "---|" * 4]
        for (phase, actor), row in rows.items():
            lines.append(f"| `{phase}` | {actor} | {' | '.join(row[each] for each in DISTRIBUTIONS)} |")
    PAGE.write_text("\n".join(lines) + "\n")


def _tables(outcomes: Mapping[Cell, str], cells: Iterable[Cell]) -> dict[str, dict[tuple[str, str], dict[str, str]]]:
    """By title; then by phase and actor."""
    tables: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for cell in cells:
        row = tables.setdefault(cell.title, {}).setdefault((cell.phase, cell.actor), {})
        row[cell.distribution] = outcomes.get(cell) or NOT_RUN
    return tables
