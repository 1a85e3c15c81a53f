"""Validate CronJob schedules (five fields or a shorthand), with the messages of kube-apiserver's cron parser."""

from __future__ import annotations

import re

_MONTHS = {name: number for number, name in enumerate(
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1)}  # fmt: skip
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_FIELDS: tuple[tuple[int, int, dict[str, int]], ...] = (
    (0, 59, {}), (0, 23, {}), (1, 31, {}), (1, 12, _MONTHS), (0, 6, _DAYS),
)  # fmt: skip
_SHORTHANDS = {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
_NUMBER = re.compile(r"[+-]?[0-9]+\Z")


class ScheduleError(ValueError):
    """The schedule is invalid."""


def check_schedule(schedule: str) -> str:
    """Return the error of a schedule; empty if it is valid."""
    try:
        _check(schedule)
    except ScheduleError as error:
        return str(error)
    return ""


def _check(schedule: str) -> None:
    if schedule.startswith(("TZ=", "CRON_TZ=")):
        zone, _, schedule = schedule.partition(" ")
        if not schedule:
            raise ScheduleError(f"provided bad location {zone}")
    schedule = schedule.strip() if not schedule.startswith("@") else schedule
    if not schedule:
        raise ScheduleError("empty spec string")
    if schedule.startswith("@"):
        _check_shorthand(schedule)
        return
    fields = schedule.split()
    if len(fields) != len(_FIELDS):
        raise ScheduleError(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    for text, bounds in zip(fields, _FIELDS, strict=True):
        for part in text.split(","):
            _check_range(part, *bounds)


def _check_shorthand(schedule: str) -> None:
    if schedule in _SHORTHANDS:
        return
    if schedule.startswith("@every "):
        from herder.engine.apiserver.builtin.leaves import Unreadable, parse_duration

        try:
            parse_duration(schedule.removeprefix("@every "))
        except Unreadable as error:
            raise ScheduleError(f"failed to parse duration {schedule}: {error}") from None
        return
    raise ScheduleError(f"unrecognized descriptor: {schedule}")


def _check_range(text: str, low: int, high: int, names: dict[str, int]) -> None:
    parts = text.split("/")
    ends = parts[0].split("-")
    if ends[0] in {"*", "?"}:
        start, end = low, high
        if len(ends) > 1:
            raise ScheduleError(f"too many hyphens: {text}")
    else:
        start = _number(ends[0], names)
        if len(ends) > 2:
            raise ScheduleError(f"too many hyphens: {text}")
        end = _number(ends[1], names) if len(ends) == 2 else start
    step = 1
    if len(parts) > 2:
        raise ScheduleError(f"too many slashes: {text}")
    if len(parts) == 2:
        step = _number(parts[1], {})
        if len(ends) == 1 and ends[0] not in {"*", "?"}:
            end = high
    if start < low:
        raise ScheduleError(f"beginning of range ({start}) below minimum ({low}): {text}")
    if end > high:
        raise ScheduleError(f"end of range ({end}) above maximum ({high}): {text}")
    if start > end:
        raise ScheduleError(f"beginning of range ({start}) beyond end of range ({end}): {text}")
    if step == 0:
        raise ScheduleError(f"step of range should be a positive number: {text}")


def _number(text: str, names: dict[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not _NUMBER.match(text):
        raise ScheduleError(f'failed to parse int from {text}: strconv.Atoi: parsing "{text}": invalid syntax')
    if int(text) < 0:
        raise ScheduleError(f"negative number ({int(text)}) not allowed: {text}")
    return int(text)
