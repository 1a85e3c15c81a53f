"""Provisioned clusters in simulation: edits, lost machines, partitions, agents and managers that die at any moment.

When all is calm again each is what was asked for, and at no event has anything happened that must never happen. The
long runs (`make soak`) go through ten thousand seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from herder.sim import loop
from herder.sim.faults import NONE
from herder.sim.nodes import TROUBLES
from tests.simulation.plans.crossroads import live_one
from tests.simulation.plans.ranch import Ranch
from tests.simulation.plans.stories import HARSH, live, live_through, ordeal

SEEDS = range(1, 7)


def test_all_goes_well_when_nothing_goes_wrong() -> None:
    assert loop.run(live_through(2, NONE)).crashes == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_clusters_become_what_was_asked_for_and_nothing_forbidden_happens(seed: int) -> None:
    loop.run(live_through(seed, HARSH))


def test_all_that_there_is_one_after_the_other() -> None:
    loop.run(live(Ranch(2, HARSH, TROUBLES), ordeal))


def test_the_same_seed_gives_the_same_event_log() -> None:
    first, second = (loop.run(live_through(11, HARSH)) for _ in range(2))
    assert first.log == second.log


def test_a_story_that_parted_from_others_can_be_lived_through_alone() -> None:
    told = subprocess.check_output([sys.executable, "-m", "tests.simulation.plans.crossroads", "10"])
    stories = {report["ways"]: report for report in map(json.loads, told.splitlines())}
    assert len(stories) == 2 ** len(next(iter(stories)))
    assert len({report["digest"] for report in stories.values()}) == len(stories), "no two are the same"
    ways = list(stories)[5]
    ranch, wrong = live_one(10, ways)
    assert (ranch.sim.world.digest(), wrong) == (stories[ways]["digest"], stories[ways]["wrong"])
