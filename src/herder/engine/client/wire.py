"""A request and its answer, as both sides see them, whatever carries them.

The HTTP front turns sockets into these; the in-process transport makes them directly. So a caller inside the
process skips TLS, framing and parsing of HTTP, and nothing else: authentication aside, it walks the same road.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlencode


@dataclass(frozen=True, slots=True)
class User:
    """Who asks, as authentication found it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# Pairs that Go leaves out: with what was a separator once, or with an escape that is none.
_DROPPED = re.compile(r";|%(?![0-9A-Fa-f]{2})")


class Query:
    """Query parameters in order, repeated ones kept."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[tuple[str, str]] = ()) -> None:
        self.items = list(items)

    @classmethod
    def parse(cls, text: str) -> Query:
        if _DROPPED.search(text):
            text = "&".join(pair for pair in text.split("&") if not _DROPPED.search(pair))
        return cls(parse_qsl(text, keep_blank_values=True))

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.items if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.items if key == name]

    def __contains__(self, name: str) -> bool:
        return any(key == name for key, _ in self.items)

    def __str__(self) -> str:
        return urlencode(self.items)


_LONGEST_WORD = 24
_API_PATH = re.compile(
    r"/(api|apis|openapi|openid|\.well-known|version|healthz|livez|readyz|metrics|logs)(/.*)?", re.DOTALL
)


def told_path(path: str) -> str:
    """A path as logs and records may tell it. Of paths that are not the API's only the beginning: people put all kinds
    of things into addresses, and some addresses are secrets by design."""
    if _API_PATH.fullmatch(path):
        return path
    first, _, rest = path.lstrip("/").partition("/")
    shown = first if len(first) <= _LONGEST_WORD else "REDACTED"
    return f"/{shown}/REDACTED" if rest else f"/{shown}"


@dataclass(slots=True)
class Request:
    method: str
    path: str  # percent-decoded
    query: Query = field(default_factory=Query)
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case; repeated ones joined by ", "
    body: bytes = b""
    remote: str = ""  # address of the caller, for the audit log
    client_certificate: bytes | None = None  # DER, already verified against our client CA
    user: User | None = None  # set for callers inside the process, who need no authentication
    target: str = ""  # path and query as they were sent, escapes and all; for who passes them on

    @property
    def flows(self) -> bool:
        """Whether the answer has no end of its own: a watch, a followed log."""
        return self.query.get("watch") in {"true", "1"} or self.query.get("follow") in {"true", "1"}


@dataclass(slots=True)
class Response:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Sequence[bytes] = b""  # a sequence is sent piece by piece, so a long list is never joined
    stream: AsyncIterator[bytes] | None = None  # instead of a body: a watch, a followed log
    warnings: list[str] = field(default_factory=list)  # texts for Warning headers

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


class Sink(Protocol):
    """The reader's end of a stream."""

    @property
    def congested(self) -> bool:
        """The reader is behind: wait for `drained` before writing more."""
        ...

    def write(self, content: bytes) -> None: ...

    async def drained(self) -> None: ...


@runtime_checkable
class Pushed(Protocol):
    """A stream that can also write by itself: cheaper than being asked for each piece, where there are many readers."""

    async def push(self, sink: Sink) -> None: ...


class Transport(Protocol):
    """How a client reaches an API server: over HTTP, through a tunnel, or inside this process."""

    async def send(self, request: Request) -> Response: ...

    async def close(self) -> None: ...
