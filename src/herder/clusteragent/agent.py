"""The agent: verifies the manager, keeps two tunnels connected, renews its credential, and serves a health endpoint."""

from __future__ import annotations

import asyncio
import logging
import ssl

from herder.api.management.names import AGENT_PREFIX
from herder.clusteragent import cluster
from herder.clusteragent.configuration import Configuration, ConfigurationError
from herder.clusteragent.dialer import Only, answer_pings
from herder.clusteragent.tokens import RegistrationTokens
from herder.clusteragent.trust import until_trusted
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import StatusError
from herder.tunnel.client import Backoff, Target, TunnelClient
from herder.tunnel.link import Link

log = logging.getLogger(__name__)

PAUSE_SECONDS = 5.0
AUTHORITIES_SECONDS = 60.0
"""How often the agent looks for other CA certificates of its cluster."""
REGISTER, CONNECT = "/v3/connect/register", "/v3/connect"


class _AuthoritiesChanged(Exception):
    """The CA certificates of the cluster are not those that the agent has reported."""


class Agent:
    def __init__(
        self,
        configuration: Configuration,
        *,
        pause: float = PAUSE_SECONDS,
        backoff: Backoff | None = None,
        authorities_interval: float = AUTHORITIES_SECONDS,
    ) -> None:
        self._configuration = configuration
        self._pause = pause
        self._backoff = backoff
        self._authorities_interval = authorities_interval
        self._context: ssl.SSLContext | None = None
        self._credential: cluster.Credential | None = None
        self._main: TunnelClient | None = None
        self._path = REGISTER  # until the manager has accepted the registration once
        self._tokens = RegistrationTokens(configuration.read_token)
        self._refused = False  # the last attempt did not lead to a tunnel

    @property
    def connected(self) -> bool:
        link = self._main.link if self._main else None
        return link is not None and link.alive

    async def run(self) -> None:
        """Run until cancelled. Raises errors that a retry cannot fix: `ConfigurationError`, `Untrusted`."""
        wanted = self._configuration
        own = cluster.connection(wanted.kubeconfig)
        health = await _serve_health(self, *wanted.health) if wanted.health else None
        try:
            self._context = await until_trusted(
                wanted.server, wanted.ca_checksum, strict=wanted.strict, pause=self._pause
            )
            while True:
                self._credential = await self._read_credential(own)
                try:
                    await self._keep_up(own)
                except* _AuthoritiesChanged:
                    log.info("the CA certificates of the cluster have changed; connecting again")
                own = cluster.connection(wanted.kubeconfig)
        finally:
            if health is not None:
                health.close()

    async def _keep_up(self, own: RestConfig) -> None:
        self._main = TunnelClient(
            self._target,
            # each dial is authorized individually, and refused without ending the session
            lambda _proto, _address: True,
            connected=self._connected,
            dial=Only({cluster.address(own), *self._configuration.allowed}),
            backoff=self._backoff,
        )
        second = TunnelClient(
            self._second_target, lambda _proto, _address: True, dial=answer_pings, backoff=self._backoff
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._main.run())
            group.create_task(second.run())
            group.create_task(self._renew(own))
            group.create_task(self._follow_authorities(own))
            group.create_task(cluster.follow_registration(own, self._tokens.replace, self._pause))

    # --- tunnel targets -------------------------------------------------------------------------------------------

    def _target(self) -> Target:
        assert self._credential is not None
        if self._refused:
            self._tokens.refused()
        self._refused = True  # until the tunnel is up
        headers = {
            "X-API-Tunnel-Token": self._tokens.current(),
            "X-API-Tunnel-Params": self._credential.parameters.encoded(),
        }
        return Target(self._configuration.tunnels + self._path, headers, self._context)

    def _second_target(self) -> Target:
        headers = {"Authorization": f"Bearer {AGENT_PREFIX}{self._tokens.current()}"}
        return Target(self._configuration.tunnels + CONNECT, headers, self._context)

    def _connected(self, _link: Link) -> None:
        self._path, self._refused = CONNECT, False

    # --- credential -----------------------------------------------------------------------------------------------

    async def _read_credential(self, own: RestConfig) -> cluster.Credential:
        while True:
            try:
                return await cluster.credential(own)
            except ConfigurationError:
                raise
            except (StatusError, OSError) as problem:
                log.warning("cannot reach the API server of the cluster: %s", problem)
            await asyncio.sleep(self._pause)

    async def _renew(self, own: RestConfig) -> None:
        """Renew an expiring credential early, and reconnect to pass it to the manager."""
        while self._credential is not None and self._credential.good_for is not None:
            await asyncio.sleep(self._credential.good_for)
            self._credential = await self._read_credential(own)
            if self._main is not None and self._main.link is not None:
                self._main.link.close("the credential is replaced")

    async def _follow_authorities(self, own: RestConfig) -> None:
        """End the connections if the cluster has other CAs: the manager must learn them while old ones are valid."""
        while True:
            await asyncio.sleep(self._authorities_interval)
            try:
                found = cluster.connection(self._configuration.kubeconfig)
            except (ConfigurationError, OSError) as problem:
                log.warning("cannot read the CA certificates of the cluster: %s", problem)
                continue
            if found.ca != own.ca:
                raise _AuthoritiesChanged


async def _serve_health(agent: Agent, host: str, port: int) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5.0):
                await reader.readuntil(b"\r\n\r\n")
            status, text = ("200 OK", "ok") if agent.connected else ("503 Service Unavailable", "not connected")
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n{text}".encode())
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=16 * 1024)
