"""Character sets as sorted, disjoint ranges of code points, with Go's case folding and Unicode classes."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache

Ranges = tuple[tuple[int, int], ...]

MAX_RUNE = 0x10FFFF
_LAST_FOLD = 0x1E943  # last character with another case


def normal(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Sort ranges and merge overlapping and adjacent ones."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if joined and low <= joined[-1][1] + 1:
            if high > joined[-1][1]:
                joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return tuple(joined)


def negated(ranges: Ranges) -> Ranges:
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_RUNE:
        gaps.append((start, MAX_RUNE))
    return tuple(gaps)


def folded(ranges: Ranges) -> Ranges:
    """Add all other cases of each character."""
    others = _other_cases()
    extra: list[tuple[int, int]] = list(ranges)
    for low, high in ranges:
        for code in range(low, min(high, _LAST_FOLD) + 1):
            extra.extend((other, other) for other in others.get(code, ()))
    return normal(extra)


@cache
def _other_cases() -> dict[int, tuple[int, ...]]:
    by_fold: dict[str, list[int]] = {}
    for code in range(0x41, _LAST_FOLD + 1):
        char = chr(code)
        fold = char.casefold()
        by_fold.setdefault(fold if len(fold) == 1 else char.lower(), []).append(code)
    orbits = [codes for codes in by_fold.values() if len(codes) > 1]
    return {code: tuple(other for other in codes if other != code) for codes in orbits for code in codes}


class CharSet:
    """Membership by code point: a bit mask for ASCII, bisection beyond it."""

    __slots__ = ("_ascii", "_highs", "_lows")

    def __init__(self, ranges: Ranges) -> None:
        self._ascii = 0
        for low, high in ranges:
            for code in range(low, min(high, 127) + 1):
                self._ascii |= 1 << code
        self._lows = [low for low, _ in ranges]
        self._highs = [high for _, high in ranges]

    def __contains__(self, code: int) -> bool:
        if code < 128:
            return bool(self._ascii >> code & 1)
        at = bisect_right(self._lows, code) - 1
        return at >= 0 and code <= self._highs[at]


DIGIT: Ranges = ((0x30, 0x39),)
SPACE: Ranges = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))

POSIX: dict[str, Ranges] = {
    "alnum": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
    "alpha": ((0x41, 0x5A), (0x61, 0x7A)),
    "ascii": ((0x00, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0x00, 0x1F), (0x7F, 0x7F)),
    "digit": DIGIT,
    "graph": ((0x21, 0x7E),),
    "lower": ((0x61, 0x7A),),
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": ((0x41, 0x5A),),
    "word": WORD,
    "xdigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
}

_CATEGORIES = frozenset((
    "C", "Cc", "Cf", "Cn", "Co", "Cs", "L", "LC", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl",
    "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs",
))  # fmt: skip
_LONG_NAMES = {
    "Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf", "Unassigned": "Cn", "Private_Use": "Co",
    "Surrogate": "Cs", "Letter": "L", "Cased_Letter": "LC", "Lowercase_Letter": "Ll", "Modifier_Letter": "Lm",
    "Other_Letter": "Lo", "Titlecase_Letter": "Lt", "Uppercase_Letter": "Lu", "Mark": "M", "Combining_Mark": "M",
    "Spacing_Mark": "Mc", "Enclosing_Mark": "Me", "Nonspacing_Mark": "Mn", "Number": "N", "Decimal_Number": "Nd",
    "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P", "punct": "P",
    "Connector_Punctuation": "Pc", "Dash_Punctuation": "Pd", "Close_Punctuation": "Pe", "Final_Punctuation": "Pf",
    "Initial_Punctuation": "Pi", "Other_Punctuation": "Po", "Open_Punctuation": "Ps", "Symbol": "S",
    "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk", "Math_Symbol": "Sm", "Other_Symbol": "So", "Separator": "Z",
    "Line_Separator": "Zl", "Paragraph_Separator": "Zp", "Space_Separator": "Zs",
}  # fmt: skip
_BY_LOOSE_NAME = {name.replace("_", "").lower(): short for name, short in _LONG_NAMES.items()}


@cache
def unicode_class(name: str) -> Ranges | None:
    """Return the characters of `\\p{name}`: a general category by short or long name, or a script; None if unknown."""
    if name == "Any":
        return ((0, MAX_RUNE),)
    loose = name.replace("_", "").replace(" ", "").replace("-", "").lower()
    if loose == "ascii":
        return ((0, 0x7F),)
    if loose == "assigned":
        return negated(_categories(("Cn",)))
    short = _BY_LOOSE_NAME.get(loose)
    if short is None:
        short = next((known for known in _CATEGORIES if known.lower() == loose), None)
    if short is None:
        return _script(loose)
    if short == "LC":
        return _categories(("Lu", "Ll", "Lt"))
    return _categories(tuple(known for known in sorted(_CATEGORIES) if known.startswith(short) and len(known) == 2))


@cache
def _categories(wanted: tuple[str, ...]) -> Ranges:
    names = frozenset(wanted)
    category = unicodedata.category
    return normal((code, code) for code in range(MAX_RUNE + 1) if category(chr(code)) in names)


def _script(loose: str) -> Ranges | None:
    from herder.engine.schema.re2.scripts import SCRIPTS  # large table that few patterns need

    packed = SCRIPTS.get(loose)
    if packed is None:
        return None
    bounds = [int(number, 36) for number in packed.split()]
    ranges: list[tuple[int, int]] = []
    at = 0
    for gap, length in zip(bounds[::2], bounds[1::2], strict=True):
        at += gap
        ranges.append((at, at + length))
        at += length
    return tuple(ranges)
