"""How often probes run: quickly after a run until they succeed, then once per period."""

from __future__ import annotations

import pytest

from herder.agent.core.events import Probed
from herder.agent.core.plan import Probe, parse
from herder.agent.core.probe_health import EAGER_SECONDS, Probing

PERIOD = 5.0


def probes() -> list[Probe]:
    plan = b'{"probes": {"kubelet": {"httpGet": {"url": "http://127.0.0.1:1/healthz"}, "successThreshold": 1}}}'
    return parse(plan).probes


def delays_between_rounds(results: list[bool], *, after_run: bool) -> list[float]:
    """Return the delay before each next round, in seconds after the previous one ended."""
    probing = Probing()
    probing.watch(probes(), {})
    if after_run:
        probing.after_run()
    delays = []
    for number, succeeded in enumerate(results):
        (started,) = probing.start_round()
        probing.take(Probed(started.round, "kubelet", succeeded, ""), float(number), PERIOD)
        delays.append(probing.next_round - number)
    return delays


@pytest.mark.parametrize(
    ("results", "delays"),
    [
        ([False] * 6, [EAGER_SECONDS, 1.0, 2.0, 4.0, PERIOD, PERIOD]),
        ([False, True, True], [EAGER_SECONDS, PERIOD, PERIOD]),
        ([True, False, False], [PERIOD, PERIOD, PERIOD]),
    ],
)
def test_probes_run_quickly_after_a_run_until_they_succeed(results: list[bool], delays: list[float]) -> None:
    assert delays_between_rounds(results, after_run=True) == delays


def test_probes_follow_the_period_without_a_run() -> None:
    assert delays_between_rounds([False, False], after_run=False) == [PERIOD, PERIOD]
