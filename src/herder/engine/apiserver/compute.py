"""Executors for request processing: cheap work runs on the event loop, expensive work in a separate thread.

Decoding, validating or merging a large document on the event loop would block every other client. The thread runs one
function at a time and serves users round-robin. It therefore takes at most half of the interpreter time, and a large
request waits for at most one function of every other user.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from herder.engine.apiserver.request import yaml_body
from herder.engine.memory import return_freed_memory
from herder.engine.meta.errors import TooManyRequests
from herder.engine.meta.work import metered

T = TypeVar("T")

LARGE_BYTES = 64 << 10
"""A larger body is large. Nearly all objects of a cluster are smaller; CRDs and bundles are larger."""
LARGE_ELEMENTS, LARGE_APPLIED = 3_000, 1_500
"""A shorter body with more elements than this is large too: the cost grows with the number of elements, and
server-side apply costs more per element."""
SMALLEST_LARGE_BYTES = 4 << 10
"""A smaller body is never large."""
LOOP_UNITS = 20_000
"""Cost limit for CEL rules and patterns on the event loop, about ten milliseconds."""
THREAD_UNITS = 5_000_000
"""Cost limit for CEL rules and patterns in the thread, a few seconds."""
MAX_LARGE_REQUESTS = 4
"""Number of large requests processed at the same time, each of a different user."""
MAX_WAITING, MAX_WAITING_PER_USER = 64, 16
TRIM_SECONDS = 2.0
"""Delay after a computation before freed memory is returned to the operating system, once for all computations in
that time."""


def is_large(body: bytes, *, applied: bool = False) -> bool:
    """Whether a request with this body is processed in the thread."""
    size = len(body)
    if size > LARGE_BYTES:
        return True
    if size < SMALLEST_LARGE_BYTES:
        return False
    return body.count(b",") + body.count(b":") > (LARGE_APPLIED if applied else LARGE_ELEMENTS)


class ComputeExecutor(Protocol):
    """Runs expensive functions of requests without blocking the event loop."""

    def large_request(self, user: str) -> AbstractAsyncContextManager[None]:
        """Limit the number of large requests in memory. Entered before the body is decoded."""
        ...

    async def run(self, user: str, function: Callable[[], T]) -> T:
        """Run a pure function and return its result."""
        ...

    async def convert_yaml(self, user: str, body: bytes) -> bytes:
        """Convert a YAML document to JSON."""
        ...


class InlineExecutor:
    """Runs everything immediately on the calling thread, for deterministic simulations."""

    def large_request(self, user: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def run(self, user: str, function: Callable[[], T]) -> T:
        return _metered(function)

    async def convert_yaml(self, user: str, body: bytes) -> bytes:
        return yaml_body.parse_output(yaml_body.convert_document(body))


class ThreadExecutor:
    """Runs functions in one thread, and converts YAML in one subprocess at a time."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._thread_slots = FairSemaphore()
        self._process_slots = FairSemaphore()
        self._requests = FairSemaphore(MAX_LARGE_REQUESTS)
        self._trim: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def large_request(self, user: str) -> AsyncIterator[None]:
        """Admit one large request per user at a time; bodies of waiting requests stay undecoded.

        A decoded document takes about ten times the memory of its body, until the response is sent.
        """
        await self._requests.acquire(user)
        try:
            yield
        finally:
            self._requests.release(user)

    async def run(self, user: str, function: Callable[[], T]) -> T:
        await self._thread_slots.acquire(user)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="herder-compute")
        future = asyncio.get_running_loop().run_in_executor(self._executor, _metered, function)
        # A running thread cannot be cancelled: the next function starts when this one has returned, even if its client
        # has disconnected.
        future.add_done_callback(partial(self._finished, user))
        try:
            return await asyncio.shield(future)
        finally:
            # The exception refers to this frame and the future to the exception. Without breaking the cycle, a rejected
            # request and its body would stay in memory until the garbage collector runs.
            del future

    async def convert_yaml(self, user: str, body: bytes) -> bytes:
        await self._process_slots.acquire(user)
        try:
            return await yaml_body.convert(body)
        finally:
            self._process_slots.release(user)

    def _finished(self, user: str, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            future.exception()  # mark it as retrieved: a disconnected client does not await it
        self._thread_slots.release(user)
        if self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(TRIM_SECONDS, self._return_memory)

    def _return_memory(self) -> None:
        self._trim = None
        asyncio.get_running_loop().run_in_executor(None, return_freed_memory)


_EXECUTORS: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadExecutor] = WeakKeyDictionary()


def shared_executor() -> ThreadExecutor:
    """Return the executor of the running event loop. Servers on the same loop share its thread."""
    return _EXECUTORS.setdefault(asyncio.get_running_loop(), ThreadExecutor())


class FairSemaphore:
    """A semaphore that serves users round-robin, so that many requests of one user do not delay the first of another.

    A user holds at most one unit at a time.
    """

    def __init__(self, units: int = 1) -> None:
        self._free = units
        self._holding: set[str] = set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, user: str) -> None:
        if self._free and user not in self._holding:
            self._grant(user)
            return
        queue = self._waiting.setdefault(user, deque())
        # A user's first request always queues; otherwise a few users with many requests could lock everybody else out.
        if queue and (len(queue) >= MAX_WAITING_PER_USER or sum(map(len, self._waiting.values())) >= MAX_WAITING):
            raise _too_many_requests()
        grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(grant)
        try:
            await grant
        except asyncio.CancelledError:
            if grant.done() and not grant.cancelled():
                self.release(user)  # the unit was granted to a client that has disconnected
            raise

    def _grant(self, user: str) -> None:
        self._free -= 1
        self._holding.add(user)

    def release(self, user: str) -> None:
        self._free += 1
        self._holding.discard(user)
        if user in self._waiting:
            self._waiting[user] = self._waiting.pop(user)  # to the end of the round-robin order
        for waiting_user in list(self._waiting):
            if not self._free:
                return
            if waiting_user not in self._holding:
                self._grant_next(waiting_user)

    def _grant_next(self, user: str) -> None:
        """Grant a unit to the first request of the user that is still waiting."""
        queue = self._waiting.pop(user)
        while queue and queue[0].done():
            queue.popleft()
        if not queue:
            return
        grant = queue.popleft()
        if queue:
            self._waiting[user] = queue
        self._grant(user)
        grant.set_result(None)


def _metered(function: Callable[[], T]) -> T:
    with metered(THREAD_UNITS, large=True):
        return function()


def _too_many_requests() -> TooManyRequests:
    error = TooManyRequests("too many large requests are being processed; try again later")
    error.headers = {"retry-after": "1"}
    return error
