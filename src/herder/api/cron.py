"""Cron schedules: five fields, or a descriptor such as @daily. Validation, and the next time of a schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from herder.api.go_durations import whole_seconds
from herder.api.numbers import parse_int64

MIN_SNAPSHOT_INTERVAL = 60
"""Seconds between scheduled snapshots of etcd. K3s would take one each second."""

_ZONE = re.compile(r"(CRON_)?TZ=\S+\s+")
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MAX_DAYS = 366 * 8  # between two 29ths of February there can be eight years
_MAX_LENGTH = 1024  # lists of all numbers of all fields fit; the time of a reconcile grows with the length
_EVERY = re.compile(r"@every\s+([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ANY = ("*", "?")
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    ("day of the week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)


def validate_schedule(schedule: str) -> str:
    """Return what is wrong with a schedule; "" if it is valid."""
    if len(schedule) > _MAX_LENGTH:
        return f"has {len(schedule)} characters and may have {_MAX_LENGTH}"
    rest = schedule[found.end() :] if (found := _ZONE.match(schedule)) else schedule
    if rest in _DESCRIPTORS or _EVERY.fullmatch(rest):
        return ""
    if rest.startswith("@"):
        return f"{rest.split()[0]} must be one of {', '.join(sorted(_DESCRIPTORS))} or @every 6h"
    fields = rest.split()
    if len(fields) != len(_FIELDS):
        return f"has {len(fields)} fields and needs {len(_FIELDS)}: minute, hour, day of the month, month, weekday"
    for text, (name, lowest, highest, symbols) in zip(fields, _FIELDS, strict=True):
        for part in text.split(","):
            if not _is_part(part, lowest, highest, symbols):
                return f'"{part}" is not a valid {name}; must be {lowest} to {highest}'
    return ""


def _is_part(part: str, lowest: int, highest: int, symbols: dict[str, int]) -> bool:
    """Accept `*`, a number or name, a range of those, and any of these with a step."""
    range_, slash, step = part.partition("/")
    if slash and not (step.isdecimal() and parse_int64(step) > 0):
        return False
    if range_ in _ANY:
        return True
    ends = [_number(each, symbols) for each in range_.split("-")]
    known = [each for each in ends if each is not None]
    return len(known) == len(ends) <= 2 and lowest <= known[0] <= known[-1] <= highest


def _number(text: str, symbols: dict[str, int]) -> int | None:
    return parse_int64(text, -1) if text.isdecimal() else symbols.get(text.lower())


def has_zone(schedule: str) -> bool:
    return _ZONE.match(schedule) is not None


def interval_seconds(schedule: str) -> int:
    """Seconds of `@every 6h`, at least 1; 0 for another schedule."""
    rest = _ZONE.sub("", schedule, count=1)
    return max(whole_seconds(rest.removeprefix("@every")), 1) if _EVERY.fullmatch(rest) else 0


# --- next time --------------------------------------------------------------------------------------------------------


def next_time(schedule: str, after: datetime) -> datetime | None:
    """Return the first time of a valid schedule after a time; None if there is none, such as on February 30.

    Times are UTC unless the schedule starts with TZ=. A time that a change of the clock skips is left out.
    """
    found = _ZONE.match(schedule)
    zone = _zone(found[0]) if found else UTC
    rest = schedule[found.end() :] if found else schedule
    if _EVERY.fullmatch(rest):
        return after + timedelta(seconds=interval_seconds(rest))
    return next((each for each in _times(_DESCRIPTORS.get(rest, rest), after.astimezone(zone)) if each > after), None)


def _zone(prefix: str) -> tzinfo:
    try:
        return ZoneInfo(prefix.partition("=")[2].strip())
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def _times(fields: str, start: datetime) -> Iterator[datetime]:
    """Yield the times of a schedule from the day of `start` on."""
    texts = fields.split()
    minutes, hours, days, months, weekdays = (
        _numbers(text, lowest, highest, symbols)
        for text, (_, lowest, highest, symbols) in zip(texts, _FIELDS, strict=True)
    )
    # As in cron: if both days are restricted, one of them must match.
    either = not any(text.startswith(_ANY) for text in (texts[2], texts[4]))
    for offset in range(_MAX_DAYS):
        day = start.date() + timedelta(days=offset)
        matches = (day.day in days, day.isoweekday() % 7 in weekdays)
        if day.month in months and (any(matches) if either else all(matches)):
            yield from _on(day, sorted(hours), sorted(minutes), start.tzinfo or UTC)


def _on(day: date, hours: list[int], minutes: list[int], zone: tzinfo) -> Iterator[datetime]:
    for hour in hours:
        for minute in minutes:
            wanted = datetime.combine(day, time(hour, minute), zone)
            if wanted.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == wanted.replace(tzinfo=None):
                yield wanted.astimezone(UTC)


def _numbers(text: str, lowest: int, highest: int, symbols: dict[str, int]) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        range_, slash, step = part.partition("/")
        first, _, last = range_.partition("-")
        if first in _ANY:
            start, end = lowest, highest
        else:
            start = _number(first, symbols) or 0
            end = (_number(last, symbols) or 0) if last else highest if slash else start
        found.update(range(start, end + 1, int(step) if slash else 1))
    return found
