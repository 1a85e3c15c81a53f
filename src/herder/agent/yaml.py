"""Parse the YAML subset used in configuration files, and reject the rest with the line number.

Supported: block mappings and sequences, plain and quoted scalars on one line, `|` and `>` blocks, flow collections on
one line, comments. Not supported: anchors, aliases, tags, multiple documents, complex keys, multi-line plain scalars.

Only canonical decimal integers are numbers. Anything else on which YAML versions disagree (0600, 1e5, yes) stays a
string: it may be a password.
"""

import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s'"\[\]{}#&*!|>%@`,?-][^#]*?|[-?][^\s#][^#]*?)\s*:(?=\s|$)"""
)
_INTEGER = re.compile(r"(0|-?[1-9][0-9]*)$")
_BLOCK = re.compile(r"[|>]-?\s*(#.*)?$")
_CONSTANTS: Dict[str, Any] = {"": None, "~": None}
for _word, _meaning in (("true", True), ("false", False), ("null", None)):
    _CONSTANTS.update({_word: _meaning, _word.title(): _meaning, _word.upper(): _meaning})


class YamlError(ValueError):
    """The text is invalid; the message has the line, but never its content, which may be secret."""


class _Line(NamedTuple):
    number: int
    indent: int
    text: str  # without indentation and comment


def load(text: str) -> Any:
    """Parse YAML or JSON."""
    text = text.lstrip("\ufeff")  # byte order mark of Windows
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError:
            pass  # may be a YAML flow collection
    return _Reader(text).document()


class _Reader:
    def __init__(self, text: str) -> None:
        self._raw = text.splitlines()
        self._at = 0  # index of the raw line

    def document(self) -> Any:
        line = self._peek()
        if line is not None and line.text == "---":
            self._at = line.number
            line = self._peek()
        if line is None:
            return None
        value = self._node(line.indent)
        rest = self._peek()
        if rest is not None and rest.text == "...":
            self._at = rest.number
            rest = self._peek()
        if rest is not None:
            what = (
                "a second document" if rest.text.startswith("---") else "this line does not belong to what is before it"
            )
            raise YamlError(f"line {rest.number}: {what}")
        return value

    def _peek(self) -> Optional[_Line]:
        """Return the next non-empty line."""
        for index in range(self._at, len(self._raw)):
            raw = self._raw[index]
            text = _without_comment(raw.strip())
            if not text or (index == 0 and text.startswith("%")):
                continue
            indent = len(raw) - len(raw.lstrip(" "))
            if raw[indent : indent + 1] == "\t":
                raise YamlError(f"line {index + 1}: a tab in the indentation")
            return _Line(index + 1, indent, text)
        return None

    def _node(self, indent: int) -> Any:
        line = self._peek()
        assert line is not None
        if _is_item(line.text):
            return self._sequence(line.indent)
        if _KEY.match(line.text):
            return self._mapping(line.indent)
        self._at = line.number
        return _scalar(line.text, line.number)

    def _mapping(self, indent: int) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        while True:
            line = self._peek()
            if line is None or line.indent != indent or line.text in ("---", "..."):
                if line is not None and line.indent > indent:
                    raise YamlError(
                        f"line {line.number}: indented more than the lines before it, or a value over lines"
                    )
                return found
            match = _KEY.match(line.text)
            if not match or _is_item(line.text):
                if _is_item(line.text):
                    return found
                raise YamlError(f"line {line.number}: expected 'key: value'")
            key = _key(match.group(1), line.number)
            if key == "<<":
                raise YamlError(f"line {line.number}: merging with '<<' is beyond the part of YAML that is read here")
            if key in found:
                raise YamlError(f"line {line.number}: the key {key!r} is there twice")
            self._at = line.number
            found[key] = self._value(line.text[match.end() :].strip(), indent, line.number, True)

    def _sequence(self, indent: int) -> List[Any]:
        found: List[Any] = []
        while True:
            line = self._peek()
            if line is None or line.indent != indent or not _is_item(line.text):
                if line is not None and line.indent > indent:
                    raise YamlError(f"line {line.number}: indented more than the item before it")
                return found
            rest = line.text[1:].strip()
            if not rest or _BLOCK.match(rest) or not (_KEY.match(rest) or _is_item(rest)):
                self._at = line.number
                found.append(self._value(rest, indent, line.number, False))
            else:  # a nested collection on the same line: the dash counts as indentation
                raw = self._raw[line.number - 1]
                self._raw[line.number - 1] = raw[:indent] + " " + raw[indent + 1 :]
                self._at = line.number - 1
                inner = self._peek()
                assert inner is not None
                found.append(self._node(inner.indent))

    def _value(self, text: str, indent: int, number: int, of_mapping: bool) -> Any:
        """Parse what follows a key or dash; lists may start at the indentation of their key."""
        if _BLOCK.match(text):
            return self._block(text, indent)
        if text:
            return _scalar(text, number)
        line = self._peek()
        if line is not None and (
            line.indent > indent or (of_mapping and line.indent == indent and _is_item(line.text))
        ):
            return self._node(line.indent)
        return None

    def _block(self, header: str, indent: int) -> str:
        lines: List[str] = []
        inner: Optional[int] = None
        while self._at < len(self._raw):
            raw = self._raw[self._at]
            depth = len(raw) - len(raw.lstrip(" "))
            if raw.strip():
                if depth <= indent:
                    break
                inner = depth if inner is None else inner
            lines.append(raw[inner or 0 :] if raw.strip() else "")
            self._at += 1
        while lines and not lines[-1]:
            lines.pop()
            self._at -= 1  # trailing lines are not part of the text
        if header[0] == ">" and any(not line or line[0] in " \t" for line in lines):
            raise YamlError(f"line {self._at}: in a block with '>', all lines must be indented alike; use '|'")
        kept = (" " if header[0] == ">" else "\n").join(lines)
        return kept if header[1:2] == "-" or not kept else kept + "\n"


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _without_comment(text: str) -> str:
    """Strip a comment: a `#` at the start or after a space, outside of quotes."""
    quote = ""
    for index, char in enumerate(text):
        if quote:
            if char == quote and not (quote == '"' and _escaped(text, index)):
                quote = ""
        elif char in "\"'" and (index == 0 or text[index - 1] in " [{,:"):
            quote = char
        elif char == "#" and (index == 0 or text[index - 1] in " \t"):
            return text[:index].rstrip()
    return text


