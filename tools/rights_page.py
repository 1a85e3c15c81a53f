"""Write the tables of `docs/rights.md` from the rights of the manager.

python -m tools.rights_page [--check]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from herder.app.rbac.rights import PARTS, Right

PAGE = Path(__file__).parents[1] / "docs" / "rights.md"
_OPENING, _CLOSING = "<!-- rights -->\n", "<!-- end -->"
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


def rendered(page: str) -> str:
    before, marker, rest = page.partition(_OPENING)
    if not marker:
        raise SystemExit(f"{PAGE.name} has no marker")
    return before + _OPENING + "".join(_sections()) + _CLOSING + rest.partition(_CLOSING)[2]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    current = PAGE.read_text()
    expected = rendered(current)
    if parser.parse_args().check:
        raise SystemExit(0 if current == expected else f"{PAGE.name} is not up to date: python -m tools.rights_page")
    PAGE.write_text(expected)


if __name__ == "__main__":
    main()
