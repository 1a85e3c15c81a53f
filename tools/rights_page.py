"""Write the tables of `docs/rights.md` from the rights of the manager.

python -m tools.rights_page [--check]
"""

from __future__ import annotations

from collections.abc import Iterator

from herder.app.rbac.rights import PARTS, Right
from tools.generated_page import GeneratedPage

_HEAD = "| API group | resources | verbs | only | why |\n|---|---|---|---|---|\n"
_MANY_NAMES = 5
TITLES = {
    "base": "Always",
    "core": "Cluster API core: unless `--capi-core=external`",
    "machines": "Machines: unless `--no-machines`",
    "gateway": "Gateway: with `--gateway-listen`",
    "in-memory": "In-memory clusters: with `--in-memory`",
    "runner": "Runner: with `--runner`",
}


def _sections() -> Iterator[str]:
    for part, rights in PARTS.items():
        yield f"\n### {TITLES[part]}\n\nRoles `herder-{part}`.\n\n{_HEAD}{''.join(map(_line, rights))}"
    yield "\n"


def _line(right: Right) -> str:
    only = [f"in namespace `{right.namespace}`"] if right.namespace else []
    if len(right.names) > _MANY_NAMES:
        only.append(f"{len(right.names)} objects by name")
    elif right.names:
        only.append(_codes(right.names))
    group = f"`{right.group}`" if right.group else "core"
    cells = (group, _codes(right.resources), ", ".join(right.verbs), "; ".join(only), right.reason)
    return f"| {' | '.join(cells)} |\n"


def _codes(values: tuple[str, ...]) -> str:
    return ", ".join(f"`{value}`" for value in values)


PAGE = GeneratedPage("rights", lambda: "".join(_sections()))


if __name__ == "__main__":
    PAGE.main(__doc__)
