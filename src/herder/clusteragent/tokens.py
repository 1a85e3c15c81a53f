"""Registration tokens of an agent: the initial one, and the rotated one."""

from __future__ import annotations

from collections.abc import Callable


class RegistrationTokens:
    """Uses the rotated token if there is one. If it is refused, both are tried in turn: either may be newer."""

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
