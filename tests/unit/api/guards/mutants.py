"""Mutants of the guards and of the permissions of operations, against their unit tests.

Every mutant is tried. The result is the first part of docs/results/mutants.md.

python -m tests.unit.api.guards.mutants [--only plans members …] [--list]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.mutant_tests import KILLED, SURVIVED, TIMED_OUT, judge
from tools.mutants import Mutant, mutants_of

OPERATIONS = "herder.api.rke.operations"
MODULES = (
    "herder.api.guards",
    *(
        f"herder.api.guards.{name}"
        for name in ("evictions", "example", "machines", "members", "observe_only", "plan_changes", "plans")
    ),
    OPERATIONS,
)
PRELOADED = ("herder.api.rke.node.plan_secret", "herder.engine.runtime.controller", "tests.support.builders")
GOAL = 0.95
_UNIT = Path(__file__).parents[2]
_TESTS: Mapping[str, tuple[str, ...]] = {
    "example": ("api/test_guards.py",),
    "evictions": ("api/guards/test_evictions.py", "api/test_eviction_guards.py"),
    "machines": ("api/guards/test_machines.py", "api/test_machine_guards.py"),
    "observe_only": ("api/guards/test_observe_only.py", "api/test_observe_only_guard.py"),
    "members": ("api/guards/test_members.py", "api/test_plan_guards.py"),
    "plan_changes": ("api/guards/test_plan_changes.py", "api/guards/test_plans.py", "api/test_plan_guards.py"),
    "plans": ("api/guards/test_plans.py", "api/test_plan_guards.py"),
    "operations": ("api/rke/test_operations.py", "api/guards/test_plans.py", "api/test_plan_guards.py"),
}
"""Tests of each module, the most specific first. The tests of guards by distribution follow."""
_BY_DISTRIBUTION = "api/test_guards_by_distribution.py"


def tests_of(module: str) -> list[Path]:
    own = _TESTS.get(module.rpartition(".")[2], ())
    found = [_UNIT / path for path in (*own, _BY_DISTRIBUTION)]
    return [path for path in found if path.exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="last parts of module names")
    options = parser.parse_args()
    modules = [name for name in MODULES if not options.only or name.rpartition(".")[2] in options.only]
    for module in modules:
        verdicts = judge(mutants_of(module), tests_of, PRELOADED)
        print(module, dict(Counter(verdicts.values())), flush=True)
        for mutant, verdict in verdicts.items():
            if verdict != KILLED:
                print(f"  {verdict}: {mutant}", flush=True)


if __name__ == "__main__":
    main()
