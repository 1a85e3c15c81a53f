"""Streams bound to a right, such as a watch or exec: they end when the user loses the right.

Kubernetes authorizes a request when it starts. Rights come from bindings, groups and roles of any origin, so they are
not watched: the original check is repeated periodically, once per user and right.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from herder.engine.logs import get_logger
from herder.engine.wire import User

log = get_logger(__name__)

CHECK_SECONDS = 10.0

MayUse = Callable[[User, str], Awaitable[bool]]
"""Whether a user may `get` a managed cluster."""

Holds = Callable[[], Awaitable[bool]]
"""Whether a user still has the right."""
End = Callable[[], object]
Key = tuple[str, tuple[str, ...], Hashable]
"""Name and groups of a user, and the right: a cluster name, or a request to the management API."""


@dataclass(eq=False, frozen=True, slots=True)
class _Stream:
    holds: Holds
    end: End


class StreamRights:
    """Open streams by user and right.

    Each user has a loop of checks: many streams of one user do not delay the end of another's.
    """

    def __init__(self, check_seconds: float = CHECK_SECONDS) -> None:
        self._check_seconds = check_seconds
        self._running: defaultdict[str, dict[Key, set[_Stream]]] = defaultdict(dict)
        self._checking: dict[str, asyncio.Task[None]] = {}

    def bind(self, user: User, right: Hashable, holds: Holds, end: End) -> Callable[[], None]:
        """Call `end` once when the user loses the right. Call the returned function when the stream ends otherwise."""
        key, running = (user.name, tuple(user.groups), right), _Stream(holds, end)
        self._running[user.name].setdefault(key, set()).add(running)
        checking = self._checking.get(user.name)
        if checking is None or checking.done():
            self._checking[user.name] = asyncio.get_running_loop().create_task(self._check(user.name))
        return lambda: self._forget(key, running)

    @property
    def users(self) -> list[str]:
        """Users with open streams."""
        return list(self._checking)

    def close(self) -> None:
        for task in list(self._checking.values()):
            task.cancel()

    async def _check(self, user: str) -> None:
        """Run while the user has open streams."""
        while self._running.get(user):
            await asyncio.sleep(self._check_seconds)
            for key in list(self._running.get(user, ())):
                await self._recheck(key)
                await asyncio.sleep(0)  # in-process answers return without yielding to the event loop
        self._running.pop(user, None)
        self._checking.pop(user, None)

    async def _recheck(self, key: Key) -> None:
        name, _, right = key
        streams = self._running.get(name, {})
        holds = next((each.holds for each in streams.get(key, ())), None)
        if holds is None or await self._still_holds(holds, name):
            return
        log.info("stream ended: its user lost the right", user=name, right=str(right))
        for running in streams.pop(key, ()):
            running.end()

    async def _still_holds(self, holds: Holds, name: str) -> bool:
        """If it cannot be determined, keep the stream: a restarting API server revokes nothing.

        No error may end the loop: the user's other streams would not be checked any more.
        """
        try:
            return await holds()
        except Exception as error:
            log.info("cannot check whether a user still has a right", user=name, error=str(error))
            return True

    def _forget(self, key: Key, running: _Stream) -> None:
        streams = self._running.get(key[0], {})
        streams.get(key, set()).discard(running)
        if not streams.get(key, True):
            del streams[key]
