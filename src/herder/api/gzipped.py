"""Gzip that another party wrote: a few bytes of it may unpack into gigabytes."""

from __future__ import annotations

import zlib

_GZIP = zlib.MAX_WBITS | 16


def gunzip(data: bytes, most: int) -> bytes:
    """The content, of which at most `most` bytes are ever held; ValueError for more, and for what is no gzip."""
    stream = zlib.decompressobj(wbits=_GZIP)
    try:
        content = stream.decompress(data, most)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if stream.unconsumed_tail:
        raise ValueError("too large")
    return content
