"""The APIs of in-memory clusters: one embedded API server each, on a port of its own, behind TLS.

A server costs some milliseconds to start and two megabytes to keep, and nothing while nobody asks it anything. Where
no directory is given, what a cluster stores lives as long as the process; whoever simulates its machines registers
their Nodes anew.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from herder.api.inmemory.behaviour import HANG, REFUSE, slowness
from herder.api.inmemory.names import MAKE_AUTHORITY, SERVE_WORKLOAD, SET_WORKLOAD_FAULT, STOP_WORKLOAD
from herder.engine import certificates
from herder.engine.apiserver.limits import BODY_BYTES
from herder.engine.apiserver.pki import ADMIN, Pki, client_certificate
from herder.engine.apiserver.server import ApiServer, assemble
from herder.engine.certificates import KeyPair
from herder.engine.client.client import Client
from herder.engine.client.wire import Request, Response
from herder.engine.front.http import HttpFront
from herder.engine.runtime.effects import Performer
from herder.workload.authorities import make_authority, read_authority

SERVING_LIFE = timedelta(days=365)
REVISIONS_PER_SECOND = 1_000_000  # more than a server writes, while it starts too
ClusterName = tuple[str, str]  # namespace and name


@dataclass(slots=True)
class _Workload:
    server: ApiServer
    pki: Pki
    port: int = 0
    fault: str = ""
    front: HttpFront | None = None


class Workloads:
    """Serves where `address` says; what the clusters store is in `data_dir`, or in memory alone.

    `client` is that of the management cluster, where the certificate authorities are.
    """

    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], datetime],
        address: str = "127.0.0.1",
        data_dir: Path | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._address = address
        self._data_dir = data_dir
        self._workloads: dict[ClusterName, _Workload] = {}
        self._turns: defaultdict[ClusterName, asyncio.Lock] = defaultdict(asyncio.Lock)

    def performers(self) -> dict[str, Performer]:
        return {
            MAKE_AUTHORITY: partial(make_authority, clock=self._clock),
            SERVE_WORKLOAD: self._serve,
            SET_WORKLOAD_FAULT: self._set_fault,
            STOP_WORKLOAD: self._stop,
        }

    def serves(self, host: str, port: int) -> bool:
        """Whether the API of one of the clusters is there."""
        return host == self._address and any(workload.port == port for workload in self._workloads.values())

    async def close(self) -> None:
        """All of them end; what is in a directory stays."""
        for workload in self._workloads.values():
            await _end(workload)
        self._workloads.clear()

    # --- effects ------------------------------------------------------------------------------------------------

    async def _serve(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name = _cluster(arguments)
        async with self._turns[name]:
            workload = self._workloads.get(name)
            if workload is None:
                workload = await self._start(name, arguments["port"], arguments["fault"])
                self._workloads[name] = workload
            return {"host": self._address, "port": workload.port, "fault": workload.fault}

    async def _set_fault(self, arguments: Mapping[str, Any]) -> None:
        name = _cluster(arguments)
        async with self._turns[name]:
            workload = self._workloads.get(name)
            if workload is None:
                raise LookupError(f"the API of cluster {'/'.join(name)} is not served")
            if workload.fault != arguments["fault"]:
                await self._reopen(workload, arguments["fault"])

    async def _stop(self, arguments: Mapping[str, Any]) -> None:
        name = _cluster(arguments)
        async with self._turns[name]:
            workload = self._workloads.pop(name, None)
            if workload is not None:
                await _end(workload)
            directory = self._directory(name)
            if directory is not None:
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    # --- one server ---------------------------------------------------------------------------------------------

    async def _start(self, name: ClusterName, port: int, fault: str) -> _Workload:
        pki = self._pki(await read_authority(self._client, *name))
        # Counted from the clock, revisions never fall behind those of a server that was here before, and whoever
        # watched that one lists anew.
        start = int(self._clock().timestamp() * REVISIONS_PER_SECOND)
        server = await assemble(self._directory(name), clock=self._clock, entropy=os.urandom, pki=pki, start=start)
        workload = _Workload(server, pki, port)
        try:
            await self._open(workload)  # also where connections are to be refused: the port is found and kept
            if fault:
                await self._reopen(workload, fault)
        except OSError as error:
            await _end(workload)
            raise OSError(f"port {port} of {self._address}: {error.strerror}") from error
        except BaseException:
            await _end(workload)
            raise
        return workload

    async def _reopen(self, workload: _Workload, fault: str) -> None:
        """Connections that are open end, as they do when a server or a network fails."""
        if workload.front is not None:
            await workload.front.stop(grace=0)
            workload.front = None
        workload.fault = fault
        if fault != REFUSE:
            await self._open(workload)

    async def _open(self, workload: _Workload) -> None:
        front = HttpFront(_Door(workload.server, workload.fault), clock=self._clock, body_bytes=BODY_BYTES)
        _, workload.port = await front.listen(self._address, workload.port, workload.pki.server_context())
        workload.front = front

    def _pki(self, authority: KeyPair) -> Pki:
        """All but the authority is made anew at each start; tokens of service accounts end with it."""
        now = self._clock()
        names = dict.fromkeys((self._address, "localhost", "127.0.0.1", "kubernetes.default.svc"))
        return Pki(
            authority=authority,
            serving=certificates.serving(authority, "kube-apiserver", names, now=now, life=SERVING_LIFE),
            admin=client_certificate(authority, ADMIN, ("system:masters",), now=now),
            service_accounts=ec.generate_private_key(ec.SECP256R1()),
        )

    def _directory(self, name: ClusterName) -> Path | None:
        return self._data_dir / "_".join(name) if self._data_dir is not None else None


class _Door:
    """In front of the API server: where a fault lets requests through late, or not at all."""

    receives_body = True

    def __init__(self, server: ApiServer, fault: str) -> None:
        self._server = server
        self._fault = fault

    async def handle(self, request: Request) -> Response:
        if self._fault == HANG:
            await asyncio.get_running_loop().create_future()
        if self._fault:
            await asyncio.sleep(slowness(self._fault))
        return await self._server.handle(request)


async def _end(workload: _Workload) -> None:
    if workload.front is not None:
        await workload.front.stop(grace=0)
    await workload.server.stop()


def _cluster(arguments: Mapping[str, Any]) -> ClusterName:
    return arguments["namespace"], arguments["cluster"]
