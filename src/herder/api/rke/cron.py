"""Schedules as cron's users write them: five fields or a word such as @daily."""

from __future__ import annotations

import re

from herder.api.numbers import integer

_ZONE = re.compile(r"(CRON_)?TZ=\S+\s+")
_WORDS = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
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


def problem_of(schedule: str) -> str:
    """What is wrong with it; "" where nothing is."""
    rest = schedule[found.end() :] if (found := _ZONE.match(schedule)) else schedule
    if rest in _WORDS or _EVERY.fullmatch(rest):
        return ""
    if rest.startswith("@"):
        return f"{rest.split()[0]} is none of {', '.join(sorted(_WORDS))} and @every 6h"
    fields = rest.split()
    if len(fields) != len(_FIELDS):
        return f"has {len(fields)} fields and needs {len(_FIELDS)}: minute, hour, day of the month, month, weekday"
    for text, (name, lowest, highest, words) in zip(fields, _FIELDS, strict=True):
        for part in text.split(","):
            if not _is_part(part, lowest, highest, words):
                return f'"{part}" is no {name}, which goes from {lowest} to {highest}'
    return ""


def _is_part(part: str, lowest: int, highest: int, words: dict[str, int]) -> bool:
    """`*`, a number or a word, from one to another, and any of these in steps."""
    span, slash, step = part.partition("/")
    if slash and not (step.isdecimal() and integer(step) > 0):
        return False
    if span in {"*", "?"}:
        return True
    ends = [_number(each, words) for each in span.split("-")]
    known = [each for each in ends if each is not None]
    return len(known) == len(ends) <= 2 and lowest <= known[0] <= known[-1] <= highest


def _number(text: str, words: dict[str, int]) -> int | None:
    return integer(text, -1) if text.isdecimal() else words.get(text.lower())
