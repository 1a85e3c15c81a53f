"""The correlator counts, combines and limits Events as client-go's EventCorrelator does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from herder.engine.meta.kinds import Kind
from herder.engine.runtime.decision import Event, Ref
from herder.engine.runtime.events import correlator
from herder.engine.runtime.events.correlator import BURST, COMBINED, Correlator, Observation, SourcedEvent

START = datetime(2026, 1, 1, tzinfo=UTC)
MACHINE = Kind("cluster.x-k8s.io", "v1beta2", "Machine", "machines")


def sourced(message: str = "it failed", *, name: str = "m", reason: str = "Failed", uid: str = "1") -> SourcedEvent:
    return SourcedEvent(Event(Ref(MACHINE, name, "default"), uid, reason, message), "machine-controller")


class Recording:
    """A correlator on a clock, with a new name for each Event."""

    def __init__(self) -> None:
        self.correlator = Correlator()
        self.now = START
        self._numbers: Iterator[int] = iter(range(100_000))

    def __call__(self, event: SourcedEvent, seconds: float = 0.0) -> Observation | None:
        self.now += timedelta(seconds=seconds)
        return self.correlator.correlate(event, f"m.{next(self._numbers)}", self.now)

    def many(self, events: list[SourcedEvent], seconds: float = 0.0) -> list[Observation | None]:
        return [self(event, seconds) for event in events]


@dataclass(frozen=True)
class Case:
    """`before`: Events one second apart. `event` follows after `seconds`."""

    before: list[SourcedEvent]
    event: SourcedEvent
    message: str
    count: int
    seconds: float = 1.0


similar = [sourced(f"failure {number}") for number in range(20)]
CASES = {
    "the first of a kind": Case([], sourced(), "it failed", 1),
    "the same again is counted": Case([sourced()] * 2, sourced(), "it failed", 3),
    "the same is counted whenever it comes": Case([sourced()], sourced(), "it failed", 2, 7200.0),
    "another message is another event": Case([sourced()], sourced("other"), "other", 1),
    "another reason is another event": Case([sourced()], sourced(reason="Other"), "it failed", 1),
    "another object is another event": Case([sourced()], sourced(name="n"), "it failed", 1),
    "a successor of the object is another one": Case([sourced()], sourced(uid="2"), "it failed", 1),
    "nine similar ones stay apart": Case(similar[:8], similar[8], "failure 8", 1),
    "the tenth similar one is combined": Case(similar[:9], similar[9], f"{COMBINED}failure 9", 1),
    "the eleventh is counted": Case(similar[:10], similar[10], f"{COMBINED}failure 10", 2),
    "the same message does not combine": Case([similar[0]] * 12, similar[0], "failure 0", 13),
    "combined within ten minutes of the last": Case(similar[:9], similar[9], f"{COMBINED}failure 9", 1, 600.0),
    "apart after ten minutes": Case(similar[:9], similar[9], "failure 9", 1, 601.0),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_correlation(case: Case) -> None:
    record = Recording()
    record.many(case.before, 1.0)
    seen = record(case.event, case.seconds)
    assert seen is not None
    assert (seen.message, seen.count) == (case.message, case.count)


def test_counted_events_keep_their_name_and_first_time() -> None:
    record = Recording()
    first, second = record(sourced()), record(sourced(), 30.0)
    assert first is not None
    assert second is not None
    assert (second.name, second.first) == (first.name, first.first)
    assert second.last == START + timedelta(seconds=30)


def test_a_source_may_record_25_events_about_an_object_and_then_one_in_five_minutes() -> None:
    record = Recording()
    assert all(record.many([sourced()] * BURST))
    assert record(sourced()) is None
    assert record(sourced(), 299.0) is None
    refilled = record(sourced(), 1.0)
    assert refilled is not None
    assert refilled.count == BURST + 3, "suppressed ones are counted"
    assert record(sourced()) is None
    assert record(sourced(name="other")) is not None, "each object has its own limit"


def test_tokens_are_refilled_up_to_the_burst() -> None:
    record = Recording()
    record.many([sourced()] * BURST)
    record.now += timedelta(days=30)
    assert sum(seen is not None for seen in record.many([sourced()] * 40)) == BURST


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlator, "MAX_ENTRIES", 10)
    record = Recording()
    record.many([sourced(name=f"m-{number}") for number in range(50)])
    again, recent = record(sourced(name="m-0")), record(sourced(name="m-49"))
    assert again is not None
    assert again.count == 1, "the oldest is forgotten"
    assert recent is not None
    assert recent.count == 2
