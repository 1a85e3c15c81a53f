"""A request and its answer, as both sides see them, whatever carries them.

The HTTP front turns sockets into these; the in-process transport makes them directly. So a caller inside the
process skips TLS, framing and parsing of HTTP, and nothing else: authentication aside, it walks the same road.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlencode

from herder.engine.meta.errors import ServiceUnavailable

ANSWER_BYTES = 64 << 20
"""Of an answer that is decoded as a whole. A list that has more is read in smaller pages."""


class AnswerTooLong(ServiceUnavailable):
    """A server sent more than a client reads."""


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


def loggable_path(path: str) -> str:
    """A path as logs and records may tell it. Of paths that are not the API's only the beginning: people put all kinds
    of things into addresses, and some addresses are secrets by design."""
    if _API_PATH.fullmatch(path):
        return path
    first, _, rest = path.lstrip("/").partition("/")
    shown = first if len(first) <= _LONGEST_WORD else "REDACTED"
    return f"/{shown}/REDACTED" if rest else f"/{shown}"


class Incoming(Protocol):
    """The rest of a request that is still on its way, and the limits that its sender is under."""

    async def admit(self, user: User | None, *, long_running: bool) -> None:
        """Wait for a turn of this user (None: anonymous). Raises TooManyRequests. Only the first call counts."""
        ...

    async def receive(self, limit: int | None) -> bytes:
        """Read the body, at most `limit` bytes of it. Every call returns the same bytes. Raises StatusError."""
        ...

    def detach(self) -> Callable[[], None]:
        """Keep what `admit` took beyond the end of the request; the returned function gives it back."""
        ...


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
    incoming: Incoming | None = None  # None: a caller inside the process
    has_body: bool = True  # False: `body` is to be received first

    async def admit(self, user: User | None, *, long_running: bool = False) -> None:
        """Count this request against the limits of its sender. Handlers call it as soon as they know who asks."""
        if self.incoming is not None:
            await self.incoming.admit(user, long_running=long_running)

    async def receive_body(self, limit: int | None = None) -> None:
        """Fill `body`. Handlers call it once the sender is authenticated and authorized, never before."""
        if self.incoming is not None and (limit is not None or not self.has_body):
            self.body = await self.incoming.receive(limit)
            self.has_body = True

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

    def content_length(self) -> int:
        """Of the body; long lists know theirs before they are put together."""
        if isinstance(self.body, bytes):
            return len(self.body)
        return self.body.length if isinstance(self.body, LazyPieces) else sum(map(len, self.body))

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


class LazyPieces(Sequence[bytes]):
    """A long body that is put together while it is sent, so that a client which does not read holds nothing of it."""

    def __init__(self, length: int, pieces: Callable[[], Iterator[bytes]]) -> None:
        self.length = length
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class Sink(Protocol):
    """The reader's end of a stream."""

    @property
    def congested(self) -> bool:
        """The reader is behind: `write` nothing, `send` waits."""
        ...

    def write(self, content: bytes) -> None: ...

    async def send(self, content: bytes) -> None:
        """Write any number of bytes, as fast as the reader takes them."""
        ...


@runtime_checkable
class Pushed(Protocol):
    """A stream that can also write by itself: cheaper than being asked for each piece, where there are many readers."""

    async def push(self, sink: Sink) -> None: ...


class Transport(Protocol):
    """How a client reaches an API server: over HTTP, through a tunnel, or inside this process."""

    async def send(self, request: Request) -> Response: ...

    async def close(self) -> None: ...
