"""Flow control: share in-flight requests, long-running requests and body bytes fairly between users.

A user who exceeds a limit waits in a queue of their own. Queues are served round robin, so a user with many requests
delays only their own. A full queue or a wait that is too long gets a 429 response.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from herder.engine.front.limits import QUEUE_SECONDS, RETRY_AFTER, Limits
from herder.engine.meta.errors import TooManyRequests
from herder.engine.wire import User

Holder = tuple[str, str]
"""User name, or the address of an unauthenticated client."""

_EXEMPT_GROUP = "system:masters"


def flow_holder(user: User | None, remote: str) -> Holder:
    return ("", remote) if user is None else (user.name, "")


def is_exempt(user: User | None) -> bool:
    return user is not None and _EXEMPT_GROUP in user.groups


def too_many_requests() -> TooManyRequests:
    message = "too many requests, please try again later"
    return TooManyRequests(
        message, headers={"retry-after": RETRY_AFTER}, details={"retryAfterSeconds": int(RETRY_AFTER)}
    )


@dataclass(slots=True, eq=False)
class _Waiter:
    units: int
    granted: asyncio.Future[None]


class Limiter:
    """Limits units in use in total and per user, with at most `queued` waiting requests per user."""

    def __init__(self, total: int, per_user: int, queued: int = 0) -> None:
        self._total = total
        self._per_user = per_user
        self._queued = queued
        self._used = 0
        self._by_holder: dict[Holder, int] = {}
        self._waiting: OrderedDict[Holder, deque[_Waiter]] = OrderedDict()
        self._full = False  # a waiter needs more than is free; later requests must not overtake it

    def try_acquire(self, holder: Holder, units: int = 1) -> bool:
        held = self._by_holder.get(holder, 0)
        if held + units > self._per_user or self._used + units > self._total or self._full or holder in self._waiting:
            return False
        self._used += units
        self._by_holder[holder] = held + units
        return True

    async def acquire(self, holder: Holder, units: int = 1) -> None:
        """Wait for units. Raises TooManyRequests."""
        if self.try_acquire(holder, units):
            return
        queue = self._waiting.setdefault(holder, deque())
        if len(queue) >= self._queued or units > min(self._per_user, self._total):
            self._drop_empty(holder)
            raise too_many_requests()
        waiter = _Waiter(units, asyncio.get_running_loop().create_future())
        queue.append(waiter)
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                await waiter.granted
        except BaseException as error:
            self._leave(holder, waiter)
            if isinstance(error, TimeoutError):
                raise too_many_requests() from None
            raise

    def release(self, holder: Holder, units: int = 1) -> None:
        self._used -= units
        remaining = self._by_holder[holder] - units
        if remaining:
            self._by_holder[holder] = remaining
        else:
            del self._by_holder[holder]
        if self._waiting:
            self._serve_queues()

    @property
    def used(self) -> int:
        return self._used

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def usage(self) -> Mapping[str, int]:
        largest = max(self._by_holder.values(), default=0)
        return {"total": self._used, "largest_user": largest, "waiting": self.waiting}

    def _grant(self, holder: Holder, units: int) -> None:
        self._used += units
        self._by_holder[holder] = self._by_holder.get(holder, 0) + units

    def _leave(self, holder: Holder, waiter: _Waiter) -> None:
        """Remove a waiter that gave up; units granted at the same moment go to the next one."""
        if waiter.granted.done() and not waiter.granted.cancelled():
            self.release(holder, waiter.units)
            return
        queue = self._waiting.get(holder)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            self._drop_empty(holder)
        self._serve_queues()

    def _drop_empty(self, holder: Holder) -> None:
        if not self._waiting.get(holder, True):
            del self._waiting[holder]

    def _serve_queues(self) -> None:
        """Grant one request per user in turn, until nothing fits."""
        self._full = False
        blocked = 0
        while blocked < len(self._waiting) and not self._full:
            holder, queue = next(iter(self._waiting.items()))
            self._waiting.move_to_end(holder)
            waiter = queue[0]
            if waiter.granted.done():  # cancelled; it is about to remove itself
                queue.popleft()
                self._drop_empty(holder)
            elif self._by_holder.get(holder, 0) + waiter.units > self._per_user:
                blocked += 1
            elif self._used + waiter.units > self._total:
                self._waiting.move_to_end(holder, last=False)  # it stays first
                self._full = True
            else:
                blocked = 0
                queue.popleft()
                self._drop_empty(holder)
                self._grant(holder, waiter.units)
                waiter.granted.set_result(None)


class FlowControl:
    """Limiters of one listener."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.in_flight = Limiter(limits.in_flight, limits.in_flight_per_user, limits.queued_per_user)
        self.long_running = Limiter(limits.long_running, limits.long_running_per_user)
        self.body_bytes = Limiter(limits.body_bytes, limits.body_bytes_per_user, limits.queued_per_user)
