"""A seeded sample of what `make soak` runs twenty thousand of."""

from __future__ import annotations

import random

from tests.controllers.provisioning.odd_clusters import Told, odd_spec, run, sound_spec

SEED, CLUSTERS = 11, 150


def test_an_odd_value_is_refused_by_its_field_or_told_and_raises_nowhere() -> None:
    told = run({number: odd_spec(SEED, number) for number in range(CLUSTERS)}, Told())
    assert told.failures == {}
    assert set(told.outcomes) >= {"refused", "told", "told by the planner", "planned for"}, "all ways are gone"


def test_the_same_numbers_give_the_same_cluster() -> None:
    assert odd_spec(SEED, 3) == odd_spec(SEED, 3)
    assert odd_spec(SEED, 3) != odd_spec(SEED, 4)


def test_what_is_spoiled_was_sound() -> None:
    told = run({number: sound_spec(random.Random(number), number) for number in range(20)}, Told())
    assert told.failures == {}
    assert told.outcomes == {"planned for": 20}
