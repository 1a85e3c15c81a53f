"""Cron schedules: five fields, or a descriptor such as @daily."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from herder.api.numbers import parse_int64
from herder.api.rke.durations import whole_seconds

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
_EVERY = re.compile(r"@every\s+([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ANY = ("*", "?")
_MAX_DAYS = 5 * 366  # a schedule that has no time in five years, such as 30 February, has none
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    ("day of the week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)


def validate_schedule(schedule: str) -> str:
    """Return what is wrong with a schedule; "" if it is valid."""
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


# --- times ------------------------------------------------------------------------------------------------------------


def has_zone(schedule: str) -> bool:
    return _ZONE.match(schedule) is not None


def next_time(schedule: str, after: datetime) -> datetime | None:
    """The first time of a valid schedule after this one, in UTC; None if it has none. A time zone is ignored."""
    rest = schedule[found.end() :] if (found := _ZONE.match(schedule)) else schedule
    after = after.astimezone(UTC)
    if rest.startswith("@every"):
        return after + timedelta(seconds=max(whole_seconds(rest.removeprefix("@every")), 60))
    texts = _DESCRIPTORS.get(rest, rest).split()
    minutes, hours, days, months, weekdays = (
        _values(text, lowest, highest, symbols)
        for text, (_, lowest, highest, symbols) in zip(texts, _FIELDS, strict=True)
    )
    # As in other implementations: if both fields of the day are restricted, either is enough.
    either = not any(text.startswith(_ANY) for text in (texts[2], texts[4]))
    start = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    for number in range(_MAX_DAYS):
        day = start.date() + timedelta(days=number)
        matches = (day.day in days, day.isoweekday() % 7 in weekdays)
        if day.month not in months or not (any(matches) if either else all(matches)):
            continue
        for hour in sorted(hours):
            for minute in sorted(minutes):
                found_time = datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
                if found_time >= start:
                    return found_time
    return None


def _values(text: str, lowest: int, highest: int, symbols: dict[str, int]) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        range_, slash, step = part.partition("/")
        first, dash, last = ("", "-", "") if range_ in _ANY else range_.partition("-")
        begin = _number(first, symbols) if first else lowest
        end = _number(last, symbols) if last else highest if (dash or slash) else begin
        values |= {*range(begin or 0, (end or 0) + 1, parse_int64(step, 1) if slash else 1)}
    return frozenset(values)
