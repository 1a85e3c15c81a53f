"""Components of timestamps (in UTC unless a zone is given) and of durations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from herder.engine.schema.cel import times
from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.types import DURATION, INT, STRING, TIMESTAMP
from herder.engine.schema.cel.values import Duration, Timestamp

library = Library()

_PARTS: dict[str, Callable[[datetime], int]] = {
    "getFullYear": lambda date: date.year,
    "getMonth": lambda date: date.month - 1,
    "getDayOfYear": lambda date: date.timetuple().tm_yday - 1,
    "getDayOfMonth": lambda date: date.day - 1,
    "getDate": lambda date: date.day,
    "getDayOfWeek": lambda date: date.isoweekday() % 7,
    "getHours": lambda date: date.hour,
    "getMinutes": lambda date: date.minute,
    "getSeconds": lambda date: date.second,
}
_SPANS = {
    "getHours": 3600 * 1_000_000_000,
    "getMinutes": 60 * 1_000_000_000,
    "getSeconds": 1_000_000_000,
    "getMilliseconds": 1_000_000,
}


def _declare_part(name: str, part: Callable[[datetime], int]) -> None:
    library.method(name, TIMESTAMP, returns=INT)(lambda moment: part(times.local(moment, "")))
    library.method(name, TIMESTAMP, STRING, returns=INT)(lambda moment, zone: part(times.local(moment, zone)))


def _declare_span(name: str, unit: int) -> None:
    """Declare the whole duration in a unit, truncated toward zero."""

    def in_unit(span: Duration) -> int:
        return span.ns // unit if span.ns >= 0 else -(-span.ns // unit)

    library.method(name, DURATION, returns=INT)(in_unit)


for _name, _part in _PARTS.items():
    _declare_part(_name, _part)
for _name, _unit in _SPANS.items():
    _declare_span(_name, _unit)


@library.method("getMilliseconds", TIMESTAMP, returns=INT)
def milliseconds(moment: Timestamp) -> int:
    return moment.ns % 1_000_000_000 // 1_000_000


@library.method("getMilliseconds", TIMESTAMP, STRING, returns=INT)
def milliseconds_in_zone(moment: Timestamp, zone: str) -> int:
    times.local(moment, zone)
    return moment.ns % 1_000_000_000 // 1_000_000
