"""String functions: the standard ones, the strings extension, and regular expressions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.library.formatting import format_text
from herder.engine.schema.cel.library.matching import find_matches
from herder.engine.schema.cel.types import BOOL, DYN, INT, STRING, list_of

library = Library()
_STRINGS = list_of(STRING)
_UPPER = {ord(char): char.upper() for char in "abcdefghijklmnopqrstuvwxyz"}
_LOWER = {ord(char): char.lower() for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_SPACE = "".join(
    map(chr, [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000])
)
_QUOTES = str.maketrans(
    {
        "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
        "\\": "\\\\", '"': r"\"",
    }
)  # fmt: skip

library.method("contains", STRING, STRING, returns=BOOL, linear=True)(lambda text, part: part in text)
library.method("startsWith", STRING, STRING, returns=BOOL)(str.startswith)
library.method("endsWith", STRING, STRING, returns=BOOL)(str.endswith)
library.method("lowerAscii", STRING, returns=STRING, linear=True)(lambda text: text.translate(_LOWER))
library.method("upperAscii", STRING, returns=STRING, linear=True)(lambda text: text.translate(_UPPER))
library.method("trim", STRING, returns=STRING, linear=True)(lambda text: text.strip(_SPACE))
library.method("format", STRING, list_of(DYN), returns=STRING, linear=True)(format_text)
library.function("strings.quote", STRING, returns=STRING, linear=True)(lambda text: f'"{text.translate(_QUOTES)}"')


def _out_of_range(index: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {index}")


@library.method("charAt", STRING, INT, returns=STRING)
def char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


@library.method("indexOf", STRING, STRING, returns=INT, linear=True)
@library.method("indexOf", STRING, STRING, INT, returns=INT, linear=True)
def index_of(text: str, part: str, start: int = 0) -> int:
    if part == "":
        return start
    if start < 0:
        raise _out_of_range(start)
    return text.find(part, start)


@library.method("lastIndexOf", STRING, STRING, returns=INT, linear=True)
def last_index_of(text: str, part: str) -> int:
    return text.rfind(part)


@library.method("lastIndexOf", STRING, STRING, INT, returns=INT, linear=True)
def last_index_before(text: str, part: str, last: int) -> int:
    if part == "":
        return last
    if last < 0:
        raise _out_of_range(last)
    if last >= len(text):
        return -1
    return text.rfind(part, 0, last + len(part))


@library.method("replace", STRING, STRING, STRING, returns=STRING, linear=True)
@library.method("replace", STRING, STRING, STRING, INT, returns=STRING, linear=True)
def replace(text: str, old: str, new: str, count: int = -1) -> str:
    return text.replace(old, new, count if count >= 0 else -1)


@library.method("split", STRING, STRING, returns=_STRINGS, linear=True)
@library.method("split", STRING, STRING, INT, returns=_STRINGS, linear=True)
def split(text: str, separator: str, count: int = -1) -> list[str]:
    """Split into at most `count` pieces, the last of them unsplit; an empty separator splits into characters."""
    if count == 0:
        return []
    if separator == "":
        chars = list(text)
        return chars if count < 0 or count >= len(chars) else [*chars[: count - 1], "".join(chars[count - 1 :])]
    return text.split(separator, count - 1 if count > 0 else -1)


@library.method("substring", STRING, INT, returns=STRING, linear=True)
def substring(text: str, start: int) -> str:
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


@library.method("substring", STRING, INT, INT, returns=STRING, linear=True)
def substring_range(text: str, start: int, end: int) -> str:
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    if not 0 <= end <= len(text):
        raise _out_of_range(end)
    return text[start:end]


@library.method("join", _STRINGS, returns=STRING, linear=True)
@library.method("join", _STRINGS, STRING, returns=STRING, linear=True)
def join(parts: list[Any], separator: str = "") -> str:
    for part in parts:
        if type(part) is not str:
            raise EvaluationError(f"join: invalid input: {part}")
    return separator.join(parts)


# ---- regular expressions


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Any:
    """Compile a pattern in RE2 syntax, matched in linear time; raises ValueError if it is invalid."""
    from herder.engine.schema import re2

    return re2.compile(pattern)


@library.function("matches", STRING, STRING, returns=BOOL, linear=True)
@library.method("matches", STRING, STRING, returns=BOOL, linear=True)
def matches(text: str, pattern: str) -> bool:
    try:
        return bool(compile_pattern(pattern).search(text))
    except ValueError as error:
        raise EvaluationError(str(error)) from None


@library.method("find", STRING, STRING, returns=STRING, linear=True)
def find(text: str, pattern: str) -> str:
    return next(_matches(text, pattern), "")


@library.method("findAll", STRING, STRING, returns=_STRINGS, linear=True)
@library.method("findAll", STRING, STRING, INT, returns=_STRINGS, linear=True)
def find_all(text: str, pattern: str, count: int = -1) -> list[str]:
    return list(itertools.islice(_matches(text, pattern), count if count >= 0 else None))


def _matches(text: str, pattern: str) -> Iterator[str]:
    try:
        return find_matches(text, pattern)
    except ValueError as error:
        raise EvaluationError(f"Illegal regex: {error}") from None
