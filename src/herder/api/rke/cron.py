"""Validate cron schedules: five fields, or a descriptor such as @daily."""

from __future__ import annotations

import re

from herder.api.numbers import parse_int64

_ZONE = re.compile(r"(CRON_)?TZ=\S+\s+")
_DESCRIPTORS = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
_EVERY = re.compile(r"@every\s+([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
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
    if range_ in {"*", "?"}:
        return True
    ends = [_number(each, symbols) for each in range_.split("-")]
    known = [each for each in ends if each is not None]
    return len(known) == len(ends) <= 2 and lowest <= known[0] <= known[-1] <= highest


def _number(text: str, symbols: dict[str, int]) -> int | None:
    return parse_int64(text, -1) if text.isdecimal() else symbols.get(text.lower())
