"""Write the tables of `docs/compatibility.md` from the tables that the tests use.

python -m tools.compatibility_page [--check]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from tests.conformance.differences import DIFFERENCES as API
from tests.fuzz.differences import DIFFERENCES as BAD_INPUT
from tests.interop.kubectl.differences import DIFFERENCES as KUBECTL
from tests.provisioning.operations.scenarios import SCENARIOS as OPERATIONS
from tests.provisioning.scenarios import SCENARIOS, SIMULATED
from tests.unit.api.capi.admission.cases import CASES as ADMISSION

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"


def api_suite() -> str:
    rows = "".join(f"| {row.real} | {row.embedded} | {row.why} |\n" for row in API.values())
    return f"| kube-apiserver | embedded server | reason |\n|---|---|---|\n{rows}"


def kubectl_output() -> str:
    rows = "".join(f"| `kubectl {_code(row.command)}` | {row.reason} |\n" for row in KUBECTL)
    return f"| commands (regular expression) | reason for the difference |\n|---|---|\n{rows}"


def bad_input() -> str:
    rows = "".join(f"| {row.name} | {row.why} |\n" for row in BAD_INPUT)
    return f"| case | difference |\n|---|---|\n{rows}"


def capi_admission() -> str:
    rows = "".join(
        f"| {case.kind.kind} | {case.name} | {'rejected' if case.fields else 'accepted'} | {case.upstream} |\n"
        for case in ADMISSION
        if case.upstream
    )
    return f"| kind | case | Herder | upstream |\n|---|---|---|---|\n{rows}"


def provisioning_suite() -> str:
    nodes = {name: "simulated" if name in SIMULATED else "real" for name in SCENARIOS if "General" not in name}
    nodes |= dict.fromkeys(OPERATIONS, "real, kubeadm")
    rows = "".join(f"| `Test_{name}` | {nodes.get(name, 'none')} |\n" for name in sorted({*SCENARIOS, *OPERATIONS}))
    return f"| upstream test | nodes |\n|---|---|\n{rows}"


TABLES: dict[str, Callable[[], str]] = {
    "api-suite": api_suite,
    "kubectl-output": kubectl_output,
    "bad-input": bad_input,
    "capi-admission": capi_admission,
    "provisioning-suite": provisioning_suite,
}


def _code(pattern: str) -> str:
    return pattern.replace("|", "\\|")


def rendered(page: str) -> str:
    for name, table in TABLES.items():
        opening, closing = f"<!-- {name} -->\n", "<!-- end -->"
        before, marker, rest = page.partition(opening)
        if not marker:
            raise SystemExit(f"{PAGE.name} has no marker for {name}")
        page = before + opening + table() + closing + rest.partition(closing)[2]
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    current = PAGE.read_text()
    expected = rendered(current)
    if parser.parse_args().check:
        raise SystemExit(
            0 if current == expected else f"{PAGE.name} is out of date: python -m tools.compatibility_page"
        )
    PAGE.write_text(expected)


if __name__ == "__main__":
    main()
