"""Schedules, as the servers of k3s and RKE2 read them."""

from __future__ import annotations

import pytest

from herder.api.rke.cron import problem_of


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
def test_are_known(schedule: str) -> None:
    assert problem_of(schedule) == ""


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("", "has 0 fields and needs 5"),
        ("0 0 * *", "has 4 fields and needs 5"),
        ("0 0 * * * *", "has 6 fields and needs 5"),
        ("60 * * * *", '"60" is no minute, which goes from 0 to 59'),
        ("* 5-2 * * *", '"5-2" is no hour'),
        ("* * 0 * *", '"0" is no day of the month'),
        ("* * * mai *", '"mai" is no month'),
        ("* * * * 7", '"7" is no day of the week'),
        ("*/0 * * * *", '"*/0" is no minute'),
        ("1-2-3 * * * *", '"1-2-3" is no minute'),
        ("1,,2 * * * *", '"" is no minute'),
        ("-1 * * * *", '"-1" is no minute'),
        ("@often", "@often is none of"),
        ("@every day", "@every is none of"),
    ],
)
def test_what_is_wrong_is_told(schedule: str, problem: str) -> None:
    assert problem_of(schedule).startswith(problem)
