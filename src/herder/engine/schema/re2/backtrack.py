"""Patterns that are safe for Python's `re`: their worst case is small by construction.

Backtracking costs at most the product of its choices. A pattern is safe if it is anchored at its start, has at most two
loops, all over single characters, and the product of all other choices is small; the caller bounds the length of the
text. Most patterns for names are of this kind, and `re` is several times faster on them.
"""

from __future__ import annotations

import re

from herder.engine.schema.re2 import syntax
from herder.engine.schema.re2.syntax import Assertion, Chars, Choice, Node, Repeat, Sequence

SAFE_TEXT = 256
_MAX_LOOPS = 2
_MAX_CHOICES = 16


def safe_equivalent(tree: Node) -> re.Pattern[str] | None:
    """Return the pattern for `re`, or None if a text could make it slow."""
    first = tree.parts[0] if isinstance(tree, Sequence) and tree.parts else tree
    if not (isinstance(first, Assertion) and first.kind == syntax.BEGIN_TEXT):
        return None
    cost = _Cost()
    if not cost.admits(tree):
        return None
    return re.compile(_to_re(tree), re.DOTALL)


class _Cost:
    def __init__(self) -> None:
        self.loops = 0
        self.ways = 1

    def admits(self, node: Node) -> bool:
        if isinstance(node, Chars):
            return True
        if isinstance(node, Assertion):
            return node.kind in (syntax.BEGIN_TEXT, syntax.END_TEXT)
        if isinstance(node, Sequence):
            return all(self.admits(part) for part in node.parts) and self._cheap()
        if isinstance(node, Choice):
            self.ways *= len(node.options)
            return self._cheap() and all(self.admits(option) for option in node.options) and self._cheap()
        return self._admits_repeat(node)

    def _admits_repeat(self, node: Repeat) -> bool:
        if node.most == 1:
            self.ways *= 2
            return self._cheap() and self.admits(node.body)
        if not isinstance(node.body, Chars):
            return False
        if node.least != node.most:
            self.loops += 1
        return self._cheap()

    def _cheap(self) -> bool:
        return self.loops <= _MAX_LOOPS and self.ways <= _MAX_CHOICES


def _to_re(node: Node) -> str:
    if isinstance(node, Chars):
        return _set_to_re(node)
    if isinstance(node, Assertion):
        return r"\A" if node.kind == syntax.BEGIN_TEXT else r"\Z"
    if isinstance(node, Sequence):
        return "".join(_to_re(part) for part in node.parts)
    if isinstance(node, Choice):
        return "(?:" + "|".join(_to_re(option) for option in node.options) + ")"
    bounds = f"{{{node.least},{'' if node.most is None else node.most}}}"
    return f"(?:{_to_re(node.body)}){bounds}"


def _set_to_re(node: Chars) -> str:
    if not node.ranges:
        return r"(?!)"
    return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in node.ranges) + "]"
