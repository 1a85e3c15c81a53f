"""Inject faults between a manager and its API server, from a seed.

A request may be delayed, refused as a conflict, lost, or executed with its response lost; a watch may break; the
manager may crash right before or after any write. Delays alone give different interleavings per seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from random import Random

from herder.engine.meta.errors import MODIFIED, Conflict, ServiceUnavailable
from herder.engine.wire import Request, Response, Transport

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities per request or watch event; `delay` is the maximum delay in seconds."""

    conflict: float = 0.0
    lost_request: float = 0.0
    lost_answer: float = 0.0
    broken_watch: float = 0.0
    crash: float = 0.0
    delay: float = 0.02


NONE = Faults()
ROUGH = Faults(conflict=0.05, lost_request=0.03, lost_answer=0.03, broken_watch=0.02, crash=0.02)


class FaultyTransport:
    """Transport that injects faults."""

    def __init__(
        self,
        inner: Transport,
        *,
        faults: Faults,
        random: Random,
        note: Callable[[str], None],
        crash: Callable[[], None],
    ) -> None:
        self._inner = inner
        self.faults = faults
        self._random = random
        self._note = note
        self._crash = crash
        self.writes = 0  # executed writes
        self.dead = False  # the sending process has crashed

    async def send(self, request: Request) -> Response:
        await self._delay()
        if self.dead:
            await asyncio.get_running_loop().create_future()
        if request.method not in WRITES:
            response = await self._inner.send(request)
            if response.stream is not None:
                response.stream = self._breaking_stream(response.stream, request.path)
            return response
        await self._before(request)
        response = await self._inner.send(request)
        self.writes += 1
        await self._after(request)
        await self._delay()
        return response

    async def close(self) -> None:
        await self._inner.close()

    async def _delay(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self.faults.delay))

    async def _before(self, request: Request) -> None:
        await self._maybe_crash(f"crash before {request.method} {request.path}")
        if self._occurs(self.faults.conflict):
            self._note(f"conflict on {request.method} {request.path}")
            raise Conflict(f"Operation cannot be fulfilled: {MODIFIED}")
        if self._occurs(self.faults.lost_request):
            self._note(f"lost {request.method} {request.path}")
            raise ServiceUnavailable("the connection was lost before the request arrived")

    async def _after(self, request: Request) -> None:
        await self._maybe_crash(f"crash after {request.method} {request.path}")
        if self._occurs(self.faults.lost_answer):
            self._note(f"lost the answer to {request.method} {request.path}")
            raise ServiceUnavailable("the connection was lost before the answer arrived")

    async def _maybe_crash(self, what: str) -> None:
        if self._occurs(self.faults.crash):
            self._note(what)
            self._crash()
            await asyncio.get_running_loop().create_future()  # A crashed process does not continue.

    async def _breaking_stream(self, stream: AsyncIterator[bytes], path: str) -> AsyncIterator[bytes]:
        async for chunk in stream:
            await self._delay()
            if self._occurs(self.faults.broken_watch):
                self._note(f"watch broken {path}")
                raise ServiceUnavailable("the watch was cut")
            yield chunk

    def _occurs(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability
