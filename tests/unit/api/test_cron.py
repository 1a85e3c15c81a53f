"""Snapshot schedules, as k3s and RKE2 parse them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from herder.api.cron import next_time, validate_schedule


@pytest.mark.parametrize(
    "schedule",
    [
        "0 */12 * * *",
        "0,30 1-5 ? jan-MAR mon",
        "*/5 0 1 1 0",
        "10/15 * * * *",
        "@daily",
        "@every 1h30m",
        "TZ=Europe/Berlin 0 3 * * *",
        "CRON_TZ=UTC @hourly",
    ],
)
def test_valid_schedules(schedule: str) -> None:
    assert validate_schedule(schedule) == ""


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("", "has 0 fields and needs 5"),
        ("*," * 400_000 + "* * * * *", "has 800009 characters and may have 1024"),
        ("0 0 * *", "has 4 fields and needs 5"),
        ("0 0 * * * *", "has 6 fields and needs 5"),
        ("60 * * * *", '"60" is not a valid minute; must be 0 to 59'),
        ("* 5-2 * * *", '"5-2" is not a valid hour'),
        ("* * 0 * *", '"0" is not a valid day of the month'),
        ("* * * mai *", '"mai" is not a valid month'),
        ("* * * * 7", '"7" is not a valid day of the week'),
        ("*/0 * * * *", '"*/0" is not a valid minute'),
        ("1-2-3 * * * *", '"1-2-3" is not a valid minute'),
        ("1,,2 * * * *", '"" is not a valid minute'),
        ("-1 * * * *", '"-1" is not a valid minute'),
        ("@often", "@often must be one of"),
        ("@every day", "@every must be one of"),
    ],
)
def test_invalid_schedules_are_described(schedule: str, expected: str) -> None:
    assert validate_schedule(schedule).startswith(expected)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("0 */12 * * *", "2026-01-01T00:00", "2026-01-01T12:00"),
        ("0 */12 * * *", "2026-01-01T12:00", "2026-01-02T00:00"),
        ("*/20 5-6 * * *", "2026-01-01T05:41", "2026-01-01T06:00"),
        ("10/25 * * * *", "2026-01-01T00:11", "2026-01-01T00:35"),
        ("0 0 29 feb *", "2097-01-01T00:00", "2104-02-29T00:00"),
        ("0 0 31 * *", "2026-02-01T00:00", "2026-03-31T00:00"),
        ("30 4 1,15 * fri", "2026-01-02T05:00", "2026-01-09T04:30"),  # either of the two days
        ("30 4 * * fri", "2026-01-02T05:00", "2026-01-09T04:30"),
        ("0 0 */2 * 1", "2026-01-01T00:00", "2026-01-05T00:00"),  # as in cron, a step of * does not restrict
        ("@weekly", "2026-01-01T00:00", "2026-01-04T00:00"),
        ("@hourly", "2026-01-01T23:00", "2026-01-02T00:00"),
        ("@every 1h30m", "2026-01-01T00:01", "2026-01-01T01:31"),
        ("TZ=Europe/Berlin 0 3 * * *", "2026-07-01T00:30", "2026-07-01T01:00"),
        ("TZ=Europe/Berlin 30 2 * * *", "2026-03-28T12:00", "2026-03-30T00:30"),  # skipped by summer time
    ],
)
def test_the_next_time_of_a_schedule(schedule: str, after: str, expected: str) -> None:
    assert validate_schedule(schedule) == ""
    assert next_time(schedule, at(after)) == at(expected)


def test_a_schedule_without_any_time() -> None:
    assert next_time("0 0 30 2 *", at("2026-01-01T00:00")) is None


def test_intervals_are_a_second_or_more() -> None:
    now = at("2026-01-01T00:00")
    assert next_time("@every 1ns", now) == now + timedelta(seconds=1)
