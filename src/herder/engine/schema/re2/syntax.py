"""Parser for Go's regular expression syntax, with Go's errors.

Groups and greediness are not represented in the tree: only whether a text matches is ever needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from herder.engine.schema.re2 import charsets
from herder.engine.schema.re2.charsets import Ranges

_MAX_HEIGHT = 400  # Go allows 1000; tree traversal here is recursive
_MAX_SIZE = 100_000
_MAX_REPEAT = 1000

BEGIN_TEXT, END_TEXT, BEGIN_LINE, END_LINE, WORD_BOUNDARY, NO_WORD_BOUNDARY = range(6)


class PatternError(ValueError):
    """A pattern that Go rejects, with Go's message."""

    def __init__(self, problem: str, part: str) -> None:
        super().__init__(f"error parsing regexp: {problem}: `{part}`")


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges
    height: ClassVar[int] = 1
    size: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Assertion:
    """A zero-width assertion, such as `^` or `\\b`."""

    kind: int
    height: ClassVar[int] = 1
    size: ClassVar[int] = 1


class Sequence:
    """Parts that match one after the other."""

    __slots__ = ("height", "parts", "size")

    def __init__(self, parts: list[Node]) -> None:
        self.parts = parts
        self.height: int = 1 + max((part.height for part in parts), default=0)
        self.size: int = 1 + sum(part.size for part in parts)


class Choice:
    """Alternatives."""

    __slots__ = ("height", "options", "size")

    def __init__(self, options: list[Node]) -> None:
        self.options = options
        self.height: int = 1 + max(option.height for option in options)
        self.size: int = 1 + sum(option.size for option in options)


class Repeat:
    """A repetition of `least` to `most` times."""

    __slots__ = ("body", "height", "least", "most", "size")

    def __init__(self, body: Node, least: int, most: int | None) -> None:
        self.body = body
        self.least = least
        self.most = most  # None: unbounded
        self.height: int = 1 + body.height
        self.size: int = 1 + body.size * max(least, most or 1)


Node = Chars | Assertion | Sequence | Choice | Repeat


@dataclass(frozen=True, slots=True)
class _Flags:
    fold: bool = False
    multi_line: bool = False
    dot_newline: bool = False


@dataclass(slots=True)
class _Group:
    """An open parenthesis (or the whole pattern): finished alternatives, and the parts of the current one."""

    outer_flags: _Flags
    options: list[Node] = field(default_factory=list)
    parts: list[Node] = field(default_factory=list)

    def close(self) -> Node:
        last = self.parts[0] if len(self.parts) == 1 else Sequence(self.parts)
        return Choice([*self.options, last]) if self.options else last


