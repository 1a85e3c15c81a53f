"""Times from untrusted sources."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from herder.api.times import parse_time


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T04:04:05+01:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05", None),
        ("2026-01-02", None),
        ("soon", None),
        ("9999-12-31T23:59:59Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("", None),
        (None, None),
    ],
)
def test_only_times_with_a_zone_are_parsed(text: str | None, expected: datetime | None) -> None:
    assert parse_time(text) == expected
