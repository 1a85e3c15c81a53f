"""The lists of the run of mutants; `make soak` runs all of them."""

from __future__ import annotations

from tests.unit.api.guards import mutants
from tools.mutants import mutants_of, source_of


def test_every_guard_is_mutated_and_has_tests() -> None:
    folder = source_of("herder.api.guards").parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"} | {"guards", "operations"}
    assert {module.rpartition(".")[2] for module in mutants.MODULES} == modules
    for module in mutants.MODULES:
        assert mutants_of(module)
        assert mutants.tests_of(module)


def test_equivalent_mutants_exist() -> None:
    known = {mutants._key(mutant) for module in mutants.MODULES for mutant in mutants_of(module)}
    assert not set(mutants.EQUIVALENT) - known