def parse(pattern: str) -> Node:
    return _Parser(pattern).parse()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._flags = _Flags()
        self._groups = [_Group(self._flags)]
        self._last_repeat = -1  # start of the repetition operator directly before this position

    def parse(self) -> Node:
        while self._at < len(self._text):
            start = self._at
            was_repeat = self._element()
            self._last_repeat = start if was_repeat else -1
        if len(self._groups) != 1:
            raise PatternError("missing closing )", self._text)
        tree = self._groups[0].close()
        self._check_limits(tree)
        return tree

    def _element(self) -> bool:
        """Parse one element; return whether it was a repetition operator."""
        char = self._text[self._at]
        if char == "(":
            self._open()
        elif char == ")":
            self._close()
        elif char == "|":
            group = self._groups[-1]
            group.options.append(group.parts[0] if len(group.parts) == 1 else Sequence(group.parts))
            group.parts = []
            self._at += 1
        elif char in "^$.":
            self._at += 1
            self._push(self._simple(char))
        elif char == "[":
            self._push(self._bracketed())
        elif char in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            self._repeat(self._at + 1, least, most)
            return True
        elif char == "{":
            return self._counted()
        elif char == "\\":
            self._escaped()
        else:
            self._at += 1
            self._literal(ord(char))
        return False

    def _push(self, node: Node) -> None:
        self._groups[-1].parts.append(node)

    def _literal(self, code: int) -> None:
        ranges: Ranges = ((code, code),)
        self._push(Chars(charsets.folded(ranges) if self._flags.fold else ranges))

    def _simple(self, char: str) -> Node:
        if char == "^":
            return Assertion(BEGIN_LINE if self._flags.multi_line else BEGIN_TEXT)
        if char == "$":
            return Assertion(END_LINE if self._flags.multi_line else END_TEXT)
        return Chars(((0, charsets.MAX_RUNE),) if self._flags.dot_newline else charsets.negated(((10, 10),)))

    # --- groups and flags

    def _open(self) -> None:
        text, start = self._text, self._at
        if not text.startswith("(?", start):
            self._groups.append(_Group(self._flags))
            self._at += 1
            return
        named = 4 if text.startswith("(?P<", start) else 3 if text.startswith("(?<", start) else 0
        if named and len(text) - start > named:
            self._named_group(start, start + named)
        else:
            self._flag_group(start)

    def _named_group(self, start: int, name_at: int) -> None:
        end = self._text.find(">", start)
        if end < 0:
            raise PatternError("invalid named capture", self._text[start:])
        name = self._text[name_at:end]
        if not name or not all(char == "_" or (char.isascii() and char.isalnum()) for char in name):
            raise PatternError("invalid named capture", self._text[start : end + 1])
        self._groups.append(_Group(self._flags))
        self._at = end + 1

    def _flag_group(self, start: int) -> None:
        settings = {"i": self._flags.fold, "m": self._flags.multi_line, "s": self._flags.dot_newline, "U": False}
        turn_on, seen, at = True, False, start + 2
        while at < len(self._text):
            char = self._text[at]
            at += 1
            if char in settings:
                settings[char] = turn_on
                seen = True
            elif char == "-" and turn_on:
                turn_on, seen = False, False
            elif char in ":)" and (turn_on or seen):
                flags = _Flags(settings["i"], settings["m"], settings["s"])
                if char == ":":
                    self._groups.append(_Group(self._flags))
                self._flags = flags
                self._at = at
                return
            else:
                break
        raise PatternError("invalid or unsupported Perl syntax", self._text[start:at])

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise PatternError("unexpected )", self._text)
        group = self._groups.pop()
        self._flags = group.outer_flags
        node = group.close()
        self._check_limits(node)
        self._push(node)
        self._at += 1

    def _check_limits(self, node: Node) -> None:
        if node.height > _MAX_HEIGHT:
            raise PatternError("expression nests too deeply", self._text)
        if node.size > _MAX_SIZE:
            raise PatternError("expression too large", self._text)

    # --- repetition

    def _counted(self) -> bool:
        start = self._at
        bounds = _counts(self._text, start)
        if bounds is None:  # Go treats the brace as a literal
            self._at += 1
            self._literal(ord("{"))
            return False
        least, most, end = bounds
        if least > _MAX_REPEAT or (most is not None and (most > _MAX_REPEAT or least > most)):
            raise PatternError("invalid repeat count", self._text[start:end])
        self._repeat(end, least, most)
        return True

    def _repeat(self, end: int, least: int, most: int | None) -> None:
        start = self._at
        if self._text.startswith("?", end):
            end += 1
        if self._last_repeat >= 0:
            raise PatternError("invalid nested repetition operator", self._text[self._last_repeat : end])
        parts = self._groups[-1].parts
        if not parts:
            raise PatternError("missing argument to repetition operator", self._text[start:end])
        node = Repeat(parts.pop(), least, most)
        counted = self._text[start] == "{"
        if counted and max(least, most or 0) >= 2 and not _repeats_fit(node, _MAX_REPEAT):
            raise PatternError("invalid repeat count", self._text[start:end])
        self._check_limits(node)
        parts.append(node)
        self._at = end

    # --- escapes and classes

    def _escaped(self) -> None:
        text, start = self._text, self._at
        follows = text[start + 1 : start + 2]
        assertion = {"A": BEGIN_TEXT, "z": END_TEXT, "b": WORD_BOUNDARY, "B": NO_WORD_BOUNDARY}.get(follows)
        if assertion is not None:
            self._push(Assertion(assertion))
            self._at += 2
        elif follows == "C":
            raise PatternError("invalid escape sequence", "\\C")
        elif follows == "Q":
            literal, _, rest = text[start + 2 :].partition("\\E")
            for char in literal:
                self._literal(ord(char))
            self._at = len(text) - len(rest)
        else:
            known = self._class_escape(start)
            if known is not None:
                ranges, self._at = known
                self._push(Chars(ranges))
            else:
                code, self._at = _escape(text, start)
                self._literal(code)

    def _bracketed(self) -> Node:
        text, start = self._text, self._at
        at = start + 1
        negate = text.startswith("^", at)
        at += negate
        found: list[tuple[int, int]] = []
        first = True
        while first or at >= len(text) or text[at] != "]":
            first = False
            group = self._posix(at) or self._class_escape(at)
            if group is not None:
                found.extend(group[0])
                at = group[1]
                continue
            low, after = _class_char(text, at, start)
            high = low
            if text.startswith("-", after) and after + 1 < len(text) and text[after + 1] != "]":
                high, after = _class_char(text, after + 1, start)
                if high < low:
                    raise PatternError("invalid character class range", text[at:after])
            found.append((low, high))
            at = after
        self._at = at + 1
        ranges = charsets.normal(found)
        if self._flags.fold:
            ranges = charsets.folded(ranges)
        return Chars(charsets.negated(ranges) if negate else ranges)

    def _posix(self, at: int) -> tuple[Ranges, int] | None:
        if not self._text.startswith("[:", at) or len(self._text) - at <= 2:
            return None
        end = self._text.find(":]", at + 2)
        if end < 0:
            return None
        name = self._text[at + 2 : end]
        known = charsets.POSIX.get(name.removeprefix("^"))
        if known is None:
            raise PatternError("invalid character class range", self._text[at : end + 2])
        return self._signed(known, name.startswith("^")), end + 2

    def _class_escape(self, at: int) -> tuple[Ranges, int] | None:
        """Parse `\\d`, `\\pL`, `\\p{Greek}` and so on, and return where it ends."""
        if not self._text.startswith("\\", at):
            return None
        letter = self._text[at + 1 : at + 2]
        if letter in ("p", "P"):
            return self._unicode_escape(at)
        perl = {"d": charsets.DIGIT, "s": charsets.SPACE, "w": charsets.WORD}.get(letter.lower()) if letter else None
        return (self._signed(perl, letter.isupper()), at + 2) if perl else None

    def _unicode_escape(self, at: int) -> tuple[Ranges, int] | None:
        text = self._text
        if at + 2 >= len(text):
            return None if at + 1 >= len(text) else self._bad_class(text[at:])
        end = at + 3
        name = text[at + 2]
        if name == "{":
            close = text.find("}", at)
            if close < 0:
                self._bad_class(text[at:])
            name, end = text[at + 3 : close], close + 1
        negative = (text[at + 1] == "P") != name.startswith("^")
        ranges = charsets.unicode_class(name.removeprefix("^"))
        if ranges is None:
            return self._bad_class(text[at:end])
        return self._signed(ranges, negative), end

    def _bad_class(self, part: str) -> tuple[Ranges, int]:
        raise PatternError("invalid character class range", part)

    def _signed(self, ranges: Ranges, negative: bool) -> Ranges:
        if self._flags.fold:
            ranges = charsets.folded(ranges)
        return charsets.negated(ranges) if negative else ranges


