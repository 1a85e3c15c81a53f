"""gzip compression of large responses, off the event loop. Level 1, because most clients are on the same host or
network."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence

from herder.engine.wire import Request, Response

_MIN_BYTES = 128 << 10
_MAX_HEADER = 4096
_GZIP = 16 + zlib.MAX_WBITS


def compress_response(request: Request, response: Response) -> Response:
    """Compress the response if the client accepts gzip and the body is large enough."""
    if response.stream is not None or response.status not in (200, 201) or "content-encoding" in response.headers:
        return response
    if response.content_length() < _MIN_BYTES or not _accepts(request.headers.get("accept-encoding", "")):
        return response
    pieces = [response.body] if isinstance(response.body, bytes) else response.body
    response.headers["content-encoding"] = "gzip"
    response.headers["vary"] = "Accept-Encoding"
    response.retained = response.memory()
    response.stream = _compressed_chunks(pieces)
    response.body = b""
    return response


def _accepts(header: str) -> bool:
    return any(part.partition(";")[0].strip().lower() == "gzip" for part in header[:_MAX_HEADER].split(","))


async def _compressed_chunks(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    compressor = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    for piece in pieces:
        chunk = await asyncio.to_thread(compressor.compress, piece)
        if chunk:
            yield chunk
    yield compressor.flush()
