"""Connections to clusters: dialled, secured, kept for the next request of anybody, and their failures in plain words.

Who asks is told with each request, so a connection belongs to a cluster and to no user.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from herder.engine.meta.errors import ServiceUnavailable, StatusError, Timeout
from herder.gateway.proxy.channels import Channel, Dial, TlsChannel
from herder.gateway.proxy.exchange import Exchange
from herder.gateway.proxy.rebuilding import Outgoing
from herder.gateway.proxy.targets import Target
from herder.tunnel.errors import NoSession, TunnelError

CONNECT_SECONDS = 20.0
ANSWER_SECONDS = 70.0  # until the head is there; API servers give up after a minute themselves
IDLE_SECONDS = 30.0
IDLE_CONNECTIONS = 8  # of one cluster
RETRY_SECONDS = "1"  # kubectl tries ten times, and a person waits for it

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})

Key = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class _Idle:
    """A kept connection. Nothing may come on it: if something does, or it ends, it is not kept any longer."""

    channel: Channel
    watching: asyncio.Task[object]
    expiry: asyncio.TimerHandle

    async def take(self) -> Channel | None:
        """The channel, for one reader again; None where it broke just now."""
        self.expiry.cancel()
        self.watching.cancel()
        try:
            await asyncio.wait([self.watching])
        except BaseException:
            self.channel.close()
            raise
        if self.watching.cancelled():
            return self.channel
        self.channel.close()
        return None

    def close(self) -> None:
        self.expiry.cancel()
        self.watching.cancel()
        self.channel.close()


class Connections:
    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._idle: dict[Key, list[_Idle]] = {}
        self._contexts: dict[Key, ssl.SSLContext] = {}

    async def ask(self, target: Target, outgoing: Outgoing, *, fresh: bool = False) -> Exchange:
        """The exchange with the head of its answer. `finish` it, or close its channel. Raises StatusError."""
        kept = None if fresh else await self._kept(target)
        if kept is not None:
            exchange = Exchange(kept)
            try:
                return await self._asked(target, exchange, outgoing)
            except StatusError:
                # It may have ended just when it was used again. What was surely not begun can be asked once more.
                if exchange.begun or outgoing.method not in _REPEATABLE:
                    raise
        return await self._asked(target, Exchange(await self._connected(target)), outgoing)

    def finish(self, target: Target, exchange: Exchange) -> None:
        """After the last of an answer was read."""
        idle = self._idle.setdefault(_key(target), [])
        if not exchange.reusable or len(idle) >= IDLE_CONNECTIONS:
            exchange.channel.close()
            return
        idle.append(self._keep(_key(target), exchange.channel))

    def forget(self, cluster: str) -> None:
        """It is gone, or is not the same as before."""
        for key in [key for key in {*self._idle, *self._contexts} if key[0] == cluster]:
            self._contexts.pop(key, None)
            for idle in self._idle.pop(key, ()):
                idle.close()

    def close(self) -> None:
        for cluster in {key[0] for key in self._idle}:
            self.forget(cluster)

    # --- keeping ------------------------------------------------------------------------------------------------------

    async def _kept(self, target: Target) -> Channel | None:
        idle = self._idle.get(_key(target), [])
        while idle:
            channel = await idle.pop().take()
            if channel is not None:
                return channel
        return None

    def _keep(self, key: Key, channel: Channel) -> _Idle:
        loop = asyncio.get_running_loop()

        def over(_: object = None) -> None:
            if kept in self._idle.get(key, ()):
                self._idle[key].remove(kept)
                kept.close()

        watching = loop.create_task(_silence(channel))
        kept = _Idle(channel, watching, loop.call_later(IDLE_SECONDS, over))
        watching.add_done_callback(over)
        return kept

    # --- asking -------------------------------------------------------------------------------------------------------

    async def _asked(self, target: Target, exchange: Exchange, outgoing: Outgoing) -> Exchange:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await exchange.ask(outgoing)
        except TimeoutError:
            exchange.channel.close()
            raise Timeout(f"cluster {target.cluster}: its API did not answer in time") from None
        except (OSError, TunnelError) as error:
            exchange.channel.close()
            raise broken_off(target, error) from error
        except BaseException:
            exchange.channel.close()
            raise
        return exchange

    async def _connected(self, target: Target) -> Channel:
        context = self._context(target)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                channel = await self._dial(target.cluster, target.address)
                return await _secured(channel, context, target.server_name)
        except TimeoutError:
            raise Timeout(f"cluster {target.cluster}: its API at {target.address} did not answer in time") from None
        except NoSession as error:
            raise disconnected(target) from error
        except ssl.SSLError as error:
            raise _not_trusted(target, error) from error
        except (OSError, TunnelError) as error:
            raise _unreachable(target, error) from error

    def _context(self, target: Target) -> ssl.SSLContext:
        if target.context is not None:
            return target.context
        key = _key(target)
        if key not in self._contexts:
            self._contexts[key] = _trusting(target)
        return self._contexts[key]


async def _silence(channel: Channel) -> None:
    """Until it is broken. How does not matter."""
    try:
        await channel.receive()
    except (OSError, TunnelError):
        return


async def _secured(below: Channel, context: ssl.SSLContext, server_name: str) -> Channel:
    channel = TlsChannel(below, context, server_name)
    try:
        await channel.shake_hands()
    except BaseException:
        channel.close()
        raise
    return channel


def _trusting(target: Target) -> ssl.SSLContext:
    """Without roots of its own a cluster is not trusted; the system's are no substitute."""
    if not target.ca.strip():
        raise ServiceUnavailable(f"cluster {target.cluster}: its agent has not told by which CA to know its API")
    try:
        context = ssl.create_default_context(cadata=target.ca)
    except (ssl.SSLError, ValueError):
        raise ServiceUnavailable(f"cluster {target.cluster}: what its agent told as its CA is none in PEM") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _key(target: Target) -> Key:
    return target.cluster, target.address, target.ca


# --- failures ---------------------------------------------------------------------------------------------------------


def disconnected(target: Target) -> StatusError:
    since = f" since {target.disconnected_since}" if target.disconnected_since else ""
    message = f"cluster {target.cluster}: cluster agent disconnected{since}"
    return ServiceUnavailable(message, headers={"retry-after": RETRY_SECONDS})


def _not_trusted(target: Target, error: ssl.SSLError) -> StatusError:
    where = f"cluster {target.cluster}: its API at {target.address}"
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"{where} shows a certificate that is not trusted: {error.verify_message}"
    else:
        message = f"{where} does not speak TLS as it should: {error.reason}"
    return StatusError(message, code=502, reason="BadGateway")


def _unreachable(target: Target, error: Exception) -> StatusError:
    message = f"cluster {target.cluster}: its API at {target.address} cannot be reached: {error}"
    return StatusError(message, code=502, reason="BadGateway", headers={"retry-after": RETRY_SECONDS})


def broken_off(target: Target, error: Exception) -> StatusError:
    """Nobody knows whether the request was carried out: it is the caller's to look before trying again."""
    message = f"cluster {target.cluster}: the connection to its API broke off: {error}"
    return StatusError(message, code=502, reason="BadGateway")
