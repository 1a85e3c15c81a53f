"""gzip for large answers, off the event loop: level 1, since most clients are on the same host or network."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence

from herder.engine.client.wire import Request, Response

_SMALLEST = 128 << 10
_LONGEST_HEADER = 4096
_GZIP = 16 + zlib.MAX_WBITS


def compressed(request: Request, response: Response) -> Response:
    """The response, its body compressed where the client asked for it and it is worth it."""
    if response.stream is not None or response.status not in (200, 201) or "content-encoding" in response.headers:
        return response
    if response.content_length() < _SMALLEST or not _accepts(request.headers.get("accept-encoding", "")):
        return response
    pieces = [response.body] if isinstance(response.body, bytes) else response.body
    response.headers["content-encoding"] = "gzip"
    response.headers["vary"] = "Accept-Encoding"
    response.stream = _squeezed(pieces)
    response.body = b""
    return response


def _accepts(header: str) -> bool:
    return any(part.partition(";")[0].strip().lower() == "gzip" for part in header[:_LONGEST_HEADER].split(","))


async def _squeezed(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    squeeze = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    for piece in pieces:
        chunk = await asyncio.to_thread(squeeze.compress, piece)
        if chunk:
            yield chunk
    yield squeeze.flush()
