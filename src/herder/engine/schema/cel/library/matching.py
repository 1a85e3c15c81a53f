"""Match positions for find() and findAll(), which return the matched parts.

Whether a pattern matches at all is decided in linear time elsewhere. Positions use Python's backtracking engine, so the
worst case of a pattern is bounded first: n characters and k unbounded repeats cost at most n^(k+1) steps, and nested
repeats are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from herder.engine.schema.cel.errors import EvaluationError

MAX_STEPS = 2_000_000
_SMALL_REPEAT = 8
_TRANSLATIONS = re.compile(r"\\\\|\\z|\\\$|\$|\[(?:\^?\]|)(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]")


def find_matches(text: str, pattern: str) -> Iterator[str]:
    """Yield the non-overlapping matches from left to right; raises ValueError if the pattern is invalid."""
    finder, _ = _finder(pattern)
    if worst_steps(text, pattern) > MAX_STEPS:
        raise EvaluationError("text is too long to find matches of the pattern in")
    return (match.group() for match in finder.finditer(text))


def worst_steps(text: str, pattern: str) -> int:
    """Return the worst-case steps of a backtracking engine; capped just above `MAX_STEPS`."""
    _, repeats = _finder(pattern)
    steps = len(text) + 1
    for _ in range(repeats):
        if steps > MAX_STEPS:
            break
        steps *= len(text) + 1
    return steps


@lru_cache(maxsize=128)
def _finder(pattern: str) -> tuple[re.Pattern[str], int]:
    from herder.engine.schema.re2.syntax import parse

    repeats = _unbounded_repeats(parse(pattern), inside=False)
    try:
        return re.compile(_TRANSLATIONS.sub(_translate, pattern), re.ASCII), repeats
    except re.error:
        raise EvaluationError(f"pattern is not supported for finding matches: {pattern}") from None


def _translate(match: re.Match[str]) -> str:
    """Translate `$` and `\\z` to the end of the text; in Python `$` also matches before a final newline."""
    return r"\Z" if match.group() in ("$", r"\z") else match.group()


def _unbounded_repeats(node: object, *, inside: bool) -> int:
    from herder.engine.schema.re2 import syntax

    match node:
        case syntax.Sequence(parts=parts):
            return sum(_unbounded_repeats(part, inside=inside) for part in parts)
        case syntax.Choice(options=options):
            return sum(_unbounded_repeats(option, inside=inside) for option in options)
        case syntax.Repeat(body=body, most=most):
            unbounded = most is None or most > _SMALL_REPEAT
            if unbounded and inside:
                raise EvaluationError("pattern with repeats inside repeats is not supported for finding matches")
            return _unbounded_repeats(body, inside=inside or unbounded) + unbounded
    return 0
