"""Snapshot schedules, as k3s and RKE2 parse them."""

from __future__ import annotations

import pytest

from herder.api.rke.cron import validate_schedule


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
