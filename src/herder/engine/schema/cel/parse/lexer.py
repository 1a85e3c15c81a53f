"""Lexer. String and bytes literals are unescaped here, so the parser sees only values."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from herder.engine.schema.cel.errors import Issue
from herder.engine.schema.cel.parse.escaping import KEYWORDS


class Token(NamedTuple):
    """`name`, `int`, `uint`, `double`, `string`, `bytes`, `end`, or the operator or keyword itself."""

    kind: str
    """`name`, `int`, `uint`, `double`, `string`, `bytes`, `end`, or the operator or keyword itself."""
    text: str
    at: int
    value: Any = None


_HEX = "[0-9a-fA-F]"
_ESCAPE = rf"""\\(?:[abfnrtv"'\\?`]|[0-3][0-7]{{2}}|[xX]{_HEX}{{2}}|u{_HEX}{{4}}|U{_HEX}{{8}})"""
_QUOTED = "|".join(
    [
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        rf'"(?:{_ESCAPE}|[^\\"\n\r])*"',
        rf"'(?:{_ESCAPE}|[^\\'\n\r])*'",
    ]
)
_RAW = r"""[rR](?:\"\"\"(?s:.*?)\"\"\"|'''(?s:.*?)'''|"[^"\n\r]*"|'[^'\n\r]*')"""
_TOKEN = re.compile(
    rf"""
    (?P<space>(?:[\t\ \r\n\f]+|//[^\n]*)+)
  | (?P<bytes>[bB](?:{_RAW}|{_QUOTED}))
  | (?P<string>{_RAW}|{_QUOTED})
  | (?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<uint>(?:0x{_HEX}+|[0-9]+)[uU])
  | (?P<int>0x{_HEX}+|[0-9]+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<escaped>`[A-Za-z0-9_.\-/\ ]+`)
  | (?P<operator>==|!=|<=|>=|&&|\|\||[\[\]{{}}().,\-!?:+*/%<>])
    """,
    re.VERBOSE,
)
_OPEN_STRING = re.compile(
    rf"""(?:[bB]?[rR]?)(?:"(?:{_ESCAPE}|[^\\"\n\r])*|'(?:{_ESCAPE}|[^\\'\n\r])*)(?:\\?.|[\n\r])?""", re.DOTALL
)
_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    '"': '"', "'": "'", "\\": "\\", "?": "?", "`": "`",
}  # fmt: skip
_ESCAPE_PATTERN = re.compile(_ESCAPE)


def tokenize(text: str) -> tuple[list[Token], list[Issue]]:
    """Return all tokens with an `end` token last, and issues for invalid characters."""
    tokens: list[Token] = []
    issues: list[Issue] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            skipped = _unrecognized(text, position)
            printed = skipped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
            issues.append(Issue(position, f"Syntax error: token recognition error at: '{printed}'"))
            position += len(skipped)
            continue
        position = match.end()
        if match.lastgroup != "space":
            _add(tokens, issues, match)
    tokens.append(Token("end", "<EOF>", len(text)))
    return tokens, issues


def _unrecognized(text: str, position: int) -> str:
    """Return what a failed token has consumed: one character too many for half operators, everything for open
    strings."""
    char = text[position]
    if char in "=&|":
        return text[position : position + 2]
    opened = _OPEN_STRING.match(text, position)
    return opened.group() if opened else char


def _add(tokens: list[Token], issues: list[Issue], match: re.Match[str]) -> None:
    kind = match.lastgroup or ""
    text = match.group()
    at = match.start()
    if kind in ("string", "bytes"):
        try:
            value = _unquote(text[1:], as_bytes=True) if kind == "bytes" else _unquote(text, as_bytes=False)
        except ValueError as error:
            issues.append(Issue(at, str(error)))
            value = ""
        tokens.append(Token(kind, text, at, value))
    elif kind == "operator" or (kind == "name" and text in KEYWORDS):
        tokens.append(Token(text, text, at))
    else:
        tokens.append(Token(kind, text, at))


def _unquote(text: str, *, as_bytes: bool) -> str | bytes:
    raw = text[0] in "rR"
    if raw:
        text = text[1:]
    width = 3 if text[:3] in ('"""', "'''") and len(text) >= 6 else 1
    body = text[width:-width].replace("\r\n", "\n").replace("\r", "\n")
    if as_bytes:
        return _bytes_value(body, raw)
    if raw or "\\" not in body:
        return body
    return _ESCAPE_PATTERN.sub(lambda match: _escaped_char(match[0]), body)


def _escaped_char(escape: str) -> str:
    letter = escape[1]
    if letter in _SIMPLE_ESCAPES:
        return _SIMPLE_ESCAPES[letter]
    code = int(f"0x{escape[2:]}", 0) if letter in "xXuU" else int(escape[1:], 8)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError("invalid unicode code point")
    return chr(code)


def _bytes_value(body: str, raw: bool) -> bytes:
    """Unescape bytes: `\\x` and octal escapes are one byte each; everything else is UTF-8."""
    if raw or "\\" not in body:
        return body.encode()
    out = bytearray()
    last = 0
    for match in _ESCAPE_PATTERN.finditer(body):
        out += body[last : match.start()].encode()
        escape = match[0]
        if escape[1] in "xX":
            out += bytes.fromhex(escape[2:])
        elif escape[1] in "0123":
            out.append(int(escape[1:], 8))
        elif escape[1] in "uU":
            raise ValueError("unable to unescape string")
        else:
            out += _escaped_char(escape).encode()
        last = match.end()
    out += body[last:].encode()
    return bytes(out)
