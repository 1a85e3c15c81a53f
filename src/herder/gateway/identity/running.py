"""What goes on by the right of a token, such as a watch or a shell: it ends with the token, with its user, or when the
token's time is up. Nothing is asked for: what ends tokens and users comes by their watches, and time by a timer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from herder.api.identity.tokens import TokenRecord
from herder.engine.logs import get_logger

log = get_logger(__name__)

Look = Callable[[TokenRecord, str], TokenRecord | str]
"""A token as it is now; or why it does not count any more, for that cluster ("" for none)."""


@dataclass(eq=False, slots=True)
class _Running:
    token: TokenRecord
    cluster: str
    end: Callable[[], object] = field(repr=False)
    timer: asyncio.TimerHandle | None = None


class RunningByToken:
    def __init__(self, look: Look, clock: Callable[[], datetime]) -> None:
        self._look = look
        self._clock = clock
        self._of_token: defaultdict[str, set[_Running]] = defaultdict(set)
        self._of_user: defaultdict[str, set[_Running]] = defaultdict(set)

    def __len__(self) -> int:
        return sum(len(running) for running in self._of_token.values())

    def bind(self, token: TokenRecord, cluster: str, end: Callable[[], object]) -> Callable[[], None]:
        """`end` is called once when the token counts no more. What comes back is to be called at any other end."""
        running = _Running(token, cluster, end)
        self._of_token[token.id].add(running)
        self._of_user[token.user].add(running)
        # Not here and now: who binds has only just begun, and the token was good a moment ago.
        asyncio.get_running_loop().call_soon(self._look_at, running)
        return lambda: self._forget(running)

    def token_changed(self, token_id: str) -> None:
        for running in list(self._of_token.get(token_id, ())):
            self._look_at(running)

    def user_changed(self, name: str) -> None:
        for running in list(self._of_user.get(name, ())):
            self._look_at(running)

    def _look_at(self, running: _Running) -> None:
        if running not in self._of_token.get(running.token.id, ()):
            return
        now = self._look(running.token, running.cluster)
        if isinstance(now, TokenRecord):
            running.token = now
            self._wait_for_its_time(running)
            return
        log.info("ended with its token", token=running.token.id, user=running.token.user, why=now)
        self._forget(running)
        running.end()

    def _wait_for_its_time(self, running: _Running) -> None:
        if running.timer is not None:
            running.timer.cancel()
        expires = running.token.expires()
        if expires is not None:
            left = max(0.0, (expires - self._clock()).total_seconds())
            running.timer = asyncio.get_running_loop().call_later(left, self._look_at, running)

    def _forget(self, running: _Running) -> None:
        if running.timer is not None:
            running.timer.cancel()
        for index, key in ((self._of_token, running.token.id), (self._of_user, running.token.user)):
            index[key].discard(running)
            if not index[key]:
                del index[key]
