"""Bounded gzip decompression of untrusted input: a few bytes may expand to gigabytes."""

from __future__ import annotations

import zlib

_GZIP = zlib.MAX_WBITS | 16


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """Decompress at most `max_bytes`; raise ValueError if the content is larger, or not gzip."""
    stream = zlib.decompressobj(wbits=_GZIP)
    try:
        content = stream.decompress(data, max_bytes)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if stream.unconsumed_tail:
        raise ValueError("too large")
    return content
