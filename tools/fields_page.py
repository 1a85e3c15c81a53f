"""Write the tables of `docs/fields.md` from the field table.

python -m tools.fields_page [--check]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from herder.api.rke.distributions import DISTRIBUTIONS
from herder.api.rke.fields.rows import Effect, Row
from herder.api.rke.fields.table import TABLE
from tools.generated_page import GeneratedPage

_NAMES = {"k3s": "K3s", "rke2": "RKE2"}
_CONFIG = "spec.rkeConfig."
SECTIONS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("Machine pools", (f"{_CONFIG}machinePool",)),
    ("Machine configuration and files", (f"{_CONFIG}machineGlobal", f"{_CONFIG}machineSelector")),
    ("Upgrade strategy", (f"{_CONFIG}upgradeStrategy",)),
    ("etcd snapshots", (f"{_CONFIG}etcd.",)),
    ("Operations", (f"{_CONFIG}etcdSnapshot", f"{_CONFIG}rotate", "spec.redeploy")),
    ("Registries", (f"{_CONFIG}registries",)),
    ("Other fields of rkeConfig", (_CONFIG,)),
    ("Agents", tuple(f"spec.{agent}DeploymentCustomization" for agent in ("clusterAgent", "fleetAgent", "webhook"))),
    ("Other fields of the Cluster", ("spec.",)),
)
"""Headings, and prefixes of their fields. The first one that matches counts."""


def _sections() -> Iterator[str]:
    columns = [_NAMES.get(each.name, each.name) for each in DISTRIBUTIONS]
    head = f"| field | {' | '.join(columns)} | note |\n|{'---|' * (len(columns) + 2)}\n"
    for title, _ in SECTIONS:
        rows = [row for row in TABLE if _section(row) == title]
        yield f"\n### {title}\n\n{head}{''.join(map(_line, rows))}"
    yield "\n"


def _section(row: Row) -> str:
    return next(title for title, prefixes in SECTIONS if row.path.startswith(prefixes))


def _line(row: Row) -> str:
    effects = [row.effects[each.name] for each in DISTRIBUTIONS]
    cells = [f"**{each.value}**" if each is Effect.REFUSED else each.value for each in effects]
    path = row.path.removeprefix("spec.") + (".*" if row.subtree else "")
    return f"| `{path}` | {' | '.join(cells)} | {_note(row)} |\n"


def _note(row: Row) -> str:
    return f"{row.remark}. Elsewhere: {row.reason}" if row.remark and row.reason else row.remark or row.reason


PAGE = GeneratedPage("fields", lambda: "".join(_sections()))


if __name__ == "__main__":
    PAGE.main(__doc__)
