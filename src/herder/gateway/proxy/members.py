"""What goes on by a right, such as a watch or a shell: it ends when its user loses that right.

Kubernetes decides over a request when it begins. Rights come from bindings, groups and roles of any origin, so none of
these is followed: the question that was asked at the beginning is asked again now and then, once for each user and
right.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from herder.engine.client.wire import User
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError

log = get_logger(__name__)

CHECK_SECONDS = 10.0

MayUse = Callable[[User, str], Awaitable[bool]]
"""Whether a user may `get` a managed cluster."""

Holds = Callable[[], Awaitable[bool]]
"""Whether a user still has the right."""
End = Callable[[], object]
Key = tuple[str, tuple[str, ...], Hashable]
"""Name and groups of a user, and the right: the name of a cluster, or what is asked of the management API."""


@dataclass(eq=False, frozen=True, slots=True)
class _Running:
    holds: Holds
    end: End


class Members:
    def __init__(self, check_seconds: float = CHECK_SECONDS) -> None:
        self._check_seconds = check_seconds
        self._running: defaultdict[Key, set[_Running]] = defaultdict(set)
        self._checking: asyncio.Task[None] | None = None

    def bind(self, user: User, right: Hashable, holds: Holds, end: End) -> Callable[[], None]:
        """`end` is called once when the user does not have the right any more. What comes back is to be called at any
        other end."""
        key, running = (user.name, tuple(user.groups), right), _Running(holds, end)
        self._running[key].add(running)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check())
        return lambda: self._forget(key, running)

    def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()

    async def _check(self) -> None:
        """For as long as anything goes on."""
        while self._running:
            await asyncio.sleep(self._check_seconds)
            for key in list(self._running):
                await self._look_at(key)
                await asyncio.sleep(0)  # answers of this process come without a turn of the event loop

    async def _look_at(self, key: Key) -> None:
        name, _, right = key
        holds = next((each.holds for each in self._running.get(key, ())), None)
        if holds is None or await self._still_holds(holds, name):
            return
        log.info("ended with the right of its user", user=name, right=str(right))
        for running in self._running.pop(key, ()):
            running.end()

    async def _still_holds(self, holds: Holds, name: str) -> bool:
        """Where nobody can tell, nothing ends: an API server that restarts takes no rights away."""
        try:
            return await holds()
        except (StatusError, OSError, TimeoutError) as error:
            log.info("cannot tell whether a user still has a right", user=name, error=str(error))
            return True

    def _forget(self, key: Key, running: _Running) -> None:
        self._running.get(key, set()).discard(running)
        if not self._running.get(key, True):
            del self._running[key]
