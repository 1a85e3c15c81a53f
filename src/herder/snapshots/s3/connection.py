"""Signed requests to one S3 endpoint, with retries and deadlines. It follows no redirect and uses no proxy."""

from __future__ import annotations

import http.client
import math
import random
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from herder.snapshots.config import S3Config
from herder.snapshots.errors import SnapshotError, TooLarge
from herder.snapshots.s3.answers import LIMIT, error_of
from herder.snapshots.s3.errors import S3Error, connection_failure, refusal
from herder.snapshots.s3.signature import (
    EMPTY,
    Credentials,
    Unsigned,
    authorization,
    encoded_path,
    encoded_query,
    timestamp,
)

PIECE = 1 << 20
ATTEMPTS = 4
FIRST_DELAY = 0.5
SLOWEST = 64 << 10  # bytes per second that every transfer must reach
MAX_SECONDS = 600.0
"""For all requests that transfer no snapshot. A bucket chooses how many there are: pages, uploads, old snapshots."""
_PARTIAL_CHAIN = 0x80000  # X509_V_FLAG_PARTIAL_CHAIN: trust the given certificates even if they are no roots

T = TypeVar("T")


@dataclass(frozen=True)
class Body:
    """A payload: bytes, or a part of a file that is streamed."""

    sha256: str = EMPTY
    size: int = 0
    content: bytes = field(repr=False, default=b"")
    file: Path | None = None
    offset: int = 0

    def pieces(self) -> Iterator[bytes]:
        if self.file is None:
            yield self.content
            return
        with self.file.open("rb") as file:
            file.seek(self.offset)
            left = self.size
            while left:
                piece = file.read(min(PIECE, left))
                if not piece:
                    raise SnapshotError(f"{self.file}: the file became shorter during the upload")
                left -= len(piece)
                yield piece


@dataclass(frozen=True)
class Request:
    method: str
    key: str = ""  # in the bucket
    query: Sequence[tuple[str, str]] = ()
    body: Body = field(default_factory=Body)

    @property
    def what(self) -> str:
        return f"{self.method} {self.key}" if self.key else self.method


class _Transient(Exception):
    """The request may succeed if it is repeated."""

    def __init__(self, error: S3Error) -> None:
        super().__init__(str(error))
        self.error = error


