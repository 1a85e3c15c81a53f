"""Connection pool to clusters, and error mapping.

Each request carries its identity, so a connection belongs to a cluster and to no user.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from herder.engine.meta.errors import ServiceUnavailable, StatusError, Timeout
from herder.engine.wire import Check
from herder.gateway.proxy.rewrite import Outgoing
from herder.gateway.proxy.targets import Target
from herder.gateway.proxy.upstream.channel import Channel, Dial, TlsChannel
from herder.gateway.proxy.upstream.exchange import Exchange
from herder.tunnel.errors import NoSession, TunnelError

CONNECT_SECONDS = 20.0
ANSWER_SECONDS = 70.0  # until the response head; API servers time out after a minute
IDLE_SECONDS = 30.0
IDLE_CONNECTIONS = 8  # per cluster
RETRY_SECONDS = "1"  # kubectl retries ten times while a user waits

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})

Key = tuple[str, str, str]


async def unchecked() -> None:
    """Check of a request that may always be sent."""


@dataclass(slots=True, eq=False)
class _Idle:
    """An idle connection; it is dropped if data arrives or it closes."""

    channel: Channel
    monitor: asyncio.Task[object]
    expiry: asyncio.TimerHandle

    async def take(self) -> Channel | None:
        """The channel for reuse; None if it just closed."""
        self.expiry.cancel()
        self.monitor.cancel()
        try:
            await asyncio.wait([self.monitor])
        except BaseException:
            self.channel.close()
            raise
        if self.monitor.cancelled():
            return self.channel
        self.channel.close()
        return None

    def close(self) -> None:
        self.expiry.cancel()
        self.monitor.cancel()
        self.channel.close()


class Connections:
    """Pool of connections by cluster."""

    def __init__(self, dial: Dial, *, idle: int = IDLE_CONNECTIONS) -> None:
        """`idle`: how many connections of one cluster are kept for the next request."""
        self._dial = dial
        self._most_idle = idle
        self._idle: dict[Key, list[_Idle]] = {}
        self._contexts: dict[Key, ssl.SSLContext] = {}

    async def ask(
        self, target: Target, outgoing: Outgoing, *, fresh: bool = False, check: Check = unchecked
    ) -> Exchange:
        """Send a request and return the exchange with the response head. `finish` it, or close its channel. Raises
        StatusError.

        `check` is called when a connection exists, which can take some time, right before the request is sent on it.
        """
        idle_channel = None if fresh else await self._idle_channel(target)
        if idle_channel is not None:
            exchange = Exchange(idle_channel)
            try:
                return await self._send(target, exchange, outgoing, check)
            except StatusError:
                # The idle connection may have closed concurrently. Requests without a response can be retried once if
                # idempotent.
                if exchange.response_started or outgoing.method not in _REPEATABLE:
                    raise
        return await self._send(target, Exchange(await self._connected(target)), outgoing, check)

    def finish(self, target: Target, exchange: Exchange) -> None:
        """Return the connection after the response was read completely."""
        key = _key(target)
        is_known = target.context is not None or key in self._contexts  # Otherwise the cluster has changed meanwhile.
        if not is_known or not exchange.reusable or len(self._idle.get(key, ())) >= self._most_idle:
            exchange.channel.close()
            return
        self._idle.setdefault(key, []).append(self._park(key, exchange.channel))

    def forget(self, cluster: str) -> None:
        """Drop the connections of a deleted or changed cluster."""
        for key in [key for key in {*self._idle, *self._contexts} if key[0] == cluster]:
            self._contexts.pop(key, None)
            for idle in self._idle.pop(key, ()):
                idle.close()

    def close(self) -> None:
        for cluster in {key[0] for key in self._idle}:
            self.forget(cluster)

    # --- pool -------------------------------------------------------------------------------------------------------

    async def _idle_channel(self, target: Target) -> Channel | None:
        idle = self._idle.get(_key(target), [])
        while idle:
            channel = await idle.pop().take()
            if channel is not None:
                return channel
        return None

    def _park(self, key: Key, channel: Channel) -> _Idle:
        loop = asyncio.get_running_loop()

        def expire(_: object = None) -> None:
            if idle_channel in self._idle.get(key, ()):
                self._idle[key].remove(idle_channel)
                idle_channel.close()

        monitor = loop.create_task(_wait_closed(channel))
        idle_channel = _Idle(channel, monitor, loop.call_later(IDLE_SECONDS, expire))
        monitor.add_done_callback(expire)
        return idle_channel

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _send(self, target: Target, exchange: Exchange, outgoing: Outgoing, check: Check) -> Exchange:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await check()
                await exchange.ask(outgoing)
        except TimeoutError:
            exchange.channel.close()
            raise Timeout(f"cluster {target.cluster}: its API did not answer in time") from None
        except (OSError, TunnelError) as error:
            exchange.channel.close()
            raise connection_lost_error(target, error) from error
        except BaseException:
            exchange.channel.close()
            raise
        return exchange

    async def _connected(self, target: Target) -> Channel:
        context = self._context(target)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                channel = await self._dial(target.cluster, target.address)
                return await _start_tls(channel, context, target.server_name)
        except TimeoutError:
            raise Timeout(f"cluster {target.cluster}: its API at {target.address} did not answer in time") from None
        except NoSession as error:
            raise disconnected(target) from error
        except ssl.SSLError as error:
            raise _tls_error(target, error) from error
        except (OSError, TunnelError) as error:
            raise _unreachable(target, error) from error

    def _context(self, target: Target) -> ssl.SSLContext:
        if target.context is not None:
            return target.context
        key = _key(target)
        if key not in self._contexts:
            self.forget(target.cluster)  # an agent may report new CAs or addresses without limit
            self._contexts[key] = _tls_context(target)
        return self._contexts[key]


async def _wait_closed(channel: Channel) -> None:
    """Wait until the channel closes, for any reason."""
    try:
        await channel.receive()
    except (OSError, TunnelError):
        return


async def _start_tls(transport: Channel, context: ssl.SSLContext, server_name: str) -> Channel:
    channel = TlsChannel(transport, context, server_name)
    try:
        await channel.handshake()
    except BaseException:
        channel.close()
        raise
    return channel


def _tls_context(target: Target) -> ssl.SSLContext:
    """Trust only the cluster's own CA, never the system roots."""
    if not target.ca.strip():
        raise ServiceUnavailable(f"cluster {target.cluster}: its agent has not reported the CA of its API")
    try:
        context = ssl.create_default_context(cadata=target.ca)
    except (ssl.SSLError, ValueError):
        raise ServiceUnavailable(f"cluster {target.cluster}: the CA reported by its agent is not valid PEM") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _key(target: Target) -> Key:
    return target.cluster, target.address, target.ca


# --- failures -------------------------------------------------------------------------------------------------------


def disconnected(target: Target) -> StatusError:
    since = f" since {target.disconnected_since}" if target.disconnected_since else ""
    message = f"cluster {target.cluster}: cluster agent disconnected{since}"
    return ServiceUnavailable(message, headers={"retry-after": RETRY_SECONDS})


def _tls_error(target: Target, error: ssl.SSLError) -> StatusError:
    where = f"cluster {target.cluster}: its API at {target.address}"
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"{where} has an untrusted certificate: {error.verify_message}"
    else:
        message = f"{where} TLS handshake failed: {error.reason}"
    return StatusError(message, code=502, reason="BadGateway")


def _unreachable(target: Target, error: Exception) -> StatusError:
    message = f"cluster {target.cluster}: its API at {target.address} cannot be reached: {error}"
    return StatusError(message, code=502, reason="BadGateway", headers={"retry-after": RETRY_SECONDS})


def connection_lost_error(target: Target, error: Exception) -> StatusError:
    """The outcome of the request is unknown: the caller must check before retrying."""
    message = f"cluster {target.cluster}: connection to its API lost: {error}"
    return StatusError(message, code=502, reason="BadGateway")
