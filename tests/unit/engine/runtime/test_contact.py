"""Since when a manager knows its objects: an outage of the manager or of its API server ends what was known before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from herder.engine.runtime.contact import EVER, OUTAGE, Contact

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta) -> datetime:
        self.now += by
        return self.now


def test_a_manager_has_contact_since_its_start() -> None:
    contact = Contact(Clock())
    assert contact.since() == EVER
    contact.begin()
    assert contact.since() == START


def test_a_short_interruption_does_not_count() -> None:
    clock = Clock()
    contact = Contact(clock)
    contact.begin()
    for _ in range(3):  # also if there are many
        contact.report("connection reset")
        clock.advance(OUTAGE / 2)
        assert contact.since() == START
        contact.report("")
        clock.advance(OUTAGE)
    assert contact.since() == START


def test_contact_begins_again_when_an_outage_ends() -> None:
    clock = Clock()
    contact = Contact(clock)
    contact.begin()
    for failure in ("connection refused", "no route to host"):
        contact.report(failure)
        assert clock.advance(OUTAGE) == contact.since()
    ended = clock.now
    contact.report("")
    clock.advance(OUTAGE)
    assert contact.since() == ended
