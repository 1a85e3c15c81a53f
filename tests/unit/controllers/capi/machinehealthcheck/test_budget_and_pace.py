"""How many may be replaced at all, and how quickly."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.names import REMEDIATION_PACE
from herder.controllers.capi.machinehealthcheck.budget import budget
from herder.controllers.capi.machinehealthcheck.health import State
from herder.controllers.capi.machinehealthcheck.rate_limit import RemediationRate, next_batch, rate_of
from herder.engine.meta.kinds import Object
from tests.support.views import NOW
from tests.unit.controllers.capi.machinehealthcheck.checking import check, machine

H, U, S, B, G = State.HEALTHY, State.UNHEALTHY, State.STARTING, State.SUSPECT, State.DELETING


@pytest.mark.parametrize(
    ("trigger", "states", "allowed", "left"),
    [
        pytest.param({}, [U, U, U], True, 0, id="by default all may be"),
        pytest.param({}, [], True, 0, id="no Machines"),
        pytest.param({"unhealthyLessThanOrEqualTo": 1}, [H, U], True, 0, id="a number"),
        pytest.param({"unhealthyLessThanOrEqualTo": 1}, [U, U], False, 0, id="a number, exceeded"),
        pytest.param({"unhealthyLessThanOrEqualTo": "40%"}, [H, H, H, U, U], True, 0, id="percent"),
        pytest.param({"unhealthyLessThanOrEqualTo": "39%"}, [H, H, H, U, U], False, 0, id="percent rounds down"),
        pytest.param({"unhealthyLessThanOrEqualTo": 0}, [U], False, 0, id="none at all"),
        pytest.param({"unhealthyLessThanOrEqualTo": 3}, [H, H, U], True, 2, id="some left"),
        pytest.param({"unhealthyLessThanOrEqualTo": 1}, [U, S, S, S], True, 0, id="starting is not unhealthy"),
        pytest.param({"unhealthyLessThanOrEqualTo": 1}, [U, B], False, 0, id="about to fail is unhealthy"),
        pytest.param({"unhealthyLessThanOrEqualTo": 1}, [U, G], False, 0, id="what is replaced counts"),
        pytest.param({"unhealthyInRange": "[1-2]"}, [H, U], True, 1, id="in range"),
        pytest.param({"unhealthyInRange": "[2-3]"}, [H, U], False, 0, id="below range"),
        pytest.param({"unhealthyInRange": "[1-2]"}, [U, U, U], False, 0, id="above range"),
    ],
)
def test_budget(trigger: Object, states: list[State], allowed: bool, left: int) -> None:
    found = budget(check(remediation={"triggerIf": trigger}), states)
    assert (found.allowed, found.left) == (allowed, left)


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        (
            {"unhealthyLessThanOrEqualTo": "20%"},
            "Remediation is not allowed, the number of unhealthy machines exceeds maxUnhealthy "
            "(total: 3, unhealthy: 2, maxUnhealthy: 20%)",
        ),
        (
            {"unhealthyInRange": "[3-5]"},
            "Remediation is not allowed, the number of unhealthy machines does not fall within the range "
            "(total: 3, unhealthy: 2, unhealthyRange: [3-5])",
        ),
        (
            {"unhealthyLessThanOrEqualTo": "many"},
            "spec.remediation.triggerIf.unhealthyLessThanOrEqualTo: 'many' is neither a number nor a percentage",
        ),
    ],
)
def test_why_not(trigger: Object, message: str) -> None:
    assert budget(check(remediation={"triggerIf": trigger}), [H, U, U]).message == message


def names(machines: object) -> list[str]:
    return [each["metadata"]["name"] for each in machines]  # type: ignore[attr-defined]


def herd(count: int, **given: object) -> list[Object]:
    return [machine(f"m{number:02}", **given) for number in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("total", "begun"), [(5, 3), (30, 3), (31, 4), (100, 10)])
def test_a_tenth_may_begin_within_a_minute_but_always_three(total: int, begun: int) -> None:
    batch = next_batch(RemediationRate(), herd(20), [], total, NOW)
    assert names(batch.start) == [f"m{number:02}" for number in range(begun)]
    assert (batch.deferred, batch.deferred_until) == (20 - begun, NOW + timedelta(minutes=1))
    assert batch.rate == RemediationRate(NOW, begun, 0)


def test_within_the_minute_only_what_is_left_of_it_may_begin() -> None:
    pace = RemediationRate(NOW - timedelta(seconds=40), 2, 0)
    batch = next_batch(pace, herd(2), [], 5, NOW)
    assert len(batch.start) == 1
    assert batch.deferred_until == NOW + timedelta(seconds=20)
    later = next_batch(batch.rate, herd(1), [], 5, NOW + timedelta(seconds=20))
    assert len(later.start) == 1


def test_those_that_served_go_first() -> None:
    waiting = [machine("a", node=None), machine("b")]
    assert names(next_batch(RemediationRate(), waiting, [], 2, NOW).start) == ["b", "a"]


@pytest.mark.parametrize(("failed", "minutes"), [(1, 2), (2, 4), (5, 32), (6, 60), (50, 60)])
def test_the_wait_grows_while_new_machines_do_not_come_up(failed: int, minutes: int) -> None:
    assert RemediationRate(NOW, 1, failed).until == NOW + timedelta(minutes=minutes)


def test_failing_replacements_are_replaced_one_by_one_and_ever_later() -> None:
    first = next_batch(RemediationRate(), herd(5, node=None), [], 5, NOW)
    assert (len(first.start), first.rate.failed) == (3, 1)
    assert first.deferred_until == NOW + timedelta(minutes=2)
    second = next_batch(first.rate, herd(5, node=None), [], 5, NOW + timedelta(minutes=2))
    assert (len(second.start), second.rate.failed) == (1, 2)
    assert second.deferred_until == NOW + timedelta(minutes=6)


@pytest.mark.parametrize(("created", "failed"), [(30, 0), (90, 2)])
def test_the_pace_is_back_when_a_replacement_is_healthy(created: float, failed: int) -> None:
    pace = RemediationRate(NOW - timedelta(seconds=60), 3, 2)
    assert next_batch(pace, [], [machine("new", created=created)], 5, NOW).rate.failed == failed


@pytest.mark.parametrize(
    ("to_json", "read"),
    [
        (RemediationRate(NOW, 3, 1).to_json(), RemediationRate(NOW, 3, 1)),
        (RemediationRate().to_json(), RemediationRate()),
        ("nonsense", RemediationRate()),
        ("[]", RemediationRate()),
        ('{"since": "yesterday"}', RemediationRate()),
        ('{"since": 5}', RemediationRate()),
    ],
)
def test_the_pace_is_kept_in_an_annotation(to_json: str, read: RemediationRate) -> None:
    assert rate_of(check(annotations={REMEDIATION_PACE: to_json})) == read
    assert rate_of(check()) == RemediationRate()
