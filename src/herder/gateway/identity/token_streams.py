"""Streams bound to a token, such as a watch or exec: they end with the token, with its user, or at its expiry.

Nothing is polled: tokens and users are watched, and expiry has a timer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from herder.api.identity.authn.tokens import TokenRecord
from herder.engine.logs import get_logger

log = get_logger(__name__)

TokenLookup = Callable[[TokenRecord, str], TokenRecord | str]
"""The current token; or why it is no longer valid, for that cluster ("" for none)."""


@dataclass(eq=False, slots=True)
class _Stream:
    token: TokenRecord
    cluster: str
    end: Callable[[], object] = field(repr=False)
    timer: asyncio.TimerHandle | None = None


class TokenStreams:
    """Open streams by token and user."""

    def __init__(self, lookup: TokenLookup, clock: Callable[[], datetime]) -> None:
        self._lookup = lookup
        self._clock = clock
        self._of_token: defaultdict[str, set[_Stream]] = defaultdict(set)
        self._of_user: defaultdict[str, set[_Stream]] = defaultdict(set)

    def __len__(self) -> int:
        return sum(len(running) for running in self._of_token.values())

    def bind(self, token: TokenRecord, cluster: str, end: Callable[[], object]) -> Callable[[], None]:
        """Call `end` once when the token becomes invalid. Call the returned function when the stream ends otherwise."""
        running = _Stream(token, cluster, end)
        self._of_token[token.id].add(running)
        self._of_user[token.user].add(running)
        # Deferred: the caller is not ready yet, and the token was valid a moment ago.
        asyncio.get_running_loop().call_soon(self._recheck, running)
        return lambda: self._forget(running)

    def token_changed(self, token_id: str) -> None:
        for running in list(self._of_token.get(token_id, ())):
            self._recheck(running)

    def user_changed(self, name: str) -> None:
        for running in list(self._of_user.get(name, ())):
            self._recheck(running)

    def _recheck(self, running: _Stream) -> None:
        if running not in self._of_token.get(running.token.id, ()):
            return
        now = self._lookup(running.token, running.cluster)
        if isinstance(now, TokenRecord):
            running.token = now
            self._schedule_expiry(running)
            return
        log.info("stream ended with its token", token=running.token.id, user=running.token.user, why=now)
        self._forget(running)
        running.end()

    def _schedule_expiry(self, running: _Stream) -> None:
        if running.timer is not None:
            running.timer.cancel()
        expires = running.token.expires()
        if expires is not None:
            left = max(0.0, (expires - self._clock()).total_seconds())
            running.timer = asyncio.get_running_loop().call_later(left, self._recheck, running)

    def _forget(self, running: _Stream) -> None:
        if running.timer is not None:
            running.timer.cancel()
        for index, key in ((self._of_token, running.token.id), (self._of_user, running.token.user)):
            index[key].discard(running)
            if not index[key]:
                del index[key]
