"""Run the table of mistakes and write docs/results/mistakes.md. Exits with 1 if a line does not name its cause."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.__main__ import RESULTS
from tests.mistakes.site import Site, running_site
from tests.mistakes.table import ALL, GROUPS, Mistake

HEAD = f"""\
# First lines of errors

{len(ALL)} mistakes: what a user types, and the first line that the user sees. Written by `python -m tests.mistakes`,
which runs each command against one manager. `tests/mistakes` checks that each line names the cause.

Values of the run are in braces: `{{listen}}` is the address of the manager, `{{data}}` its data directory, `{{files}}`
a directory with files, `{{registry}}` a registry without images, `{{waiting}}` a machine whose Job a quota refuses.
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, running_site(Path(directory)) as site:
        sections = [_section(site, title, group) for title, group in GROUPS.items()]
    (RESULTS / "mistakes.md").write_text("\n".join([HEAD, *(text for text, _ in sections)]))
    sys.exit(any(failed for _, failed in sections))


def _section(site: Site, title: str, group: tuple[Mistake, ...]) -> tuple[str, bool]:
    rows, failed = ["| mistake | command | first line |", "|---|---|---|"], False
    for mistake in group:
        status, line = site.first_line(mistake)
        line = site.shown(line)
        failed = failed or status != mistake.status or any(word not in line for word in mistake.cause)
        rows.append(f"| {mistake.title} | {_code(_as_user(mistake))} | {_code(_without_pattern(line))} |")
    return "\n".join([f"## {title}\n", *rows, ""]), failed


def _as_user(mistake: Mistake) -> str:
    return mistake.command if mistake.user in ("admin", "") else f"KUBECONFIG={mistake.user}.yaml {mistake.command}"


def _without_pattern(line: str) -> str:
    """Kubernetes appends the regular expression of a name."""
    text, found, _ = line.partition(", regex used for validation is")
    return f"{text} …)" if found else line


def _code(text: str) -> str:
    quote = "``" if "`" in text else "`"
    return f"{quote}{text.replace('|', chr(92) + '|')}{quote}"


if __name__ == "__main__":
    main()
