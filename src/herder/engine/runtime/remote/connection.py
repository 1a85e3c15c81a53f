"""One connection to a downstream cluster: made, listened to, probed when silent, and made anew when it has failed.

Whatever the cluster says counts as a sign of life, so a busy connection is never probed. A connection is given up
after several probes without an answer, or at once when the cluster refuses the credentials or others are to be used:
addresses and credentials change, and whoever connects looks them up again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

from herder.engine.client.client import Client
from herder.engine.control.tasks import Tasks
from herder.engine.logs import get_logger
from herder.engine.runtime.remote.transport import REQUEST_SECONDS, ClusterTransport, in_words
from herder.engine.runtime.view import Connection

log = get_logger(__name__)

Connector = Callable[[str], Awaitable[Client]]
"""Opens a connection to a cluster by name: from its kubeconfig Secret, directly or through a tunnel."""

SILENCE_SECONDS = 10.0
"""Without a sign of life, until the cluster is asked for one; and from one such question to the next."""
FAILED_PROBES = 5
RETRY_FIRST_SECONDS, RETRY_SECONDS = 1.0, 30.0
"""From one try to the next, at first and after many: a cluster that is only starting is reached soon after it has."""


class ClusterConnection:
    def __init__(
        self,
        cluster: str,
        connect: Connector,
        *,
        clock: Callable[[], datetime],
        opened: Callable[[Client], None],
        dropped: Callable[[], None],
        on_edge: Callable[[], None],
    ) -> None:
        self.cluster = cluster
        self.client: Client | None = None  # while there is one that works, as far as is known
        self.since = clock()
        self.heard: datetime | None = None
        self.reason = ""
        self._connect = connect
        self._clock = clock
        self._opened = opened
        self._dropped = dropped
        self._on_edge = on_edge  # the cluster has begun to answer, or has ceased to
        self._credential = ""  # as it was last told
        self._used = ""  # as it was when the connection was opened
        self._refused = False
        self._has_reported = False
        self._stir = asyncio.Event()  # set when either of them changes
        self._opened_at = 0.0  # these on the loop's clock
        self._heard_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.spawn(self._run(), name=f"connection to {self.cluster}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def state(self) -> Connection:
        return Connection(self.since, self.heard, self.reason)

    def use(self, credential: str) -> None:
        """Connect anew unless these are the credentials in use; told for the first time, they are taken to be."""
        if credential != self._credential:
            self._credential = credential
            if self.client is not None:
                self._used = self._used or credential
            self._stir.set()

    # --- the life of a link -------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause = RETRY_FIRST_SECONDS
        while True:
            began = loop.time()
            failure = await self._once()
            if loop.time() - began >= RETRY_SECONDS:
                pause = RETRY_FIRST_SECONDS  # it did work for a while
            if failure:
                self._report(failure)
                await self._pause(RETRY_SECONDS if self._refused else min(pause, RETRY_SECONDS))
                pause = min(pause * 2, RETRY_SECONDS)

    async def _once(self) -> str:
        """One connection, from its opening until it is given up: why, or nothing where another is to follow at once."""
        self._used, self._refused = self._credential, False
        self._stir.clear()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                client = await self._connect(self.cluster)
        except Exception as error:
            # Whatever it is (a dialer's own errors too), it is this cluster's trouble, and told as such.
            return in_words(error)
        line = ClusterTransport(client.transport, self.cluster, heard=self._hear, refused=self._refuse)
        try:
            return await line.probe() or await self._keep(line, client.field_manager)
        except Exception as error:
            # A mistake of ours. It must not be the end of all that concerns this cluster.
            log.error("connection failed", cluster=self.cluster, exc_info=error)
            return in_words(error)
        finally:
            self.client = None
            self._dropped()
            with suppress(Exception):  # it is given up: how it ends changes nothing
                await line.close()

    async def _keep(self, line: ClusterTransport, field_manager: str) -> str:
        self._opened_at = asyncio.get_running_loop().time()
        self._used = self._used or self._credential  # told only meanwhile: what whoever connected looked up
        self.client = Client(line, field_manager=field_manager)
        self._report("")
        self._opened(self.client)
        return await self._attend(line)

    async def _attend(self, line: ClusterTransport) -> str:
        """Until the cluster has not answered for long, or other credentials are to be used."""
        loop = asyncio.get_running_loop()
        failures = 0
        ask_at = self._heard_at + SILENCE_SECONDS
        while not self._refused and self._used == self._credential:
            await self._stirred(ask_at - loop.time())
            if self._heard_at + SILENCE_SECONDS > loop.time():
                failures, ask_at = 0, self._heard_at + SILENCE_SECONDS
            elif loop.time() >= ask_at:
                ask_at = loop.time() + SILENCE_SECONDS
                failure = await line.probe()
                failures = failures + 1 if failure else 0
                if failures == FAILED_PROBES:
                    return failure
        if self._refused and loop.time() - self._opened_at < RETRY_SECONDS:
            return "the cluster does not accept the credentials"  # new ones would not help, these are hardly older
        return ""

    async def _pause(self, seconds: float) -> None:
        """Before another try; other credentials end it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._used == self._credential and loop.time() < until:
            await self._stirred(until - loop.time())

    async def _stirred(self, within: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(within, 0.0)):
                await self._stir.wait()
        self._stir.clear()

    # --- what is heard and told ---------------------------------------------------------------------------------

    def _hear(self) -> None:
        self.heard = self._clock()
        self._heard_at = asyncio.get_running_loop().time()

    def _refuse(self) -> None:
        self._refused = True
        self._stir.set()

    def _report(self, reason: str) -> None:
        news = bool(reason) != bool(self.reason) or not (reason or self._has_reported)
        self.reason, self._has_reported = reason, True
        if news:
            if reason:
                log.warning("cluster does not answer", cluster=self.cluster, reason=reason)
            else:
                log.info("cluster answers", cluster=self.cluster)
            self._on_edge()
