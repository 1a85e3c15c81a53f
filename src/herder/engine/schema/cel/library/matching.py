"""Where in a text a pattern matches: for find() and findAll(), which return the parts matched.

Whether a pattern matches at all is answered in linear time elsewhere; for places Python's own engine is used, which
backtracks. So a pattern's worst case is bounded first: n characters and k unbounded repeats cost at most n^(k+1)
steps, and repeats within repeats are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from herder.engine.schema.cel.errors import EvaluationError

MOST_STEPS = 2_000_000
_SMALL_REPEAT = 8
_TRANSLATIONS = re.compile(r"\\\\|\\z|\\\$|\$|\[(?:\^?\]|)(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]")


def find_matches(text: str, pattern: str) -> Iterator[str]:
    """The non-overlapping matches from left to right; ValueError when the pattern is none."""
    finder, _ = _finder(pattern)
    if worst_steps(text, pattern) > MOST_STEPS:
        raise EvaluationError("text is too long to find matches of the pattern in")
    return (match.group() for match in finder.finditer(text))


def worst_steps(text: str, pattern: str) -> int:
    """Steps that a backtracking engine needs at worst; more than `MOST_STEPS` stands for all larger numbers."""
    _, repeats = _finder(pattern)
    steps = len(text) + 1
    for _ in range(repeats):
        if steps > MOST_STEPS:
            break
        steps *= len(text) + 1
    return steps


@lru_cache(maxsize=128)
def _finder(pattern: str) -> tuple[re.Pattern[str], int]:
    from herder.engine.schema.re2.syntax import parse

    repeats = _unbounded_repeats(parse(pattern), inside=False)
    try:
        return re.compile(_TRANSLATIONS.sub(_translated, pattern), re.ASCII), repeats
    except re.error:
        raise EvaluationError(f"pattern is not supported for finding matches: {pattern}") from None


def _translated(match: re.Match[str]) -> str:
    """`$` and `\\z` mean the very end of the text; only Python sees an end before a last line break, too."""
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
