"""Write the tables of `docs/metrics.md` from the definitions of the metrics.

python -m tools.metrics_page [--check]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from herder.app.metrics.catalogue import TOPICS, Topic
from herder.engine.control.metric_family import MetricFamily

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
_OPENING, _CLOSING = "<!-- metrics -->\n", "<!-- end -->"
_HEAD = "| metric | type | labels | meaning |\n|---|---|---|---|\n"


def rendered(page: str) -> str:
    before, marker, rest = page.partition(_OPENING)
    if not marker:
        raise SystemExit(f"{PAGE.name} has no marker")
    return before + _OPENING + "".join(map(_section, TOPICS)) + "\n" + _CLOSING + rest.partition(_CLOSING)[2]


def _section(topic: Topic) -> str:
    note = f" {topic.note}" if topic.note else ""
    return (
        f"\n### {topic.title}\n\nExposed by {topic.exposed_by}.{note}\n\n{_HEAD}{''.join(map(_line, topic.families))}"
    )


def _line(family: MetricFamily) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.type} | {labels} | {family.help.removesuffix('.')} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    current = PAGE.read_text()
    expected = rendered(current)
    if parser.parse_args().check:
        raise SystemExit(0 if current == expected else f"{PAGE.name} is not up to date: python -m tools.metrics_page")
    PAGE.write_text(expected)


if __name__ == "__main__":
    main()
