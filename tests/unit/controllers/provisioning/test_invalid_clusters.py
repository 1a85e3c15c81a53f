"""A seeded sample of the clusters that `make soak` runs in large numbers."""

from __future__ import annotations

import random

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.admission import RULES
from tests.unit.controllers.provisioning.invalid_clusters import (
    RAISED,
    VERSIONS,
    Report,
    full_spec,
    invalid_spec,
    run,
    valid_spec,
    with_hostile_texts,
)

SEED, CLUSTERS = 11, 150


def test_an_invalid_value_is_rejected_or_reported_by_its_field() -> None:
    report = run({number: invalid_spec(SEED, number) for number in range(CLUSTERS)}, Report())
    assert report.failures == {}
    assert set(report.outcomes) >= {"refused", "reported", "reported by the planner", "planned"}, "every outcome occurs"


def test_the_same_seed_gives_the_same_cluster() -> None:
    assert invalid_spec(SEED, 3) == invalid_spec(SEED, 3)
    assert invalid_spec(SEED, 3) != invalid_spec(SEED, 4)


def test_unchanged_specs_are_valid() -> None:
    report = run({number: valid_spec(random.Random(number), number) for number in range(20)}, Report())
    assert report.failures == {}
    assert report.outcomes == {"planned": 20}


@pytest.mark.parametrize("version", VERSIONS)
def test_no_text_in_any_field_makes_a_rule_raise(version: str) -> None:
    rules, valid = RULES[PROVISIONING_CLUSTER], {"metadata": {"name": "odd"}, "spec": full_spec(version)}
    for place, spec in with_hostile_texts(valid["spec"]):
        cluster = {**valid, "spec": spec}
        for old in (None, valid):
            assert RAISED not in str(rules.validate(cluster, old)), place
        assert rules.default is not None
        assert rules.default(cluster, valid)["spec"] is not None


def test_a_rule_that_raises_rejects_the_field() -> None:
    """An unforeseen exception does not leave the rules, and the message contains no value."""
    cluster = {"metadata": {"name": "odd"}, "spec": {"rkeConfig": {"machinePools": [{"name": ["sekrit-7431"]}]}}}
    problems = RULES[PROVISIONING_CLUSTER].validate(cluster, None)
    assert [problem.field for problem in problems] == ["spec.rkeConfig.machinePools"]
    assert RAISED in str(problems[0])
    assert "sekrit-7431" not in str(problems[0])
