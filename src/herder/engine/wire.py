"""HTTP request and response types shared by clients and servers, independent of the transport.

The HTTP server parses sockets into these types; the in-process transport constructs them directly. An in-process client
therefore skips TLS, HTTP framing and authentication, and nothing else: authorization, admission and audit still apply.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlencode

from herder.engine.meta.errors import ServiceUnavailable

MAX_RESPONSE_BYTES = 64 << 20
"""Largest response body that a client decodes at once. A client reads a larger list in pages."""

RECHECK_SECONDS = 1.0
"""The rights of a request that waits longer, such as for its body, may have ended: they are checked again."""

_SMALL_BODY_BYTES = 64 << 10

Check = Callable[[], Awaitable[object]]
"""Raises StatusError if a request must not be sent any more."""

RequestCheck = Callable[["Request"], Awaitable[object]]
"""Authenticates or authorizes a request. Raises StatusError."""


class ResponseTooLarge(ServiceUnavailable):
    """The server sent a response body larger than the client accepts."""


@dataclass(frozen=True, slots=True)
class User:
    """The authenticated user of a request (user.Info in Kubernetes)."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# Go's net/url drops such pairs: those with a semicolon, and those with an invalid percent escape.
_INVALID_PAIR = re.compile(r";|%(?![0-9A-Fa-f]{2})")


class Query:
    """Query parameters in order. Repeated parameters are kept."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[tuple[str, str]] = ()) -> None:
        self.items = list(items)

    @classmethod
    def parse(cls, text: str) -> Query:
        if _INVALID_PAIR.search(text):
            text = "&".join(pair for pair in text.split("&") if not _INVALID_PAIR.search(pair))
        return cls(parse_qsl(text, keep_blank_values=True))

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.items if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.items if key == name]

    def enabled(self, name: str) -> bool:
        """Whether a boolean parameter is set: any value but these two sets it, like Go's conversion."""
        return name in self and self.get(name).lower() not in ("false", "0")

    def __contains__(self, name: str) -> bool:
        return any(key == name for key, _ in self.items)

    def __str__(self) -> str:
        return urlencode(self.items)


_MAX_SEGMENT = 24
_API_PATH = re.compile(
    r"/(api|apis|openapi|openid|\.well-known|version|healthz|livez|readyz|metrics|logs)(/.*)?", re.DOTALL
)


def loggable_path(path: str) -> str:
    """Return the path as it may appear in logs and audit records.

    Outside the Kubernetes API only the first segment is kept: such URLs may contain secrets (registration tokens, for
    example).
    """
    if _API_PATH.fullmatch(path):
        return path
    first, _, rest = path.lstrip("/").partition("/")
    shown = first if len(first) <= _MAX_SEGMENT else "REDACTED"
    return f"/{shown}/REDACTED" if rest else f"/{shown}"


class Incoming(Protocol):
    """The part of a request that has not been read yet, and the limits that apply to its sender."""

    async def admit(self, user: User | None, *, long_running: bool) -> None:
        """Wait for a free request slot of this user (None: anonymous). Raises TooManyRequests. Later calls do
        nothing."""
        ...

    async def receive(self, limit: int | None) -> bytes:
        """Read the body, at most `limit` bytes. Every call returns the same bytes. Raises StatusError."""
        ...

    def detach(self) -> Callable[[], None]:
        """Keep the request slot after the request has ended; the returned function releases it."""
        ...


