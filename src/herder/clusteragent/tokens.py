"""The registration tokens that an agent knows: the one it was started with, and the one that replaced it."""

from __future__ import annotations

from collections.abc import Callable


class RegistrationTokens:
    """The replacement is used where there is one. While neither is let in they take turns: either may be the newer."""

    def __init__(self, first: Callable[[], str]) -> None:
        self._first = first
        self._replacement = ""
        self._use_first = True

    def replace(self, token: str) -> None:
        self._replacement, self._use_first = token, not token

    def current(self) -> str:
        return self._first() if self._use_first else self._replacement

    def refused(self) -> None:
        self._use_first = not self._use_first or not self._replacement