class _Socket(ssl.SSLSocket):
    """Each read and write ends at the deadline. Without it, a server that sends a byte from time to time, such as of
    a head or of a part of the content, would be waited for without end."""

    deadline = math.inf  # of the monotonic clock
    patience = 60.0

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        self._check_deadline()
        return super().recv_into(buffer, nbytes, flags)

    def send(self, data: Any, flags: int = 0) -> int:
        self._check_deadline()
        return super().send(data, flags)

    def _check_deadline(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(min(left, self.patience))


class _Deadline:
    """The time that a transfer may take, which grows with what has been transferred."""

    def __init__(self, sock: _Socket) -> None:
        self._socket = sock
        self._base = time.monotonic() + sock.patience

    def begin(self, transferred: int, piece: int) -> None:
        """Before the next piece of so many bytes."""
        self._socket.deadline = self._base + (transferred + piece) / SLOWEST

    def check(self, transferred: int) -> None:
        if time.monotonic() > self._base + transferred / SLOWEST:
            raise TimeoutError


class Answered:
    """The response to a request. The deadline covers the transfer of its body."""

    def __init__(self, response: http.client.HTTPResponse, deadline: _Deadline) -> None:
        self._response = response
        self._deadline = deadline
        self.length = int(response.headers.get("Content-Length") or 0)

    def header(self, name: str) -> str:
        return self._response.headers.get(name) or ""

    def pieces(self) -> Iterator[bytes]:
        received = 0
        while piece := self._piece(received, PIECE):
            received += len(piece)
            self._deadline.check(received)
            yield piece

    def read(self, limit: int = LIMIT) -> bytes:
        content = bytearray()
        while len(content) <= limit:
            piece = self._piece(len(content), min(PIECE, limit + 1 - len(content)))
            if not piece:
                return bytes(content)
            self._deadline.check(len(content))
            content += piece
        raise TooLarge(f"S3: an answer is larger than {limit} bytes")

    def beginning(self, limit: int) -> bytes:
        return self._piece(0, limit)

    def _piece(self, received: int, size: int) -> bytes:
        self._deadline.begin(received, size)
        return self._response.read(size)


class Connection:
    """One connection that is reused; it is opened again after a failure."""

    def __init__(self, config: S3Config, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.config = config
        self._credentials = Credentials(config.access_key, config.secret_key, config.region)
        self._context = _tls(config)
        self._sleep = sleep
        self._http: http.client.HTTPSConnection | None = None
        self._socket: _Socket | None = None
        self._spent = 0.0  # seconds, in requests that transfer no snapshot

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def exchange(self, request: Request, receive: Callable[[Answered], T], *, transfers: bool = False) -> T:
        """Send a request and pass its successful response to `receive`, which is called again after a reset.

        `transfers`: the request uploads or downloads a snapshot, whose size limits its time.
        """
        if self._spent > MAX_SECONDS:
            raise SnapshotError(
                f"S3 endpoint {self.config.endpoint}: has taken more than {MAX_SECONDS:g} s for requests without a "
                "snapshot; check the bucket for objects that do not belong there"
            )
        begun = time.monotonic()
        try:
            return self._repeat(request, receive)
        finally:
            self._spent += 0.0 if transfers else time.monotonic() - begun

    def _repeat(self, request: Request, receive: Callable[[Answered], T]) -> T:
        for attempt in range(ATTEMPTS):
            try:
                return self._exchange(request, receive)
            except _Transient as problem:
                if attempt == ATTEMPTS - 1:
                    raise problem.error from None
            self._sleep(FIRST_DELAY * 2**attempt * (1 + random.random() / 4))  # noqa: S311 - jitter
        raise AssertionError("unreachable")

    def _exchange(self, request: Request, receive: Callable[[Answered], T]) -> T:
        response = None
        try:
            response = self._send(request)
            answered = Answered(response, self._deadline())
            if 200 <= response.status < 300:
                return receive(answered)
            content = b"" if request.method == "HEAD" else answered.beginning(LIMIT)
            error = refusal(self.config, request.what, response.status, *error_of(content))
            if response.status >= 500:
                raise _Transient(error)
            raise error
        except (ConnectionResetError, BrokenPipeError) as error:  # RemoteDisconnected is a reset too
            raise _Transient(connection_failure(self.config, error)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, OSError) and error.filename:  # a file of this node
                raise
            raise connection_failure(self.config, error) from None
        finally:
            if response is None or not response.isclosed():  # the next answer would begin with the rest of this one
                if response is not None:
                    response.close()
                self.close()

    def _send(self, request: Request) -> http.client.HTTPResponse:
        http_connection = self._connection()
        path = encoded_path(self.config.bucket, request.key)
        query = encoded_query(request.query)
        deadline = self._deadline()
        deadline.begin(0, 0)
        http_connection.putrequest(
            request.method, f"{path}?{query}" if query else path, skip_host=True, skip_accept_encoding=True
        )
        for name, value in self._headers(request, path).items():
            http_connection.putheader(name, value)
        http_connection.endheaders()
        sent = 0
        try:
            for piece in request.body.pieces():
                deadline.begin(sent, len(piece))
                http_connection.send(piece)
                sent += len(piece)
                deadline.check(sent)
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses a request may answer and close before it has read the body.
            try:
                return self._head(http_connection)
            except (OSError, http.client.HTTPException):
                raise ConnectionResetError from None
        return self._head(http_connection)

    def _head(self, http_connection: http.client.HTTPSConnection) -> http.client.HTTPResponse:
        """Receive the head of the answer, and any number of interim answers before it."""
        self._deadline().begin(0, 0)
        return http_connection.getresponse()

    def _headers(self, request: Request, path: str) -> dict[str, str]:
        now = datetime.now(timezone.utc)
        headers = {
            "Host": self.config.endpoint,
            "Content-Length": str(request.body.size),
            "x-amz-content-sha256": request.body.sha256,
            "x-amz-date": timestamp(now),
        }
        unsigned = Unsigned(request.method, path, request.query, headers, request.body.sha256)
        return {**headers, "Authorization": authorization(unsigned, self._credentials, now)}

    def _connection(self) -> http.client.HTTPSConnection:
        """The connection, which is opened here: the deadlines are those of its socket."""
        if self._http is None or self._http.sock is None:  # the last answer has closed it
            self._http = http.client.HTTPSConnection(
                self.config.endpoint, timeout=self.config.timeout, context=self._context
            )
            self._http.connect()
            assert isinstance(self._http.sock, _Socket)
            self._socket = self._http.sock
            self._socket.patience = self.config.timeout
        return self._http

    def _deadline(self) -> _Deadline:
        assert self._socket is not None  # there is a connection
        return _Deadline(self._socket)


def _tls(config: S3Config) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _Socket
    context.verify_flags |= _PARTIAL_CHAIN
    if config.skip_ssl_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.endpoint_ca:
        try:
            context.load_verify_locations(cadata=config.endpoint_ca)
        except (ssl.SSLError, ValueError):
            raise SnapshotError("s3.endpointCA: contains no valid certificate") from None
    else:
        context.load_default_certs()
    return context
