"""Timestamps and durations in Go and RFC 3339 notation, with nanosecond precision."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.values import INT_MAX, INT_MIN, Duration, Timestamp

_SECOND: Final = 1_000_000_000
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_SPAN = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?([Zz]|[+-]\d\d:\d\d)\Z",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_LENGTH: Final = 1000
MIN_SECONDS: Final = -62135596800
MAX_SECONDS: Final = 253402300799


def parse_duration(text: str) -> Duration:
    """Parse a duration as Go's time.ParseDuration does (`1h30m`, `-1.5s`, `0`); raises ValueError."""
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return Duration(0)
    if not body or len(body) > _MAX_LENGTH:
        raise ValueError(f"invalid duration {text!r}")
    total = 0
    position = 0
    while position < len(body):
        match = _SPAN.match(body, position)
        if match is None or not (match[1] or match[2]):
            raise ValueError(f"invalid duration {text!r}")
        unit = _UNITS[match[3]]
        total += int(match[1] or 0) * unit
        if match[2]:
            total += int(match[2]) * unit // 10 ** len(match[2])
        position = match.end()
    total = -total if text[0] == "-" else total
    if not INT_MIN <= total <= INT_MAX:
        raise ValueError(f"invalid duration {text!r}")
    return Duration(total)


_SCHEMA_SPAN = re.compile(r"([0-9]+)\s*([A-Za-zµ]+)")
_SCHEMA_UNITS: Final = {
    **dict.fromkeys(["ns", "nano", "nanosecond"], 1),
    **dict.fromkeys(["us", "µs", "micro", "microsecond"], 1_000),
    **dict.fromkeys(["ms", "milli", "millisecond"], 1_000_000),
    **dict.fromkeys(["s", "sec", "second"], _SECOND),
    **dict.fromkeys(["m", "min", "minute"], 60 * _SECOND),
    **dict.fromkeys(["h", "hr", "hour"], 3600 * _SECOND),
    **dict.fromkeys(["d", "day"], 86400 * _SECOND),
    **dict.fromkeys(["w", "wk", "week"], 7 * 86400 * _SECOND),
}


def parse_schema_duration(text: str) -> Duration:
    """Parse `format: duration`: Go's notation, or words like `2 days`; raises ValueError."""
    try:
        return parse_duration(text)
    except ValueError:
        pass
    total = 0
    for number, unit in _SCHEMA_SPAN.findall(text[:_MAX_LENGTH]):
        factor = _SCHEMA_UNITS.get(unit.lower()) or _SCHEMA_UNITS.get(unit.lower().removesuffix("s"))
        if factor is None:
            raise ValueError(f"invalid duration {text!r}")
        total += int(number) * factor
    if not 0 < total <= INT_MAX:
        raise ValueError(f"invalid duration {text!r}")
    return Duration(total)


def parse_timestamp(text: str) -> Timestamp:
    """Parse an RFC 3339 timestamp; raises ValueError."""
    match = _MOMENT.match(text)
    if match is None:
        raise ValueError(f"invalid timestamp {text!r}")
    year, month, day, hour, minute, second = (int(match[index]) for index in range(1, 7))
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    seconds = int((moment - _EPOCH).total_seconds())
    offset = _offset(match[8])
    seconds -= offset
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise ValueError("timestamp overflow")
    fraction = (match[7] or "")[:9].ljust(9, "0")
    return Timestamp(seconds * _SECOND + int(fraction), offset)


def _offset(zone: str) -> int:
    if zone in ("Z", "z"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    if hours > 23 or minutes > 59:
        raise ValueError(f"invalid timestamp offset {zone!r}")
    return (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)


def parse_date(text: str) -> Timestamp:
    """Parse a full date (`format: date`) as midnight UTC."""
    return parse_timestamp(f"{text}T00:00:00Z")


def format_timestamp(moment: Timestamp) -> str:
    seconds, nanos = divmod(moment.ns, _SECOND)
    whole = _EPOCH + timedelta(seconds=seconds + moment.offset)
    fraction = f".{nanos:09d}".rstrip("0").rstrip(".") if nanos else ""
    return f"{whole.year:04d}-{whole:%m-%dT%H:%M:%S}{fraction}{_zone_text(moment.offset)}"


def _zone_text(offset: int) -> str:
    if offset == 0:
        return "Z"
    minutes = abs(offset) // 60
    return f"{'-' if offset < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


def format_duration(span: Duration) -> str:
    """Format in seconds with as many decimals as needed: `5400s`, `0.5s`."""
    from herder.engine.schema.cel.numbers import format_float_plain

    return f"{format_float_plain(span.ns / _SECOND)}s"


def checked_duration(ns: int) -> Duration:
    if not INT_MIN <= ns <= INT_MAX:
        raise EvaluationError("integer overflow")
    return Duration(ns)


def checked_timestamp(ns: int) -> Timestamp:
    if not MIN_SECONDS * _SECOND <= ns < (MAX_SECONDS + 1) * _SECOND:
        raise EvaluationError("timestamp overflow")
    return Timestamp(ns)


def local(moment: Timestamp, zone: str) -> datetime:
    """Return the local date and time in a zone: an IANA name or an offset like `-08:00`."""
    seconds = moment.ns // _SECOND
    utc = _EPOCH + timedelta(seconds=seconds)
    try:
        return utc if zone == "" else utc.astimezone(_zone(zone))
    except OverflowError:
        raise EvaluationError("timestamp overflow") from None


def _zone(name: str) -> tzinfo:
    if ":" not in name:
        return _named_zone(name)
    hours, _, minutes = name.partition(":")
    try:
        hour, minute = int(hours), int(minutes)
        offset = hour * 60 + (-minute if hours.startswith("-") else minute)
        return timezone(timedelta(minutes=offset))
    except ValueError:
        raise EvaluationError(f"invalid timezone: {name}") from None


def _named_zone(name: str) -> tzinfo:
    if name in ("UTC", "Z"):
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise EvaluationError(f"unknown time zone {name}") from None