def _repeats_fit(node: Node, budget: int) -> bool:
    """Check the product of nested counts, which Go limits, not each count alone."""
    if isinstance(node, Repeat):
        copies = node.least if node.most is None else node.most
        if node.most == 0:
            return True
        counted = (node.most is None and node.least > 1) or (node.most or 0) > 1
        if counted:
            if copies > budget:
                return False
            budget //= max(copies, 1)
        return _repeats_fit(node.body, budget)
    inner: Callable[[Node], bool] = lambda part: _repeats_fit(part, budget)  # noqa: E731
    if isinstance(node, Sequence):
        return all(map(inner, node.parts))
    if isinstance(node, Choice):
        return all(map(inner, node.options))
    return True


def _counts(text: str, start: int) -> tuple[int, int | None, int] | None:
    """Parse `{n}`, `{n,}` or `{n,m}` at `start`: bounds and end; None if it is not one."""
    first = _number(text, start + 1)
    if first is None:
        return None
    least, at = first
    most: int | None = least
    if text.startswith(",", at):
        at += 1
        most = None
        if not text.startswith("}", at):
            second = _number(text, at)
            if second is None:
                return None
            most, at = second
    return (least, most, at + 1) if text.startswith("}", at) else None


def _number(text: str, at: int) -> tuple[int, int] | None:
    end = at
    while end < len(text) and "0" <= text[end] <= "9":
        end += 1
    digits = text[at:end]
    if not digits or (len(digits) > 1 and digits[0] == "0"):
        return None
    return int(digits[:8]), end


def _class_char(text: str, at: int, class_at: int) -> tuple[int, int]:
    if at >= len(text):
        raise PatternError("missing closing ]", text[class_at:])
    return _escape(text, at) if text[at] == "\\" else (ord(text[at]), at + 1)


_CONTROL = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_OCTAL = "01234567"


def _escape(text: str, start: int) -> tuple[int, int]:
    """Return the character of the escape at `start`, and where it ends."""
    at = start + 1
    if at >= len(text):
        raise PatternError("trailing backslash at end of expression", "")
    char = text[at]
    at += 1
    if char == "0" or (char in _OCTAL and text[at : at + 1] and text[at] in _OCTAL):
        end = at
        while end < at + 2 and text[end : end + 1] and text[end] in _OCTAL:
            end += 1
        return int(text[at - 1 : end], 8), end
    if char == "x":
        return _hex_escape(text, start, at)
    if char in _CONTROL:
        return _CONTROL[char], at
    if char.isascii() and not char.isalnum():
        return ord(char), at
    raise PatternError("invalid escape sequence", text[start:at])


def _hex_escape(text: str, start: int, at: int) -> tuple[int, int]:
    if not text.startswith("{", at):
        digits = text[at : at + 2]
        if len(digits) == 2 and _is_hex(digits):
            return int(digits, 16), at + 2
        raise PatternError("invalid escape sequence", text[start : at + 2])
    end = at + 1
    while end < len(text) and _is_hex(text[end]):
        end += 1
        if int(text[at + 1 : end], 16) > charsets.MAX_RUNE:
            raise PatternError("invalid escape sequence", text[start:end])
    if end > at + 1 and text.startswith("}", end):
        return int(text[at + 1 : end], 16), end + 1
    raise PatternError("invalid escape sequence", text[start : end + 1])


def _is_hex(digits: str) -> bool:
    return all(digit in "0123456789abcdefABCDEF" for digit in digits)
