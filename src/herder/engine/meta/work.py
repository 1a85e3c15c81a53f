"""A meter for computations whose cost a client chooses: regular expressions, CEL rules, large documents.

The code that computes spends units as it goes; the caller sets how many it may spend. One unit is about one microsecond
of CPU. The API server first allows little, on its event loop, and repeats what needs more in a thread of its own: so
the functions it meters must be pure.
"""

from __future__ import annotations

from contextvars import ContextVar

from herder.engine.meta.errors import BadRequest

MOST_UNITS = 20_000_000
"""What a computation may spend where its caller sets no limit."""


class TooMuchWork(BadRequest):
    """The computation reached its limit."""

    def __init__(self, units: int) -> None:
        super().__init__(
            f"the request needs more than {units} units of computation; "
            "simplify the patterns and rules of the schema, or send less data"
        )


class Meter:
    """Units spent so far, and how many may be spent. `large` says that the computation is about a large document."""

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
    """The meter of the running computation; one of its own where the caller set none."""
    return _METER.get() or Meter(MOST_UNITS)


def is_large_computation() -> bool:
    """Whether the running computation is about a large document, whose parts are not worth remembering."""
    meter = _METER.get()
    return meter is not None and meter.large


class metered:  # a class, not a generator: every request of a custom kind enters one
    """Let everything within spend at most `limit` units; TooMuchWork is raised when it needs more."""

    __slots__ = ("_meter", "_token")

    def __init__(self, limit: int, *, large: bool = False) -> None:
        self._meter = Meter(limit, large=large)

    def __enter__(self) -> Meter:
        self._token = _METER.set(self._meter)
        return self._meter

    def __exit__(self, *error: object) -> None:
        _METER.reset(self._token)
