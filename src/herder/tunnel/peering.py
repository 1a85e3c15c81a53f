"""Peering between servers: each announces its clients to the others, which can dial through it.

The requesting server names the client in the protocol of its CONNECT: `<client key>::tcp`.
"""

from __future__ import annotations

from collections.abc import Callable

from herder.tunnel.client import Target, TunnelClient
from herder.tunnel.errors import TunnelError
from herder.tunnel.link import Link
from herder.tunnel.registry import Registry
from herder.tunnel.stream import Stream

_ANY_SESSION = 1  # peers only need to know which clients we can reach, not through which session


class Peering:
    """Connection to one other server, opened as a client."""

    def __init__(self, registry: Registry, target: Callable[[], Target]) -> None:
        self._registry = registry
        self._client = TunnelClient(target, _names_a_client, connected=self._announce_clients, dial=self._relay)

    async def run(self) -> None:
        """Run until cancelled."""
        stop = self._registry.listen(self._announce_change)
        try:
            await self._client.run()
        finally:
            stop()

    def _announce_clients(self, link: Link) -> None:
        for key in self._registry.clients():
            link.session.announce(key, _ANY_SESSION, present=True)

    def _announce_change(self, key: str, present: bool) -> None:
        link = self._client.link
        if link is not None and link.alive:
            link.session.announce(key, _ANY_SESSION, present=present)

    async def _relay(self, stream: Stream) -> None:
        key, _, proto = stream.proto.rpartition("::")
        try:
            target_stream = self._registry.dial_local(key, proto, stream.address)
        except (TunnelError, ValueError) as error:
            stream.abort(str(error))
        else:
            join(stream, target_stream)


def _names_a_client(proto: str, address: str) -> bool:
    return "::" in proto


def join(one: Stream, other: Stream) -> None:
    """Copy data between two streams in both directions."""
    for source, sink in ((one, other), (other, one)):
        source.observer = _OneWayCopy(source, sink)
    one.observer.received()
    other.observer.received()


class _OneWayCopy:
    """Copies what one stream receives to the other, with back-pressure."""

    def __init__(self, source: Stream, sink: Stream) -> None:
        self._source = source
        self._sink = sink
        self._full = False

    def received(self) -> None:
        if not self._sink.open or self._sink.closing:
            self._source.close()
            return
        while not self._full and (chunk := self._source.take()):
            self._full = not self._sink.send(chunk)
        if self._source.at_end:
            self._finish()

    def writable(self) -> None:
        """Resume the copy in the other direction, which writes to our source."""
        other = self._sink.observer
        if isinstance(other, _OneWayCopy):
            other.resume()

    def resume(self) -> None:
        self._full = False
        self.received()

    def ended(self) -> None:
        """Do nothing: `received` follows."""

    def _finish(self) -> None:
        try:
            self._source.raise_error()
        except TunnelError as error:
            self._sink.abort(str(error))
        else:
            self._sink.close()
