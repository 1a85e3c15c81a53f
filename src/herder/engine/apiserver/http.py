"""The HTTPS front: sockets in, requests out. The only module that knows the HTTP library's server side.

HTTP/1.1 over TLS with optional client certificates. Bodies are bounded before they are read, streams are written as
they come, and a stop ends watches first, so that connections close by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict

from herder.engine.apiserver.limits import BODY_BYTES
from herder.engine.apiserver.pipeline import ApiServer
from herder.engine.client.wire import Query, Request, Response
from herder.engine.meta.errors import BadRequest, RequestEntityTooLarge, StatusError

log = logging.getLogger(__name__)

_GRACE_SECONDS = 5.0

# A handler that takes over the connection itself (an upgraded one): True where it did.
Upgrade = Callable[[web.BaseRequest, Request], Awaitable[web.StreamResponse | None]]


class HttpFront:
    """Serves one ApiServer on one address."""

    def __init__(self, server: ApiServer, *, upgrade: Upgrade | None = None) -> None:
        self._server = server
        self._upgrade = upgrade
        self._web = web.Server(
            self._handle,
            handler_cancellation=True,  # a watch ends when its client goes away
            access_log=None,
            keepalive_timeout=75,
            max_line_size=64 << 10,
            max_field_size=64 << 10,
            auto_decompress=True,
        )
        self._listening: asyncio.Server | None = None

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._web, host, port, ssl=context, backlog=1024, reuse_address=True)
        address = self._listening.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def stop(self) -> None:
        """Stop accepting; let requests finish for a while. The API server's own stop ends the watches."""
        if self._listening is not None:
            self._listening.close()
        await self._web.shutdown(_GRACE_SECONDS)

    # --- one request ------------------------------------------------------------------------------------------

    async def _handle(self, incoming: web.BaseRequest) -> web.StreamResponse:
        try:
            request = await _read(incoming)
        except StatusError as error:
            return _immediate(error)
        if self._upgrade is not None and "upgrade" in request.headers.get("connection", "").lower():
            taken = await self._upgrade(incoming, request)
            if taken is not None:
                return taken
        response = await self._server.handle(request)
        return await _write(incoming, response)


async def _read(incoming: web.BaseRequest) -> Request:
    try:
        path, query = incoming.path, Query.parse(incoming.query_string) if incoming.query_string else Query()
    except ValueError as error:
        raise BadRequest(f"invalid URL: {error}") from None
    if "\x00" in path:
        raise BadRequest("invalid URL: the path contains a NUL character")
    headers: dict[str, str] = {}
    for name, value in incoming.headers.items():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Request(
        method=incoming.method,
        path=path,
        query=query,
        headers=headers,
        body=await _body(incoming) if incoming.body_exists else b"",
        remote=incoming.remote or "",
        client_certificate=_certificate(incoming.transport),
    )


async def _body(incoming: web.BaseRequest) -> bytes:
    announced = incoming.content_length
    if announced is not None and announced > BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async for chunk in incoming.content.iter_any():
            body += chunk
            if len(body) > BODY_BYTES:
                raise _too_large()
    except (web.PayloadAccessError, HttpProcessingError, ValueError) as error:
        raise BadRequest(f"the body of the request could not be read: {error}") from None
    return bytes(body)


def _too_large() -> RequestEntityTooLarge:
    return RequestEntityTooLarge(f"Request entity too large: limit is {BODY_BYTES}")


def _certificate(transport: Any) -> bytes | None:
    """The peer's verified certificate, looked up once for each connection."""
    if transport is None:
        return None
    session = transport.get_extra_info("ssl_object")
    if session is None:
        return None
    try:
        return session.herder_certificate  # type: ignore[no-any-return]
    except AttributeError:
        found: bytes | None = session.getpeercert(binary_form=True)
        with suppress(AttributeError):
            session.herder_certificate = found
        return found


def _immediate(error: StatusError) -> web.Response:
    from herder.engine.apiserver.stored import encode

    response = web.Response(status=error.code, body=encode(error.to_status()), content_type="application/json")
    response.force_close()
    return response


# --- answers ------------------------------------------------------------------------------------------------------


async def _write(incoming: web.BaseRequest, response: Response) -> web.StreamResponse:
    headers: CIMultiDict[str] = CIMultiDict(response.headers)
    for text in response.warnings:
        headers.add("warning", f"299 - {_quoted(text)}")
    if response.stream is not None:
        return await _stream(incoming, response, headers)
    body = response.body
    if isinstance(body, bytes):
        return web.Response(status=response.status, headers=headers, body=body)
    outgoing = web.StreamResponse(status=response.status, headers=headers)
    outgoing.content_length = sum(map(len, body))
    await outgoing.prepare(incoming)
    for piece in body:
        await outgoing.write(piece)
    await outgoing.write_eof()
    return outgoing


async def _stream(incoming: web.BaseRequest, response: Response, headers: CIMultiDict[str]) -> web.StreamResponse:
    assert response.stream is not None
    outgoing = web.StreamResponse(status=response.status, headers=headers)
    outgoing.enable_chunked_encoding()
    chunks: AsyncIterator[bytes] = response.stream
    try:
        await outgoing.prepare(incoming)
        async for chunk in chunks:
            await outgoing.write(chunk)
        await outgoing.write_eof()
    except (ConnectionError, asyncio.CancelledError):
        if asyncio.current_task() is not None and asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
    return outgoing


def _quoted(text: str) -> str:
    """A quoted-string of RFC 7230; what cannot be in one is dropped."""
    printable = "".join(character for character in text if character.isprintable())
    return '"' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'
