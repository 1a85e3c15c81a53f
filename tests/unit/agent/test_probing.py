"""How often probes are asked: often while what was just started comes up, and then as the period says."""

from __future__ import annotations

import pytest

from herder.agent.core.events import Probed
from herder.agent.core.plan import Probe, parse
from herder.agent.core.probe_health import EAGER_SECONDS, Probing

PERIOD = 5.0


def probes() -> list[Probe]:
    plan = b'{"probes": {"kubelet": {"httpGet": {"url": "http://127.0.0.1:1/healthz"}, "successThreshold": 1}}}'
    return parse(plan).probes


def rounds(answers: list[bool], *, after_run: bool) -> list[float]:
    """When each next round is due, in seconds after the last one ended."""
    probing = Probing()
    probing.watch(probes(), {})
    if after_run:
        probing.after_run()
    pauses = []
    for number, succeeded in enumerate(answers):
        (started,) = probing.start_round()
        probing.take(Probed(started.round, "kubelet", succeeded, ""), float(number), PERIOD)
        pauses.append(probing.next_round - number)
    return pauses


@pytest.mark.parametrize(
    ("answers", "pauses"),
    [
        ([False] * 6, [EAGER_SECONDS, 1.0, 2.0, 4.0, PERIOD, PERIOD]),
        ([False, True, True], [EAGER_SECONDS, PERIOD, PERIOD]),
        ([True, False, False], [PERIOD, PERIOD, PERIOD]),
    ],
)
def test_after_a_run_rounds_follow_quickly_until_all_is_well(answers: list[bool], pauses: list[float]) -> None:
    assert rounds(answers, after_run=True) == pauses


def test_what_was_not_just_started_is_asked_as_the_period_says() -> None:
    assert rounds([False, False], after_run=False) == [PERIOD, PERIOD]
