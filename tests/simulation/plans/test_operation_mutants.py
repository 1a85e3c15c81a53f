"""A mutant of operations makes no machine do what it must never do. `make soak` runs many."""

from __future__ import annotations

from tests.simulation.plans import operation_mutants
from tests.simulation.plans.mutants import ALIVE, NOTICED, REFUSED
from tools.mutants import mutants_of

SEED = 1


def test_a_sampled_mutant_of_operations_reaches_no_machine() -> None:
    verdicts: list[str] = []
    operation_mutants.run(1, SEED, only=("certificates",), report=verdicts.append)
    assert len(verdicts) == 1
    assert all(line.strip().partition(":")[0] in (REFUSED, NOTICED, ALIVE) for line in verdicts)


def test_every_module_has_mutants_and_a_scenario() -> None:
    for module in operation_mutants.MODULES:
        assert mutants_of(module)
        assert operation_mutants.versions_of(module)
    chosen = operation_mutants.sample(40, SEED)
    assert {mutant.module for mutant, *_ in chosen} == set(operation_mutants.MODULES)
    assert chosen == operation_mutants.sample(40, SEED)
