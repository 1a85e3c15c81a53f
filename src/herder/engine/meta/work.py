"""Work meter: bounds computations whose cost a client controls.

Examples are regular expressions, CEL rules and large documents. The computing code spends units, and the caller sets
the limit. One unit is about one microsecond of CPU time. The API server first allows a small limit on its event loop
and repeats expensive computations in a thread, so metered functions must be pure.
"""

from __future__ import annotations

from contextvars import ContextVar

from herder.engine.meta.errors import BadRequest

MAX_UNITS = 20_000_000
"""Limit of a computation whose caller sets none."""


class TooMuchWork(BadRequest):
    """The computation reached its limit."""

    def __init__(self, units: int) -> None:
        super().__init__(
            f"request needs more than {units} units of computation; "
            "simplify the patterns and rules of the schema, or send less data"
        )


class Meter:
    """Units spent and the limit. `large` marks the computation as concerning a large document."""

    __slots__ = ("large", "limit", "spent")

    def __init__(self, limit: int, *, large: bool = False) -> None:
        self.limit = limit
        self.large = large
        self.spent = 0

    @property
    def left(self) -> int:
        return self.limit - self.spent

    def spend(self, units: int) -> None:
        self.spent += units
        if self.spent > self.limit:
            raise TooMuchWork(self.limit)


_METER: ContextVar[Meter | None] = ContextVar("herder_work_meter", default=None)


def current_meter() -> Meter:
    """Return the meter of the current computation, or a new one if the caller set none."""
    return _METER.get() or Meter(MAX_UNITS)


def set_meter() -> Meter | None:
    """The meter of the running computation; None where the caller set none."""
    return _METER.get()


def is_large_computation() -> bool:
    """Return whether the current computation concerns a large document, whose parts are not worth caching."""
    meter = _METER.get()
    return meter is not None and meter.large


class metered:  # a class instead of a generator for speed: every request for a custom resource enters one
    """Context manager that limits the computation within to `limit` units; raises TooMuchWork."""

    __slots__ = ("_meter", "_token")

    def __init__(self, limit: int, *, large: bool = False) -> None:
        self._meter = Meter(limit, large=large)

    def __enter__(self) -> Meter:
        self._token = _METER.set(self._meter)
        return self._meter

    def __exit__(self, *error: object) -> None:
        _METER.reset(self._token)