def _escaped(text: str, index: int) -> bool:
    backslashes = len(text[:index]) - len(text[:index].rstrip("\\"))
    return backslashes % 2 == 1


def _key(text: str, number: int) -> str:
    value = _scalar(text, number) if text[0] in "\"'" else text
    return value if isinstance(value, str) else text


def _scalar(text: str, number: int) -> Any:
    if text[0] in "\"'[{":
        value, rest = _flow(text, number)
        if rest.strip():
            raise YamlError(f"line {number}: there is something after the end of a value")
        return value
    return _plain(text, number)


def _plain(text: str, number: int) -> Any:
    if _is_item(text) or _KEY.match(text):
        raise YamlError(f"line {number}: a value that begins with '- ', or has ': ' in it, must be in quotes")
    if text[0] in "&*!|>%@`":
        raise YamlError(f"line {number}: {text[0]!r} is beyond the part of YAML that is read here; write the value out")
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.match(text):
        return int(text)
    return text


def _flow(text: str, number: int) -> Tuple[Any, str]:
    """Parse a flow value; return it and the rest of the line."""
    text = text.strip()
    if not text:
        raise YamlError(f"line {number}: a collection or quote is not closed on its line")
    if text[0] == '"':
        return _double_quoted(text, number)
    if text[0] == "'":
        match = re.match(r"'((?:[^']|'')*)'", text)
        if not match:
            raise YamlError(f"line {number}: a quote is not closed on its line")
        return match.group(1).replace("''", "'"), text[match.end() :]
    if text[0] == "[":
        return _flow_sequence(text[1:], number)
    if text[0] == "{":
        return _flow_mapping(text[1:], number)
    match = re.match(r"[^,\[\]{}]+", text)
    if not match:
        raise YamlError(f"line {number}: unexpected {text[:1]!r}")
    return _plain(match.group(0).strip(), number), text[match.end() :]


def _double_quoted(text: str, number: int) -> Tuple[str, str]:
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except ValueError:
        raise YamlError(f"line {number}: a quote is not closed on its line, or has an unknown escape") from None
    return str(value), text[end:]


def _flow_sequence(text: str, number: int) -> Tuple[List[Any], str]:
    found: List[Any] = []
    while True:
        text = text.lstrip()
        if text.startswith("]"):
            return found, text[1:]
        value, text = _flow(text, number)
        found.append(value)
        text = _after_item(text, "]", number)


def _flow_mapping(text: str, number: int) -> Tuple[Dict[str, Any], str]:
    found: Dict[str, Any] = {}
    while True:
        text = text.lstrip()
        if text.startswith("}"):
            return found, text[1:]
        match = re.match(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^:,\[\]{}]+?)\s*:\s*""", text)
        if not match:
            raise YamlError(f"line {number}: expected 'key: value' in {{…}}")
        key = _key(match.group(1), number)
        text = text[match.end() :]
        if text[:1] in (",", "}"):
            found[key] = None
        else:
            found[key], text = _flow(text, number)
        text = _after_item(text, "}", number)


def _after_item(text: str, end: str, number: int) -> str:
    text = text.lstrip()
    if text.startswith(","):
        return text[1:]
    if not text.startswith(end):
        raise YamlError(f"line {number}: a collection is not closed on its line")
    return text
