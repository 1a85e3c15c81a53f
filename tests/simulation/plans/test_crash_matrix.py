"""The crash matrix: a sample of its cells, and completeness of the published page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from herder.api.rke.operations import AUTHORITIES, SCHEDULED_SNAPSHOT
from herder.api.rke.services import NO_AUTHORITY_ROTATION
from herder.controllers.planner.distributions.lookup import distribution_of
from tests.simulation.plans.crash_matrix import all_cells, reason_of
from tests.simulation.plans.crash_operations.matrix import MATRIX
from tests.simulation.plans.crash_operations.operation import DISTRIBUTIONS, KINDS
from tests.simulation.plans.crash_page import ACTORS, BROKEN, NETWORK, NOT_RUN, Cell, read_page

SAMPLE, SEED = 8, 8
KNOWN_DEFECTS: set[Cell] = set()
"""Cells whose outcome is not allowed and whose cause is not fixed yet; the page says so."""


def test_a_sample_of_the_crash_matrix_has_allowed_outcomes() -> None:
    """In its own process: only a process without other threads can be forked safely."""
    command = [sys.executable, "-m", "tests.simulation.plans.crash_matrix"]
    done = subprocess.run(
        [*command, "--sample", str(SAMPLE), "--seed", str(SEED)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_matrix_has_every_phase_of_every_operation() -> None:
    cells = set(all_cells())
    assert {base.kind for base in MATRIX.values()} == set(KINDS)
    for kind, operation in KINDS.items():
        for phase in operation.phases:
            titles = [title for title, base in MATRIX.items() if base.kind == kind]
            for distribution in DISTRIBUTIONS:
                for actor in {each for title in titles for each in MATRIX[title].actors()}:
                    assert any((title, phase.name, actor, distribution) in cells for title in titles), phase.name


def test_each_actor_crashes() -> None:
    assert {cell.actor for cell in all_cells()} == set(ACTORS)
    for title, base in MATRIX.items():
        assert set(ACTORS) - set(base.actors()) <= {NETWORK}, title
    assert NETWORK in MATRIX["Restore of the data"].actors(), "only restores stop servers until they are reported"


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_each_phase_is_crashed_on_each_distribution(distribution: str) -> None:
    """Only schedules are carried out by servers themselves on some distributions, and some cannot rotate CAs."""
    crashed = {
        (MATRIX[cell.title].kind, cell.phase)
        for cell in all_cells()
        if cell.distribution == distribution and not reason_of(cell)
    }
    by_servers = distribution_of(f"v1.34.1{DISTRIBUTIONS[distribution]}").schedules_snapshots
    kinds = set(KINDS) - ({SCHEDULED_SNAPSHOT} if by_servers else set())
    kinds -= {AUTHORITIES} if distribution in NO_AUTHORITY_ROTATION else set()
    assert crashed == {(kind, phase.name) for kind in kinds for phase in KINDS[kind].phases}


def test_the_published_page_has_each_cell() -> None:
    page = read_page()
    assert page.keys() == set(all_cells()), "run: python -m tests.simulation.plans.crash_matrix --missing"
    assert {cell for cell, outcome in page.items() if outcome.startswith(BROKEN)} <= KNOWN_DEFECTS
    missing = [cell for cell, outcome in page.items() if outcome == NOT_RUN]
    assert not missing, f"run: python -m tests.simulation.plans.crash_matrix --missing; {len(missing)} have not run"
    for cell, outcome in page.items():
        reason = reason_of(cell)
        assert (outcome == reason) if reason else outcome
