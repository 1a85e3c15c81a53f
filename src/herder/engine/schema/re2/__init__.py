"""Go regular expressions (RE2 syntax) with RE2's guarantee: linear time, regardless of the pattern.

Anyone who may write a CustomResourceDefinition controls patterns, and a backtracking engine would let them hang the
server with `(a+)+$`. Patterns are parsed by Go's rules (with Go's error messages) and run on a lazily built DFA. Only
patterns with a provably small worst case use Python's `re`.
"""

from __future__ import annotations

from functools import lru_cache

from herder.engine.schema.re2.automaton import Automaton
from herder.engine.schema.re2.backtrack import SAFE_TEXT, safe_equivalent
from herder.engine.schema.re2.syntax import PatternError, parse

__all__ = ["Pattern", "PatternError", "compile"]

# The same few strings (types and reasons of conditions, API groups, versions) are matched repeatedly.
_MAX_CACHED_LENGTH = 64
_MAX_CACHED = 256
_MAX_KEPT_PLACES = 5_000
"""A larger automaton is rebuilt for each text: thousands of such patterns would fill the memory."""


class Pattern:
    """A compiled pattern. It only reports whether a text contains a match; groups are not supported."""

    __slots__ = ("_answers", "_automaton", "_fast", "_tree", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._tree = parse(pattern)
        self._fast = safe_equivalent(self._tree)
        self._automaton: Automaton | None = None
        self._answers: dict[str, bool] = {}

    def search(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in the text, as in Go."""
        result = self.search_cheaply(text)
        if result is None:
            result = self._cache(text, self._search(text))
        return result

    def search_cheaply(self, text: str) -> bool | None:
        """Return the result if it is nearly free; else None, and `search` spends units of the current work meter."""
        result = self._answers.get(text)
        if result is None and self._fast is not None and len(text) <= SAFE_TEXT:
            result = self._cache(text, self._fast.search(text) is not None)
        return result

    def _cache(self, text: str, result: bool) -> bool:
        if len(text) <= _MAX_CACHED_LENGTH:
            if len(self._answers) >= _MAX_CACHED:
                self._answers.clear()
            self._answers[text] = result
        return result

    def _search(self, text: str) -> bool:
        automaton = self._automaton or Automaton(self._tree)
        if automaton.size <= _MAX_KEPT_PLACES:
            self._automaton = automaton
        return automaton.search(text)


@lru_cache(maxsize=2048)
def compile(pattern: str) -> Pattern:
    """Compile a pattern; raises PatternError with Go's message."""
    return Pattern(pattern)
