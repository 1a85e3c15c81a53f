"""XML answers of S3: size limits, no document types, only the elements that the client needs.

Backups of the manager run in a thread of its process. The parser does not let other threads run before it returns, so
it gets the text in small pieces, and no piece may contain too much.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote_plus
from xml.etree import ElementTree

LIMIT = 4 << 20  # a page of 1,000 keys of 1 KiB fits
_PIECE = 16 << 10
_MAX_ELEMENTS = 50_000  # a page of 1,000 keys has about 10,000
_MAX_DEPTH = 16
_CODE_LIMIT = 80
_SIZE = re.compile(r"[0-9]{1,18}")


class InvalidAnswer(Exception):
    """The answer is not the XML that S3 documents."""


class Page(NamedTuple):
    """One page of a listing; the token of the next one is empty on the last."""

    keys: list[tuple[str, int]]  # with sizes
    next_token: str


class Answer:
    def __init__(self, content: bytes) -> None:
        text = content.decode("utf-8", "replace")
        if "<!" in text:  # entities could expand without limit
            raise InvalidAnswer("it contains a document type")
        try:
            self._root = _parsed(text)
        except ElementTree.ParseError as error:
            raise InvalidAnswer(str(error)) from None

    @property
    def name(self) -> str:
        return _local(self._root)

    def text(self, name: str) -> str:
        return _text(self._root, name)

    def elements(self, name: str) -> Iterator[ElementTree.Element]:
        return (each for each in self._root if _local(each) == name)


class _Builder(ElementTree.TreeBuilder):
    """Fails when the text has too many elements, or too many within each other."""

    def __init__(self) -> None:
        super().__init__()
        self._elements = self._depth = 0

    def start(self, tag: str, attributes: dict[str, Any], /) -> ElementTree.Element:
        self._elements += 1
        self._depth += 1
        if self._elements > _MAX_ELEMENTS or self._depth > _MAX_DEPTH:
            raise InvalidAnswer("it has too many elements")
        return super().start(tag, attributes)

    def end(self, tag: str, /) -> ElementTree.Element:
        self._depth -= 1
        return super().end(tag)


def _parsed(text: str) -> ElementTree.Element:
    """A piece without the begin of an element belongs to a long text, or to an element with many attributes, which the
    parser would handle at once."""
    parser = ElementTree.XMLParser(target=_Builder())  # noqa: S314 - without document types there are no entities
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE]
        if len(piece) == _PIECE and "<" not in piece:
            raise InvalidAnswer("it has too long an element")
        parser.feed(piece)
    root: ElementTree.Element = parser.close()
    return root


def error_of(content: bytes) -> tuple[str, str]:
    """Return code and message of an error; both are empty if the answer has none."""
    try:
        answer = Answer(content)
    except InvalidAnswer:
        return "", ""
    return answer.text("Code")[:_CODE_LIMIT], answer.text("Message")


def page_of(content: bytes) -> Page:
    answer = Answer(content)
    if answer.name != "ListBucketResult":
        raise InvalidAnswer(f"it is a {answer.name[:40]}")
    decode = unquote_plus if answer.text("EncodingType") == "url" else str
    keys = []
    for each in answer.elements("Contents"):
        size = _text(each, "Size")
        keys.append((decode(_text(each, "Key")), int(size) if _SIZE.fullmatch(size) else 0))
    more = answer.text("IsTruncated") == "true"
    token = answer.text("NextContinuationToken") if more else ""
    if more and not token:
        raise InvalidAnswer("it is truncated and has no continuation token")
    return Page(keys, token)


def uploads_of(content: bytes) -> list[tuple[str, str]]:
    """Return keys and IDs of unfinished multipart uploads."""
    answer = Answer(content)
    return [(_text(each, "Key"), _text(each, "UploadId")) for each in answer.elements("Upload")]


def _text(element: ElementTree.Element, name: str) -> str:
    return next((each.text or "" for each in element if _local(each) == name), "")


def _local(element: ElementTree.Element) -> str:
    """Return the name without its namespace, which some servers omit."""
    return element.tag.rpartition("}")[2]
