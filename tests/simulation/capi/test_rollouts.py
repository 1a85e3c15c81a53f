"""Clusters in simulation: random orders of controllers, conflicts, losses and crashes, with invariants at every event.

The long runs (`make soak`) simulate a thousand seeds of each scenario.
"""

from __future__ import annotations

import pytest

from herder.sim import loop
from herder.sim.faults import NONE, ROUGH
from tests.simulation.capi.scenarios import SCENARIOS

SEEDS = range(1, 5)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios_succeed_without_faults(scenario: str) -> None:
    assert loop.run(SCENARIOS[scenario](0, NONE)).crashes == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_invariants_hold_under_conflicts_losses_and_crashes(scenario: str, seed: int) -> None:
    loop.run(SCENARIOS[scenario](seed, ROUGH))


@pytest.mark.parametrize("seed", range(11, 14))
def test_the_same_seed_gives_the_same_event_log(seed: int) -> None:
    scenario = list(SCENARIOS.values())[seed % len(SCENARIOS)]
    first, second = (loop.run(scenario(seed, ROUGH)) for _ in range(2))
    assert first.log == second.log
