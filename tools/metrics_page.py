"""Write the tables of `docs/metrics.md` from the definitions of the metrics.

python -m tools.metrics_page [--check]
"""

from __future__ import annotations

from herder.app.metrics.catalogue import TOPICS, Topic
from herder.engine.control.metric_family import MetricFamily
from tools.generated_page import GeneratedPage

_HEAD = "| metric | type | labels | meaning |\n|---|---|---|---|\n"


def _section(topic: Topic) -> str:
    note = f" {topic.note}" if topic.note else ""
    return (
        f"\n### {topic.title}\n\nExposed by {topic.exposed_by}.{note}\n\n{_HEAD}{''.join(map(_line, topic.families))}"
    )


def _line(family: MetricFamily) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.type} | {labels} | {family.help.removesuffix('.')} |\n"


PAGE = GeneratedPage("metrics", lambda: "".join(map(_section, TOPICS)) + "\n")


if __name__ == "__main__":
    PAGE.main(__doc__)
