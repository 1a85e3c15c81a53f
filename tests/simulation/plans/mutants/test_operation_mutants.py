"""A mutant of operations makes no machine do what it must never do. `make soak` runs many."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.plans.crash_operations.restores import RestoreData
from tests.simulation.plans.mutants import operation_mutants
from tests.simulation.plans.mutants.planner_mutants import ALIVE, NOTICED, REFUSED
from tests.simulation.plans.mutants.scenarios import DISTURBANCES, NO_DISTURBANCE, PARTITION, SCENARIOS, Case
from tools.mutants import Mutant, mutants_of, source_of

SEED = 1
ENGINE = "herder.controllers.planner.operations.engine"


def test_a_sampled_mutant_of_operations_reaches_no_machine() -> None:
    verdicts: list[str] = []
    operation_mutants.run(1, SEED, only=("certificates",), report=verdicts.append)
    assert len(verdicts) == 1
    assert all(line.strip().partition(":")[0] in (REFUSED, NOTICED, ALIVE) for line in verdicts)


def test_a_mutant_takes_over_when_the_cluster_is_prepared() -> None:
    """This one breaks any operation, so it could not have saved the snapshot that it is asked to restore: the
    preparation would fail."""
    (mutant,) = (each for each in mutants_of(ENGINE) if each.change == "if waits → False")
    found: list[str] = []

    def report(_mutant: Mutant, _case: Case, verdict: dict[str, str]) -> None:
        found.append(f"{verdict['verdict']}: {verdict['details']}")

    operation_mutants.judge([(mutant, Case(RestoreData.title, "k3s", NO_DISTURBANCE))], report)
    assert len(found) == 1
    assert found[0].partition(":")[0] in (REFUSED, NOTICED)


def test_every_module_has_mutants_and_cases() -> None:
    for module in operation_mutants.MODULES:
        assert mutants_of(module)
        assert operation_mutants.cases_of(module)
    chosen = operation_mutants.sample(60, SEED)
    assert {mutant.module for mutant, _ in chosen} == set(operation_mutants.MODULES)
    assert chosen == operation_mutants.sample(60, SEED)
    assert {case.disturbance.rstrip(" 123") for _, case in chosen} == {each.rstrip(" 123") for each in DISTURBANCES}
    assert PARTITION in {each.rstrip(" 123") for each in DISTURBANCES}


def test_no_module_is_missing() -> None:
    """All of the operations are mutated, and all of the distributions but those that render rollouts."""
    known = {*operation_mutants.MODULES, *operation_mutants.OF_ROLLOUTS}
    for package in ("operations", "distributions"):
        folder = source_of(f"herder.controllers.planner.{package}")
        root = Path(folder).parent
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(("herder.controllers.planner", package, *parts))
            assert path.name == "__init__.py" or name in known
    assert all(source_of(name).exists() for name in known)
    assert not operation_mutants.OF_ROLLOUTS & set(operation_mutants.MODULES)


def test_every_scenario_has_a_case() -> None:
    titles = {case.title for module in operation_mutants.MODULES for case in operation_mutants.cases_of(module)}
    assert titles == set(SCENARIOS)
