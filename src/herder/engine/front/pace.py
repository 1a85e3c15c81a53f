"""Minimum rate at which clients read responses.

A response keeps state in memory until it is sent. A client that reads a few bytes a minute never stalls, but would keep
that state for hours.
"""

from __future__ import annotations

from herder.engine.front import limits


class Pace:
    """The seconds for which a client may still be waited for.

    Waiting uses them up. Bytes that the client reads, and time in which nothing waits for it, give them back.
    """

    __slots__ = ("_buffered", "_credit", "_since")

    def __init__(self) -> None:
        self._credit = limits.STALL_SECONDS
        self._since = 0.0
        self._buffered = 0

    def paused(self, now: float, buffered: int) -> float:
        """Begin to wait, with so many bytes unread. Return the time at which the client is too slow."""
        self._earn(now - self._since)
        self._since, self._buffered = now, buffered
        return now + self._credit

    def resumed(self, now: float, buffered: int) -> None:
        """The client has read most of the bytes."""
        self._credit = max(0.0, self._credit - (now - self._since))
        self._earn(max(0, self._buffered - buffered) / limits.RESPONSE_BYTES_PER_SECOND)
        self._since = now

    def _earn(self, seconds: float) -> None:
        self._credit = min(limits.STALL_SECONDS, self._credit + seconds)
