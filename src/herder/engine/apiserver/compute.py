"""Where the server computes for a request: small work on the event loop, large work in a thread of its own.

A turn of the event loop that decodes, validates or merges a large document keeps every other client waiting. The thread
takes one computation at a time, users in turn, so it takes at most half of the process from everybody else, and an
honest large request waits for one computation of each other user at most.
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

from herder.engine.apiserver import yaml_bodies
from herder.engine.memory import return_freed_memory
from herder.engine.meta.errors import TooManyRequests
from herder.engine.meta.work import metered

T = TypeVar("T")

LARGE_BYTES = 64 << 10
"""A document above this is large. Nearly all objects of a cluster are below; definitions and bundles are above."""
LARGE_ELEMENTS, LARGE_APPLIED = 3_000, 1_500
"""A shorter document with so many elements is large too: what they cost is counted by element, and apply costs more."""
SMALLEST_LARGE_BYTES = 4 << 10
"""A document below this is never large."""
LOOP_UNITS = 20_000
"""What rules and patterns may spend on the event loop: some ten milliseconds."""
THREAD_UNITS = 5_000_000
"""What they may spend in the thread: some seconds."""
MOST_LARGE = 4
"""Requests with a large document that are processed at the same time, of different users."""
MOST_WAITING, MOST_WAITING_OF_USER = 64, 16
TRIM_SECONDS = 2.0
"""How long after a computation freed memory goes back to the machine: once for all computations of that time."""


def is_large(body: bytes, *, applied: bool = False) -> bool:
    """Whether to compute with this document in the thread."""
    size = len(body)
    if size > LARGE_BYTES:
        return True
    if size < SMALLEST_LARGE_BYTES:
        return False
    return body.count(b",") + body.count(b":") > (LARGE_APPLIED if applied else LARGE_ELEMENTS)


class Computer(Protocol):
    """Computes beside the event loop."""

    def large_request(self, user: str) -> AbstractAsyncContextManager[None]:
        """Entered by each request with a large document, before it is decoded."""
        ...

    async def run(self, user: str, function: Callable[[], T]) -> T:
        """What the pure function returns."""
        ...

    async def convert_yaml(self, user: str, body: bytes) -> bytes:
        """The document as JSON."""
        ...


class InlineComputer:
    """Computes at once: for a simulation, which is one thread and the same each time."""

    def large_request(self, user: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def run(self, user: str, function: Callable[[], T]) -> T:
        return _metered(function)

    async def convert_yaml(self, user: str, body: bytes) -> bytes:
        return yaml_bodies.converted(yaml_bodies.answer(body))


class ThreadComputer:
    """Computes in one thread, and converts YAML in one process at a time."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._thread_turns = Turns()
        self._process_turns = Turns()
        self._requests = Turns(MOST_LARGE)
        self._trim: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def large_request(self, user: str) -> AsyncIterator[None]:
        """A decoded document takes ten times its size, and stays until the request is answered: so a user has one at a
        time, while the bodies of the others wait."""
        await self._requests.take(user)
        try:
            yield
        finally:
            self._requests.pass_on(user)

    async def run(self, user: str, function: Callable[[], T]) -> T:
        await self._thread_turns.take(user)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="herder-compute")
        computing = asyncio.get_running_loop().run_in_executor(self._executor, _metered, function)
        # A thread cannot be stopped: the next turn begins when this one is over, also if its client has gone.
        computing.add_done_callback(partial(self._finished, user))
        try:
            return await asyncio.shield(computing)
        finally:
            # An exception refers to this frame, and the future to the exception: without this, a refused request and
            # its body would stay in memory until the garbage collector runs.
            del computing

    async def convert_yaml(self, user: str, body: bytes) -> bytes:
        await self._process_turns.take(user)
        try:
            return await yaml_bodies.convert(body)
        finally:
            self._process_turns.pass_on(user)

    def _finished(self, user: str, computing: asyncio.Future[Any]) -> None:
        if not computing.cancelled():
            computing.exception()  # a client that has gone does not look at it
        self._thread_turns.pass_on(user)
        if self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(TRIM_SECONDS, self._return_memory)

    def _return_memory(self) -> None:
        self._trim = None
        asyncio.get_running_loop().run_in_executor(None, return_freed_memory)


_COMPUTERS: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadComputer] = WeakKeyDictionary()


def shared_computer() -> ThreadComputer:
    """The one computer of this event loop: servers that share a loop share the thread."""
    return _COMPUTERS.setdefault(asyncio.get_running_loop(), ThreadComputer())


class Turns:
    """A semaphore that users take in turn: one user's many requests do not delay another user's first.

    A user holds one unit at a time.
    """

    def __init__(self, units: int = 1) -> None:
        self._free = units
        self._holding: set[str] = set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, user: str) -> None:
        if self._free and user not in self._holding:
            self._give(user)
            return
        queue = self._waiting.setdefault(user, deque())
        # The first of a user waits in any case: else a few users with many requests would keep all others out.
        if queue and (len(queue) >= MOST_WAITING_OF_USER or sum(map(len, self._waiting.values())) >= MOST_WAITING):
            raise _busy()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.pass_on(user)  # it was given to a client that has gone
            raise

    def _give(self, user: str) -> None:
        self._free -= 1
        self._holding.add(user)

    def pass_on(self, user: str) -> None:
        self._free += 1
        self._holding.discard(user)
        if user in self._waiting:
            self._waiting[user] = self._waiting.pop(user)  # behind all others
        for waiting in list(self._waiting):
            if not self._free:
                return
            if waiting not in self._holding:
                self._hand_out(waiting)

    def _hand_out(self, user: str) -> None:
        """To the first request of the user that still waits."""
        queue = self._waiting.pop(user)
        while queue and queue[0].done():
            queue.popleft()
        if not queue:
            return
        turn = queue.popleft()
        if queue:
            self._waiting[user] = queue
        self._give(user)
        turn.set_result(None)


def _metered(function: Callable[[], T]) -> T:
    with metered(THREAD_UNITS, large=True):
        return function()


def _busy() -> TooManyRequests:
    error = TooManyRequests("too many large requests are being processed; try again later")
    error.headers = {"retry-after": "1"}
    return error
