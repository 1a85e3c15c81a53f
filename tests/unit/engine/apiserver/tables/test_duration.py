"""Durations in kubectl's format."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from herder.engine.apiserver.tables.duration import human_duration, since

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-2, "<invalid>"),
        (-1.5, "0s"),
        (0, "0s"),
        (1.9, "1s"),
        (119, "119s"),
        (2 * _MINUTE, "2m"),
        (5 * _MINUTE + 30, "5m30s"),
        (10 * _MINUTE - 1, "9m59s"),
        (10 * _MINUTE + 59, "10m"),
        (3 * _HOUR - 1, "179m"),
        (3 * _HOUR, "3h"),
        (3 * _HOUR + 5 * _MINUTE, "3h5m"),
        (8 * _HOUR + 59 * _MINUTE, "8h"),
        (2 * _DAY - 1, "47h"),
        (2 * _DAY, "2d"),
        (2 * _DAY + 4 * _HOUR, "2d4h"),
        (8 * _DAY + _HOUR, "8d"),
        (2 * _YEAR - 1, "729d"),
        (2 * _YEAR, "2y"),
        (2 * _YEAR + _DAY, "2y1d"),
        (9 * _YEAR + 3 * _DAY, "9y"),
    ],
)
def test_durations_lose_precision_as_they_grow(seconds: float, expected: str) -> None:
    assert human_duration(seconds) == expected


def test_a_missing_time_is_unknown() -> None:
    assert since(None, datetime(2026, 1, 1, tzinfo=UTC)) == "<unknown>"


def test_times_of_other_zones_are_parsed() -> None:
    assert since("2026-01-01T02:00:00+02:00", datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)) == "7s"


def test_micro_times_are_parsed() -> None:
    assert since("2026-01-01T00:00:00.500000Z", datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)) == "6s"


def test_a_malformed_time_is_invalid() -> None:
    assert since("yesterday", datetime(2026, 1, 1, tzinfo=UTC)) == "<invalid>"
