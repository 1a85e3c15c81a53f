"""Limits of remediation: how many Machines may be unhealthy, and how many remediations may start per minute."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.names import REMEDIATION_PACE
from herder.controllers.capi.machinehealthcheck.budget import budget
from herder.controllers.capi.machinehealthcheck.health import State
from herder.controllers.capi.machinehealthcheck.rate_limit import RemediationRate, next_batch, rate_of
from herder.engine.meta.kinds import Object
from tests.support.views import NOW
from tests.unit.controllers.capi.machinehealthcheck.objects import health_check, machine

HEALTHY, UNHEALTHY, STARTING, SUSPECT, DELETING = (
    State.HEALTHY,
    State.UNHEALTHY,
    State.STARTING,
    State.SUSPECT,
    State.DELETING,
)


@pytest.mark.parametrize(
    ("trigger", "states", "allowed", "left"),
    [
        pytest.param({}, [UNHEALTHY, UNHEALTHY, UNHEALTHY], True, 0, id="no limit by default"),
        pytest.param({}, [], True, 0, id="no Machines"),
        pytest.param({"unhealthyLessThanOrEqualTo": 1}, [HEALTHY, UNHEALTHY], True, 0, id="a number"),
        pytest.param({"unhealthyLessThanOrEqualTo": 1}, [UNHEALTHY, UNHEALTHY], False, 0, id="a number, exceeded"),
        pytest.param(
            {"unhealthyLessThanOrEqualTo": "40%"},
            [HEALTHY, HEALTHY, HEALTHY, UNHEALTHY, UNHEALTHY],
            True,
            0,
            id="percent",
        ),
        pytest.param(
            {"unhealthyLessThanOrEqualTo": "39%"},
            [HEALTHY, HEALTHY, HEALTHY, UNHEALTHY, UNHEALTHY],
            False,
            0,
            id="percent rounds down",
        ),
        pytest.param({"unhealthyLessThanOrEqualTo": 0}, [UNHEALTHY], False, 0, id="zero"),
        pytest.param({"unhealthyLessThanOrEqualTo": 3}, [HEALTHY, HEALTHY, UNHEALTHY], True, 2, id="some left"),
        pytest.param(
            {"unhealthyLessThanOrEqualTo": 1},
            [UNHEALTHY, STARTING, STARTING, STARTING],
            True,
            0,
            id="starting is not unhealthy",
        ),
        pytest.param(
            {"unhealthyLessThanOrEqualTo": 1}, [UNHEALTHY, SUSPECT], False, 0, id="suspect counts as unhealthy"
        ),
        pytest.param(
            {"unhealthyLessThanOrEqualTo": 1}, [UNHEALTHY, DELETING], False, 0, id="deleting counts as unhealthy"
        ),
        pytest.param({"unhealthyInRange": "[1-2]"}, [HEALTHY, UNHEALTHY], True, 1, id="in range"),
        pytest.param({"unhealthyInRange": "[2-3]"}, [HEALTHY, UNHEALTHY], False, 0, id="below range"),
        pytest.param({"unhealthyInRange": "[1-2]"}, [UNHEALTHY, UNHEALTHY, UNHEALTHY], False, 0, id="above range"),
    ],
)
def test_budget(trigger: Object, states: list[State], allowed: bool, left: int) -> None:
    found = budget(health_check(remediation={"triggerIf": trigger}), states)
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
def test_message_of_exceeded_limits(trigger: Object, message: str) -> None:
    assert budget(health_check(remediation={"triggerIf": trigger}), [HEALTHY, UNHEALTHY, UNHEALTHY]).message == message


def names(machines: object) -> list[str]:
    return [each["metadata"]["name"] for each in machines]  # type: ignore[attr-defined]


def machine_list(count: int, **options: object) -> list[Object]:
    return [machine(f"m{number:02}", **options) for number in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("total", "started"), [(5, 3), (30, 3), (31, 4), (100, 10)])
def test_a_tenth_but_at_least_three_may_start_per_minute(total: int, started: int) -> None:
    batch = next_batch(RemediationRate(), machine_list(20), [], total, NOW)
    assert names(batch.start) == [f"m{number:02}" for number in range(started)]
    assert (batch.deferred, batch.deferred_until) == (20 - started, NOW + timedelta(minutes=1))
    assert batch.rate == RemediationRate(NOW, started, 0)


def test_remaining_remediations_of_the_minute_may_start() -> None:
    rate = RemediationRate(NOW - timedelta(seconds=40), 2, 0)
    batch = next_batch(rate, machine_list(2), [], 5, NOW)
    assert len(batch.start) == 1
    assert batch.deferred_until == NOW + timedelta(seconds=20)
    later = next_batch(batch.rate, machine_list(1), [], 5, NOW + timedelta(seconds=20))
    assert len(later.start) == 1


def test_machines_with_a_node_are_remediated_first() -> None:
    waiting = [machine("a", node=None), machine("b")]
    assert names(next_batch(RemediationRate(), waiting, [], 2, NOW).start) == ["b", "a"]


@pytest.mark.parametrize(("failed", "minutes"), [(1, 2), (2, 4), (5, 32), (6, 60), (50, 60)])
def test_backoff_grows_while_replacements_fail(failed: int, minutes: int) -> None:
    assert RemediationRate(NOW, 1, failed).until == NOW + timedelta(minutes=minutes)


def test_failing_replacements_are_remediated_one_at_a_time_with_backoff() -> None:
    first = next_batch(RemediationRate(), machine_list(5, node=None), [], 5, NOW)
    assert (len(first.start), first.rate.failed) == (3, 1)
    assert first.deferred_until == NOW + timedelta(minutes=2)
    second = next_batch(first.rate, machine_list(5, node=None), [], 5, NOW + timedelta(minutes=2))
    assert (len(second.start), second.rate.failed) == (1, 2)
    assert second.deferred_until == NOW + timedelta(minutes=6)


@pytest.mark.parametrize(("created", "failed"), [(30, 0), (90, 2)])
def test_healthy_replacement_resets_the_backoff(created: float, failed: int) -> None:
    rate = RemediationRate(NOW - timedelta(seconds=60), 3, 2)
    assert next_batch(rate, [], [machine("new", created=created)], 5, NOW).rate.failed == failed


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (RemediationRate(NOW, 3, 1).to_json(), RemediationRate(NOW, 3, 1)),
        (RemediationRate().to_json(), RemediationRate()),
        ("nonsense", RemediationRate()),
        ("[]", RemediationRate()),
        ('{"since": "yesterday"}', RemediationRate()),
        ('{"since": 5}', RemediationRate()),
    ],
)
def test_rate_is_stored_in_an_annotation(annotation: str, expected: RemediationRate) -> None:
    assert rate_of(health_check(annotations={REMEDIATION_PACE: annotation})) == expected
    assert rate_of(health_check()) == RemediationRate()
