"""A seeded sample of what `make soak` runs twenty thousand of."""

from __future__ import annotations

import random

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.admission import RULES
from tests.unit.controllers.provisioning.odd_clusters import (
    RAISED,
    VERSIONS,
    Told,
    odd_spec,
    run,
    sound_spec,
    whole_spec,
    with_texts,
)

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


@pytest.mark.parametrize("version", VERSIONS)
def test_no_text_in_any_field_makes_a_rule_raise(version: str) -> None:
    rules, sound = RULES[PROVISIONING_CLUSTER], {"metadata": {"name": "odd"}, "spec": whole_spec(version)}
    for place, spec in with_texts(sound["spec"]):
        odd = {**sound, "spec": spec}
        for old in (None, sound):
            assert RAISED not in str(rules.validate(odd, old)), place
        assert rules.default is not None
        assert rules.default(odd, sound)["spec"] is not None


def test_a_rule_that_raises_refuses_the_field() -> None:
    """What no test has thought of: no exception leaves the rules, and no value is in the message."""
    odd = {"metadata": {"name": "odd"}, "spec": {"rkeConfig": {"machinePools": [{"name": ["sekrit-7431"]}]}}}
    problems = RULES[PROVISIONING_CLUSTER].validate(odd, None)
    assert [problem.field for problem in problems] == ["spec.rkeConfig.machinePools"]
    assert RAISED in str(problems[0])
    assert "sekrit-7431" not in str(problems[0])