@dataclass(slots=True)
class Request:
    """A request as handlers see it. The body may still be unread; see `receive_body`."""

    method: str
    path: str  # percent-decoded
    query: Query = field(default_factory=Query)
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names; repeated headers joined by ", "
    body: bytes = b""
    remote: str = ""  # client address, for the audit log
    client_certificate: bytes | None = None  # DER, already verified against the server's client CA
    user: User | None = None  # set by in-process clients, which need no authentication
    target: str = ""  # raw path and query as sent, still percent-encoded; used by proxies
    incoming: Incoming | None = None  # None: an in-process client
    has_body: bool = True  # False: call `receive_body` before reading `body`
    checks: tuple[Check, ...] = ()  # what is repeated after a wait

    async def admit(self, user: User | None, *, long_running: bool = False) -> bool:
        """Take a request slot of this user. Handlers call it as soon as the request is authenticated.

        Return whether the request waited so long for the slot that it must be authenticated again.
        """
        if self.incoming is None:
            return False
        begun = asyncio.get_running_loop().time()
        await self.incoming.admit(user, long_running=long_running)
        return has_waited(begun)

    async def receive_body(self, limit: int | None = None) -> None:
        """Read the body into `body`. Handlers call it only after authentication and authorization.

        Clients may take a minute to send a body. Without `checks`, they could use a right that has ended since, by
        sending the heads of requests in advance.
        """
        if self.incoming is None or (limit is None and self.has_body):
            return
        begun = asyncio.get_running_loop().time()
        self.body = await self.incoming.receive(limit)
        self.has_body = True
        await self.check_again(begun)

    def repeat_after_wait(self, check: RequestCheck) -> None:
        """Repeat a check of this request, which has succeeded, if the request waits for its body or in a queue.

        A check gets a copy of this request without its body as an argument. It needs the path and headers that it was
        made for: the next handler can have removed the credentials. If it referred to this request itself, each request
        would be a reference cycle, and stay in memory, with its watch, until the next garbage collection.
        """
        if self.incoming is not None:
            self.checks = (*self.checks, partial(check, replace(self, body=b"", checks=())))

    async def check_again(self, since: float, *, is_changed: bool = False) -> None:
        """Repeat the checks if the request has waited since that time of the event loop. Raises StatusError.

        `is_changed`: also if it has not waited for long, such as if its name is that of another object now.
        Those of the last handlers come first: they may wait again, for a cluster, and the first ones do not.
        """
        if is_changed or has_waited(since):
            for check in reversed(self.checks):
                await check()

    @property
    def is_streaming(self) -> bool:
        """Whether the response is an endless stream: a watch or a followed log."""
        return self.query.enabled("watch") or self.query.enabled("follow")


def has_waited(since: float) -> bool:
    return asyncio.get_running_loop().time() - since >= RECHECK_SECONDS


@dataclass(slots=True, eq=False)
class Retained:
    """State that a response keeps in memory until it is sent."""

    state: Hashable  # responses with the same state share its memory
    size: int  # bytes; 0 when it is released
    own: bool = False  # nothing else keeps it now


@dataclass(slots=True)
class Response:
    """A response with either a body or a stream."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Sequence[bytes] = b""  # a sequence is sent chunk by chunk, so a long list is never joined in memory
    stream: AsyncIterator[bytes] | None = None  # instead of a body: a watch or a followed log
    warnings: list[str] = field(default_factory=list)  # texts of Warning headers
    retained: Retained | None = None

    def content_length(self) -> int:
        """Length of the body in bytes. A LazyBody knows it without being generated."""
        if isinstance(self.body, bytes):
            return len(self.body)
        return self.body.length if isinstance(self.body, LazyBody) else sum(map(len, self.body))

    def memory(self) -> Retained | None:
        """What the response keeps in memory until it is sent, if that is much."""
        if self.retained is not None or self.stream is not None or isinstance(self.body, LazyBody):
            return self.retained
        length = self.content_length()
        return Retained(id(self.body), length) if length > _SMALL_BODY_BYTES else None

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


class LazyBody(Sequence[bytes]):
    """A long body that is generated while it is sent, so that a slow client does not hold it in memory."""

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
    """The client's end of a stream."""

    @property
    def congested(self) -> bool:
        """Whether the client is too slow: do not call `write`; `send` waits."""
        ...

    def write(self, content: bytes) -> None: ...

    async def send(self, content: bytes) -> None:
        """Write any number of bytes, waiting while the client is too slow."""
        ...


@runtime_checkable
class PushStream(Protocol):
    """A response stream that writes to its client itself. With many clients this is cheaper than iterating over each
    stream."""

    async def push(self, sink: Sink) -> None: ...


class Transport(Protocol):
    """How a client reaches an API server: over HTTP, through a tunnel, or in process."""

    async def send(self, request: Request) -> Response: ...

    async def close(self) -> None: ...
