"""Go's regular expressions (RE2 syntax) with RE2's promise: time linear in the text, whatever the pattern.

Patterns come from whoever may write a CustomResourceDefinition, so handing them to a backtracking engine would hand
out a way to hang the server: `(a+)+$` is fine for the real one. Patterns are parsed here by Go's rules (so what Go
refuses is refused, with Go's words) and run on a lazily built DFA; only those whose worst case is provably small go to
Python's own `re`.
"""

from __future__ import annotations

from functools import lru_cache

from herder.engine.schema.re2.automaton import Automaton
from herder.engine.schema.re2.backtrack import SAFE_TEXT, safe_equivalent
from herder.engine.schema.re2.syntax import PatternError, parse

__all__ = ["Pattern", "PatternError", "compile"]

# The same few words (types and reasons of conditions, API groups, versions) are asked about over and over.
_SHORT = 64
_MOST_ANSWERS = 256
_KEPT_PLACES = 5_000
"""A larger automaton is built for each text: thousands of such patterns would fill the memory."""


class Pattern:
    """A compiled pattern. It only answers whether the text holds a match: nothing here needs groups."""

    __slots__ = ("_answers", "_automaton", "_fast", "_tree", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._tree = parse(pattern)
        self._fast = safe_equivalent(self._tree)
        self._automaton: Automaton | None = None
        self._answers: dict[str, bool] = {}

    def search(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text (anchors are the pattern's business, as in Go)."""
        answer = self.search_cheaply(text)
        if answer is None:
            answer = self._keep(text, self._search(text))
        return answer

    def search_cheaply(self, text: str) -> bool | None:
        """The answer, if it costs next to nothing; else None, and `search` spends units of the computation's meter."""
        answer = self._answers.get(text)
        if answer is None and self._fast is not None and len(text) <= SAFE_TEXT:
            answer = self._keep(text, self._fast.search(text) is not None)
        return answer

    def _keep(self, text: str, answer: bool) -> bool:
        if len(text) <= _SHORT:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[text] = answer
        return answer

    def _search(self, text: str) -> bool:
        automaton = self._automaton or Automaton(self._tree)
        if automaton.size <= _KEPT_PLACES:
            self._automaton = automaton
        return automaton.search(text)


@lru_cache(maxsize=2048)
def compile(pattern: str) -> Pattern:
    """The compiled pattern; PatternError (with Go's message) where Go would not take it."""
    return Pattern(pattern)
