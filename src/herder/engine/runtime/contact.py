"""Contact of a manager with its API server: during an outage, nothing is decided and nothing is reported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

OUTAGE = timedelta(minutes=1)
"""A shorter interruption does not count: load balancers and restarts of API servers end watches all the time."""
EVER = datetime.min.replace(tzinfo=UTC)


class Contact:
    """Since when the objects of one kind are known without an outage."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._since = EVER
        self._lost_at: datetime | None = None

    def begin(self) -> None:
        """The manager starts: it has decided nothing before."""
        self._since = self._clock()

    def report(self, failure: str) -> None:
        """Called with each error of the informer, and with an empty string once it has recovered."""
        if failure:
            self._lost_at = self._lost_at or self._clock()
            return
        self._since = self.since()
        self._lost_at = None

    def since(self) -> datetime:
        """The end of the last outage; the current time during one."""
        now = self._clock()
        return now if self._lost_at is not None and now - self._lost_at >= OUTAGE else self._since
