"""Admission and body of the current request: flow control slots, and the body once the handler asks for it.

A handler authenticates the request from its head, calls `admit`, authorizes it, and only then calls `receive`. Until
then the connection reads no more than a few kilobytes of the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from herder.engine.front import limits
from herder.engine.front.flow import Holder, Limiter, flow_holder, is_exempt
from herder.engine.front.request_parser import BodyBuffer, Parsed, too_large
from herder.engine.meta.errors import StatusError
from herder.engine.wire import User

if TYPE_CHECKING:
    from herder.engine.front.connection import Connection, Front

NEVER = float("inf")


class Intake:
    """Implements `engine.wire.Incoming` for a connection, which serves one request at a time."""

    def __init__(self, connection: Connection, front: Front, loop: asyncio.AbstractEventLoop) -> None:
        self._owner: Connection | None = connection
        self._front = front
        self._loop = loop
        self.parsed: Parsed | None = None
        self.long_running = False
        self.body_deadline = NEVER
        self.slot_deadline = NEVER
        self._admitted: Holder | None = None
        self._grants: list[tuple[Limiter, Holder, int]] = []

    @property
    def _connection(self) -> Connection:
        if self._owner is None:
            raise ConnectionResetError("client disconnected")
        return self._owner

    def close(self) -> None:
        """Detach from a connection that was closed or hijacked."""
        self._owner = None

    @property
    def pending(self) -> BodyBuffer | None:
        return self.parsed.pending if self.parsed is not None else None

    @property
    def has_unread_body(self) -> bool:
        """Whether the client is still sending a body that the handler did not request."""
        pending = self.pending
        return pending is not None and not pending.complete

    def end(self) -> None:
        """Release the slots and bytes of the request after its response."""
        self._admitted = None
        self.long_running = False
        self.slot_deadline = NEVER
        if self._grants:
            _release(self._grants)

    def expire(self) -> None:
        """Fail the body because it did not arrive in time."""
        if self.pending is not None:
            self.pending.end(StatusError("request body timed out", code=408, reason="Timeout"))

    async def admit(self, user: User | None, *, long_running: bool) -> None:
        if self._admitted is not None:
            return
        holder = flow_holder(user, self._connection.remote)
        if user is not None and holder != self._connection.holder:
            self._connection.identify(holder)
        self._admitted = holder
        if is_exempt(user):
            self.long_running = long_running
            return
        flow = self._front.flow
        limiter = flow.long_running if long_running else flow.in_flight
        if not limiter.try_acquire(holder):
            await limiter.acquire(holder)
        self.long_running = long_running
        self._grants.append((limiter, holder, 1))
        if not long_running:
            self.slot_deadline = self._loop.time() + limits.SLOT_SECONDS

    def become_long_running(self) -> bool:
        """Count the request as long-running to free its in-flight slot; return False if its user is at the limit."""
        self.slot_deadline = NEVER
        flow = self._front.flow
        for position, (limiter, holder, units) in enumerate(self._grants):
            if limiter is flow.in_flight:
                if not flow.long_running.try_acquire(holder, units):
                    return False
                self._grants[position] = (flow.long_running, holder, units)
                limiter.release(holder, units)
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
        max_bytes = self._front.body_bytes if limit is None else min(limit, self._front.body_bytes)
        if pending.length is not None and pending.length > max_bytes:
            raise too_large(max_bytes)
        if not pending.requested:
            await self._reserve(max_bytes if pending.encoding or pending.length is None else pending.length)
            pending.requested = True
            pending.limit = max_bytes
        if pending.complete or pending.error is not None:
            return
        self.body_deadline = self._loop.time() + limits.BODY_SECONDS
        pending.waiter = self._loop.create_future()
        self._connection.expect_body()  # the whole body may already be buffered
        try:
            await pending.waiter
        finally:
            self.body_deadline = NEVER

    async def _reserve(self, size: int) -> None:
        """Reserve room for a body in the budget of the user or of the client's address."""
        holder = self._admitted or flow_holder(None, self._connection.remote)
        flow = self._front.flow
        limiter, size = flow.body_bytes, min(size, flow.limits.body_bytes_per_user)
        if not limiter.try_acquire(holder, size):
            await limiter.acquire(holder, size)
        self._grants.append((limiter, holder, size))

    def detach(self) -> Callable[[], None]:
        self.slot_deadline = NEVER
        grants, self._grants = self._grants, []
        return lambda: _release(grants)


def _release(grants: list[tuple[Limiter, Holder, int]]) -> None:
    while grants:
        limiter, holder, units = grants.pop()
        limiter.release(holder, units)
