"""The request that runs on a connection: its turn among all requests, and its body, read when the handler asks for it.

Handlers find out who sends a request from its head, then call `admit`, check the sender's rights, and only then
`receive` the body. Until then a connection reads no more than a few kilobytes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from herder.engine.client.wire import User
from herder.engine.front import limits
from herder.engine.front.flow import Holder, Limiter, holder_of, is_exempt
from herder.engine.front.parsing import BodyBuffer, Parsed, too_large
from herder.engine.meta.errors import StatusError

if TYPE_CHECKING:
    from herder.engine.front.connection import Connection, Front

NEVER = float("inf")


class Intake:
    """One per connection, which serves one request at a time (`client.wire.Incoming`)."""

    def __init__(self, connection: Connection, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        self._owner: Connection | None = connection
        self._front = front
        self._loop = loop
        self.parsed: Parsed | None = None
        self.long_running = False
        self.body_deadline = NEVER
        self.turn_deadline = NEVER
        self._admitted: Holder | None = None
        self._grants: list[tuple[Limiter, Holder, int]] = []

    @property
    def _connection(self) -> Connection:
        if self._owner is None:
            raise ConnectionResetError("the client went away")
        return self._owner

    def close(self) -> None:
        """The connection is closed, or was handed over to an upgraded protocol."""
        self._owner = None

    @property
    def pending(self) -> BodyBuffer | None:
        return self.parsed.pending if self.parsed is not None else None

    @property
    def has_unread_body(self) -> bool:
        """Whether the client is still sending a body that the handler did not want."""
        pending = self.pending
        return pending is not None and not pending.complete

    def end(self) -> None:
        """The request was answered: give back what it took."""
        self._admitted = None
        self.long_running = False
        self.turn_deadline = NEVER
        if self._grants:
            _give_back(self._grants)

    def expire(self) -> None:
        """The body did not arrive in time."""
        if self.pending is not None:
            self.pending.end(StatusError("the body of the request did not arrive in time", code=408, reason="Timeout"))

    async def admit(self, user: User | None, *, long_running: bool) -> None:
        if self._admitted is not None:
            return
        holder = holder_of(user, self._connection.remote)
        if user is not None and holder != self._connection.holder:
            self._connection.identify(holder)
        self._admitted = holder
        if is_exempt(user):
            self.long_running = long_running
            return
        flow = self._front.flow
        limiter = flow.long_running if long_running else flow.in_flight
        if not limiter.try_take(holder):
            await limiter.take(holder)
        self.long_running = long_running
        self._grants.append((limiter, holder, 1))
        if not long_running:
            self.turn_deadline = self._loop.time() + limits.TURN_SECONDS

    def become_long_running(self) -> bool:
        """Count the request as long-running, which gives its turn to others; False if its user has no room for it."""
        self.turn_deadline = NEVER
        flow = self._front.flow
        for position, (limiter, holder, units) in enumerate(self._grants):
            if limiter is flow.in_flight:
                if not flow.long_running.try_take(holder, units):
                    return False
                self._grants[position] = (flow.long_running, holder, units)
                limiter.give_back(holder, units)
        return True

    async def receive(self, limit: int | None) -> bytes:
        parsed = self.parsed
        assert parsed is not None
        if parsed.pending is None:
            if limit is not None and len(parsed.body) > limit:
                raise too_large(limit)
            return parsed.body
        await self._receive(parsed.pending, limit)
        return parsed.pending.result()

    async def _receive(self, pending: BodyBuffer, limit: int | None) -> None:
        most = self._front.body_bytes if limit is None else min(limit, self._front.body_bytes)
        if pending.length is not None and pending.length > most:
            raise too_large(most)
        if not pending.wanted:
            await self._reserve(most if pending.encoding or pending.length is None else pending.length)
            pending.wanted = True
            pending.limit = most
        if pending.complete or pending.error is not None:
            return
        self.body_deadline = self._loop.time() + limits.BODY_SECONDS
        pending.waiter = self._loop.create_future()
        self._connection.expect_body()  # all of it may have been received already
        try:
            await pending.waiter
        finally:
            self.body_deadline = NEVER

    async def _reserve(self, size: int) -> None:
        """Room for a body in the budget of its sender, or of the sender's address."""
        holder = self._admitted or holder_of(None, self._connection.remote)
        flow = self._front.flow
        limiter, size = flow.body_bytes, min(size, flow.limits.body_bytes_per_user)
        if not limiter.try_take(holder, size):
            await limiter.take(holder, size)
        self._grants.append((limiter, holder, size))

    def detach(self) -> Callable[[], None]:
        self.turn_deadline = NEVER
        grants, self._grants = self._grants, []
        return lambda: _give_back(grants)


def _give_back(grants: list[tuple[Limiter, Holder, int]]) -> None:
    while grants:
        limiter, holder, units = grants.pop()
        limiter.give_back(holder, units)
