"""Servers that share the work: each tells the others which clients it has, and dials through them when asked to.

The asking server names the client in the protocol of its CONNECT: `<client key>::tcp`.
"""

from __future__ import annotations

from collections.abc import Callable

from herder.tunnel.client import Target, TunnelClient
from herder.tunnel.errors import TunnelError
from herder.tunnel.link import Link
from herder.tunnel.registry import Registry
from herder.tunnel.stream import Stream

_ANY_SESSION = 1  # a peer wants to know whom we can reach; through which of our sessions is our own affair


class Peering:
    """Our side of the connection to one other server, which we open as a client."""

    def __init__(self, registry: Registry, target: Callable[[], Target]) -> None:
        self._registry = registry
        self._client = TunnelClient(target, _names_a_client, connected=self._introduce, dial=self._relay)

    async def run(self) -> None:
        """Until cancelled."""
        stop = self._registry.listen(self._changed)
        try:
            await self._client.run()
        finally:
            stop()

    def _introduce(self, link: Link) -> None:
        for key in self._registry.clients():
            link.session.announce(key, _ANY_SESSION, present=True)

    def _changed(self, key: str, present: bool) -> None:
        link = self._client.link
        if link is not None and link.alive:
            link.session.announce(key, _ANY_SESSION, present=present)

    async def _relay(self, stream: Stream) -> None:
        key, _, proto = stream.proto.rpartition("::")
        try:
            onward = self._registry.dial_own(key, proto, stream.address)
        except (TunnelError, ValueError) as error:
            stream.abort(str(error))
        else:
            join(stream, onward)


def _names_a_client(proto: str, address: str) -> bool:
    return "::" in proto


def join(one: Stream, other: Stream) -> None:
    for source, sink in ((one, other), (other, one)):
        source.observer = _Half(source, sink)
    one.observer.received()
    other.observer.received()


class _Half:
    """Carries what one stream receives into the other, as fast as that takes it."""

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
        """There is room in our source for what its sink receives: the other half goes on."""
        half = self._sink.observer
        if isinstance(half, _Half):
            half.go_on()

    def go_on(self) -> None:
        self._full = False
        self.received()

    def ended(self) -> None:
        """`received` follows."""

    def _finish(self) -> None:
        try:
            self._source.raise_error()
        except TunnelError as error:
            self._sink.abort(str(error))
        else:
            self._sink.close()
