"""Restrict what the manager can dial through the agent: the API server, and explicitly allowed addresses.

A denied dial fails by itself; the tunnel stays up for others.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from herder.tunnel import pipe
from herder.tunnel.limits import DEFAULT
from herder.tunnel.stream import Stream

log = logging.getLogger(__name__)

_PONG = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\nConnection: close\r\n\r\npong"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_MOST_HEAD = 16 * 1024


class Only:
    """Dials only these addresses."""

    def __init__(self, addresses: Collection[str]) -> None:
        self._addresses = {each.lower() for each in addresses}

    async def __call__(self, stream: Stream) -> None:
        if stream.proto != "tcp" or stream.address.lower() not in self._addresses:
            log.warning(
                "refused to dial %s %s for the manager; add it with --allow", stream.proto, stream.address[:200]
            )
            stream.abort(f"dial {stream.proto} {stream.address}: not allowed by the cluster's agent")
            return
        await pipe.dial(stream, DEFAULT.dial)


async def answer_pings(stream: Stream) -> None:
    """The second tunnel dials nothing: the agent itself answers `GET /ping`."""
    stream.observer = _Pings(stream)
    stream.observer.received()


class _Pings:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._head = b""

    def received(self) -> None:
        while chunk := self._stream.take():
            self._head += bytes(chunk)
            if b"\r\n\r\n" in self._head or len(self._head) > _MOST_HEAD:
                asked = self._head.split(b" ", 2)[:2]
                self._stream.send(_PONG if asked == [b"GET", b"/ping"] else _NOT_FOUND)
                self._stream.close()
                return

    def writable(self) -> None: ...

    def ended(self) -> None: ...
