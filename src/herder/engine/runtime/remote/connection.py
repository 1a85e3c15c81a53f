"""Connection to one downstream cluster: open it, probe it when idle, and reconnect after failures.

Any response counts as a sign of life, so a busy connection is never probed. A connection is closed after several failed
probes, or immediately when the cluster rejects the credentials or they change. Addresses and credentials change, so the
connector looks them up again for each attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

from herder.engine.client.client import Client
from herder.engine.control.tasks import Tasks
from herder.engine.logs import get_logger
from herder.engine.runtime.remote.transport import REQUEST_SECONDS, ClusterTransport, error_message
from herder.engine.runtime.view import ConnectionStatus

log = get_logger(__name__)

Connector = Callable[[str], Awaitable[Client]]
"""Opens a connection to a cluster by name, from its kubeconfig Secret, directly or through a tunnel."""

PROBE_INTERVAL_SECONDS = 10.0
"""Idle time before a probe, and the interval between probes."""
FAILED_PROBES = 5
WARN_ATTEMPTS = 3
"""Failed attempts before a warning: agents need a few seconds to connect again after a restart of the manager."""
RETRY_FIRST_SECONDS, RETRY_SECONDS = 1.0, 30.0
"""Initial and maximum delay between attempts. The initial delay is short, so that a starting cluster is reached
soon."""


class ClusterConnection:
    """Keeps a connection to one cluster, and reports when its health changes."""

    def __init__(
        self,
        cluster: str,
        connect: Connector,
        *,
        clock: Callable[[], datetime],
        opened: Callable[[Client], None],
        dropped: Callable[[], None],
        on_health_change: Callable[[], None],
    ) -> None:
        self.cluster = cluster
        self.client: Client | None = None  # set while connected
        self.since = clock()
        self.last_contact: datetime | None = None
        self.reason = ""
        self._connect = connect
        self._clock = clock
        self._opened = opened
        self._dropped = dropped
        self._on_health_change = on_health_change  # called when the cluster starts or stops responding
        self._credential = ""  # latest version of the credentials
        self._used_credential = ""  # version that the connection was opened with
        self._rejected = False
        self._failed_attempts = 0
        self._has_reported = False
        self._changed = asyncio.Event()  # set when credentials change or are rejected
        self._opened_at = 0.0  # event loop time, as the next one
        self._last_contact_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.spawn(self._run(), name=f"connection to {self.cluster}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def state(self) -> ConnectionStatus:
        return ConnectionStatus(self.since, self.last_contact, self.reason)

    def use(self, credential: str) -> None:
        """Reconnect unless this is the version of the credentials in use; the first known version is assumed to be."""
        if credential != self._credential:
            self._credential = credential
            if self.client is not None:
                self._used_credential = self._used_credential or credential
            self._changed.set()

    # --- connection lifecycle -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause = RETRY_FIRST_SECONDS
        while True:
            started = loop.time()
            failure = await self._run_once()
            if loop.time() - started >= RETRY_SECONDS:
                pause = RETRY_FIRST_SECONDS  # the connection worked for a while
            self._failed_attempts = self._failed_attempts + 1 if failure else 0
            if failure:
                self._report(failure)
                await self._pause(RETRY_SECONDS if self._rejected else min(pause, RETRY_SECONDS))
                pause = min(pause * 2, RETRY_SECONDS)

    async def _run_once(self) -> str:
        """Open one connection and use it until it fails. Returns the error, or an empty string to reconnect
        immediately."""
        self._used_credential, self._rejected = self._credential, False
        self._changed.clear()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                client = await self._connect(self.cluster)
        except Exception as error:
            # Any error, including those of a dialer, is reported as the state of this cluster.
            return error_message(error)
        transport = ClusterTransport(
            client.transport, self.cluster, on_contact=self._record_contact, on_unauthorized=self._reject_credentials
        )
        try:
            return await transport.probe() or await self._use_transport(transport, client.field_manager)
        except Exception as error:
            # A bug of ours must not stop the connection of this cluster for good.
            log.error("connection failed", cluster=self.cluster, exc_info=error)
            return error_message(error)
        finally:
            self.client = None
            self._dropped()
            with suppress(Exception):  # errors on close do not matter
                await transport.close()

    async def _use_transport(self, transport: ClusterTransport, field_manager: str) -> str:
        self._opened_at = asyncio.get_running_loop().time()
        self._used_credential = (
            self._used_credential or self._credential
        )  # published while connecting: the connector used it
        self.client = Client(transport, field_manager=field_manager)
        self._failed_attempts = 0
        self._report("")
        self._opened(self.client)
        return await self._monitor(transport)

    async def _monitor(self, transport: ClusterTransport) -> str:
        """Return when the cluster has not responded for several probes, or when the credentials change."""
        loop = asyncio.get_running_loop()
        failures = 0
        probe_at = self._last_contact_at + PROBE_INTERVAL_SECONDS
        while not self._rejected and self._used_credential == self._credential:
            await self._wait_changed(probe_at - loop.time())
            if self._last_contact_at + PROBE_INTERVAL_SECONDS > loop.time():
                failures, probe_at = 0, self._last_contact_at + PROBE_INTERVAL_SECONDS
            elif loop.time() >= probe_at:
                probe_at = loop.time() + PROBE_INTERVAL_SECONDS
                failure = await transport.probe()
                failures = failures + 1 if failure else 0
                if failures == FAILED_PROBES:
                    return failure
        if self._rejected and loop.time() - self._opened_at < RETRY_SECONDS:
            return "credentials rejected by the cluster"  # looking them up again would not help yet
        return ""

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; changed credentials end the wait."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._used_credential == self._credential and loop.time() < until:
            await self._wait_changed(until - loop.time())

    async def _wait_changed(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._changed.wait()
        self._changed.clear()

    # --- health -------------------------------------------------------------------------------------------------

    def _record_contact(self) -> None:
        self.last_contact = self._clock()
        self._last_contact_at = asyncio.get_running_loop().time()

    def _reject_credentials(self) -> None:
        self._rejected = True
        self._changed.set()

    def _report(self, reason: str) -> None:
        is_change = bool(reason) != bool(self.reason) or not (reason or self._has_reported)
        self.reason, self._has_reported = reason, True
        if self._failed_attempts == WARN_ATTEMPTS and reason:
            log.warning("cluster is unreachable", cluster=self.cluster, reason=reason)
        if is_change:
            if not reason:
                log.info("cluster is reachable", cluster=self.cluster)
            self._on_health_change()
