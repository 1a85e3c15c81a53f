"""Snapshot schedules, as k3s and RKE2 parse them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from herder.api.rke.cron import next_time, validate_schedule


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


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("0 */6 * * *", "2026-11-18 18:00"),
        ("*/5 * * * *", "2026-11-18 15:35"),
        ("34 15 * * *", "2026-11-19 15:34"),  # this minute has begun
        ("@daily", "2026-11-19 00:00"),
        ("@monthly", "2026-12-01 00:00"),
        ("15 3 1 * mon", "2026-11-23 03:15"),  # either day is enough
        ("15 3 1 * *", "2026-12-01 03:15"),
        ("0 0 29 2 ?", "2028-02-29 00:00"),
        ("30 10-12 * jan mon-fri", "2027-01-01 10:30"),
        ("5/20 * * * *", "2026-11-18 15:45"),
        ("CRON_TZ=UTC 0 16 * * *", "2026-11-18 16:00"),
    ],
)
def test_next_time(schedule: str, expected: str) -> None:
    now = datetime(2026, 11, 18, 15, 34, 20, tzinfo=UTC)
    assert next_time(schedule, now) == datetime.fromisoformat(f"{expected}+00:00")
    assert next_time(schedule, now.astimezone(timezone(timedelta(hours=5)))) == next_time(schedule, now)


def test_intervals_are_a_minute_or_more() -> None:
    now = datetime(2026, 11, 18, tzinfo=UTC)
    assert next_time("@every 1h30m", now) == now + timedelta(minutes=90)
    assert next_time("@every 1ns", now) == now + timedelta(minutes=1)


def test_a_date_that_does_not_exist_has_no_time() -> None:
    assert next_time("0 0 30 2 *", datetime(2026, 11, 18, tzinfo=UTC)) is None
