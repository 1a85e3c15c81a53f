"""What goes on in a cluster by the right to use it, such as a watch or a shell: it ends when the user loses that right.

Kubernetes decides over a request when it begins. Rights to use a cluster come from bindings, groups and roles of any
origin, so none of these is followed: the question that was asked at the beginning is asked again now and then, once for
each user and cluster.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from herder.engine.client.wire import User
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError

log = get_logger(__name__)

CHECK_SECONDS = 10.0

MayUse = Callable[[User, str], Awaitable[bool]]
"""Whether a user may `get` a managed cluster."""

End = Callable[[], object]
Key = tuple[str, tuple[str, ...], str]
"""Name and groups of a user, and the cluster."""


@dataclass(eq=False, frozen=True, slots=True)
class _Running:
    user: User
    end: End


class Members:
    def __init__(self, may_use: MayUse, check_seconds: float = CHECK_SECONDS) -> None:
        self._may_use = may_use
        self._check_seconds = check_seconds
        self._running: defaultdict[Key, set[_Running]] = defaultdict(set)
        self._checking: asyncio.Task[None] | None = None

    def bind(self, user: User, cluster: str, end: End) -> Callable[[], None]:
        """`end` is called once when the user may not use the cluster any more. What comes back is to be called at any
        other end."""
        key, running = (user.name, tuple(user.groups), cluster), _Running(user, end)
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

    async def _look_at(self, key: Key) -> None:
        name, _, cluster = key
        user = next((each.user for each in self._running.get(key, ())), None)
        if user is None or await self._still_may(user, cluster):
            return
        log.info("ended with the right to use the cluster", user=name, cluster=cluster)
        for running in self._running.pop(key, ()):
            running.end()

    async def _still_may(self, user: User, cluster: str) -> bool:
        """Where nobody can tell, nothing ends: an API server that restarts takes no rights away."""
        try:
            return await self._may_use(user, cluster)
        except (StatusError, OSError, TimeoutError) as error:
            log.info("cannot tell who may use a cluster", user=user.name, cluster=cluster, error=str(error))
            return True

    def _forget(self, key: Key, running: _Running) -> None:
        self._running.get(key, set()).discard(running)
        if not self._running.get(key, True):
            del self._running[key]
