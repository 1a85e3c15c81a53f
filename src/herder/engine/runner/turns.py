"""How many pods run at once: those that come when all places are taken wait, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    def __init__(self, places: int) -> None:
        self.places = places
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    def next(self) -> asyncio.Future[None]:
        """Done when it is one's turn; who does not want it any more cancels it, who has had it gives it back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._advance()
        return turn

    def at_once(self) -> asyncio.Future[None]:
        """For one that runs already, whoever waits: its place is taken, be it one too many."""
        self._free -= 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn.set_result(None)
        return turn

    def give_back(self) -> None:
        self._free += 1
        self._advance()

    def _advance(self) -> None:
        while self._waiting and self._free > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
