"""API servers of in-memory clusters: one embedded API server each, with TLS on its own port.

A server takes some milliseconds to start and two megabytes of memory, and nothing while idle. Without a data directory
its objects live as long as the process, and the provider registers the Nodes again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from herder.api.inmemory.behavior import HANG, REFUSE, response_delay
from herder.api.inmemory.names import MAKE_AUTHORITY, SERVE_WORKLOAD, SET_WORKLOAD_FAULT, STOP_WORKLOAD
from herder.engine import certificates
from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.pki import ADMIN, Pki, client_certificate
from herder.engine.apiserver.request.limits import BODY_BYTES
from herder.engine.certificates import KeyPair
from herder.engine.client.addresses import is_elsewhere
from herder.engine.client.client import Client
from herder.engine.front.http import HttpFront
from herder.engine.runtime.effects import Performer
from herder.engine.wire import Request, Response
from herder.workload.authorities import make_authority, read_authority

SERVING_LIFE = timedelta(days=365)
REVISIONS_PER_SECOND = 1_000_000  # more than a server can write
_PORT_FILE = "port"
ClusterName = tuple[str, str]  # namespace, name


@dataclass(slots=True)
class _Workload:
    server: ApiServer
    pki: Pki
    port: int = 0
    fault: str = ""
    front: HttpFront | None = None


class Workloads:
    """Serves at `address`; data is in `data_dir`, or in memory only. `client` reads the CAs from the management
    cluster.

    Users administer their clusters: webhooks and Nodes that they define are called only at addresses that `may_dial`
    allows.
    """

    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], datetime],
        address: str = "127.0.0.1",
        data_dir: Path | None = None,
        may_dial: Callable[[str], bool] = is_elsewhere,
    ) -> None:
        self._client = client
        self._clock = clock
        self._address = address
        self._data_dir = data_dir
        self._may_dial = may_dial
        self._workloads: dict[ClusterName, _Workload] = {}
        self._ports = dict(_reserved(data_dir))
        self._locks: defaultdict[ClusterName, asyncio.Lock] = defaultdict(asyncio.Lock)

    def performers(self) -> dict[str, Performer]:
        return {
            MAKE_AUTHORITY: partial(make_authority, clock=self._clock),
            SERVE_WORKLOAD: self._serve,
            SET_WORKLOAD_FAULT: self._set_fault,
            STOP_WORKLOAD: self._stop,
        }

    def serves(self, host: str, port: int) -> bool:
        """Whether this is the address of one of the clusters."""
        return host == self._address and any(workload.port == port for workload in self._workloads.values())

    async def close(self) -> None:
        """Stop all servers; data directories are kept."""
        for workload in self._workloads.values():
            await _stop_workload(workload)
        self._workloads.clear()

    # --- effects ----------------------------------------------------------------------------------------------------

    async def _serve(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name = _cluster(arguments)
        async with self._locks[name]:
            workload = self._workloads.get(name)
            if workload is None:
                workload = await self._start(name, arguments["port"], arguments["fault"])
                self._workloads[name] = workload
            return {"host": self._address, "port": workload.port, "fault": workload.fault}

    async def _set_fault(self, arguments: Mapping[str, Any]) -> None:
        name = _cluster(arguments)
        async with self._locks[name]:
            workload = self._workloads.get(name)
            if workload is None:
                raise LookupError(f"the API of cluster {'/'.join(name)} is not served")
            if workload.fault != arguments["fault"]:
                await self._reopen(workload, arguments["fault"])

    async def _stop(self, arguments: Mapping[str, Any]) -> None:
        name = _cluster(arguments)
        async with self._locks[name]:
            workload = self._workloads.pop(name, None)
            if workload is not None:
                await _stop_workload(workload)
            self._ports = {port: owner for port, owner in self._ports.items() if owner != name}
            directory = self._directory(name)
            if directory is not None:
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    # --- servers ----------------------------------------------------------------------------------------------------

    async def _start(self, name: ClusterName, port: int, fault: str) -> _Workload:
        if (owner := self._ports.get(port, name)) != name:
            raise OSError(f"port {port} belongs to cluster {'/'.join(owner)}; remove spec.controlPlaneEndpoint")
        pki = self._pki(await read_authority(self._client, *name))
        # Revisions start from the clock, so they never fall behind those of an earlier server, and its watchers list
        # again.
        start = int(self._clock().timestamp() * REVISIONS_PER_SECOND)
        server = await assemble(
            self._directory(name), clock=self._clock, entropy=os.urandom, pki=pki, start=start, may_dial=self._may_dial
        )
        workload = _Workload(server, pki, port)
        try:
            await self._open(workload)  # Also for the fault REFUSE: the port is allocated and kept.
            if fault:
                await self._reopen(workload, fault)
        except OSError as error:
            await _stop_workload(workload)
            raise OSError(f"port {port} of {self._address}: {error.strerror}") from error
        except BaseException:
            await _stop_workload(workload)
            raise
        self._reserve(name, workload.port)
        return workload

    def _reserve(self, name: ClusterName, port: int) -> None:
        """Users choose the port of their cluster, which must stay reserved while the manager restarts."""
        self._ports[port] = name
        if (directory := self._directory(name)) is not None:
            (directory / _PORT_FILE).write_text(str(port))

    async def _reopen(self, workload: _Workload, fault: str) -> None:
        """Close open connections, as when a server or network fails."""
        if workload.front is not None:
            await workload.front.stop(grace=0)
            workload.front = None
        workload.fault = fault
        if fault != REFUSE:
            await self._open(workload)

    async def _open(self, workload: _Workload) -> None:
        front = HttpFront(_FaultyHandler(workload.server, workload.fault), clock=self._clock, body_bytes=BODY_BYTES)
        _, workload.port = await front.listen(self._address, workload.port, workload.pki.server_context())
        workload.front = front

    def _pki(self, authority: KeyPair) -> Pki:
        """Everything but the CA is regenerated at each start; service account tokens end with it."""
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


def _reserved(data_dir: Path | None) -> Iterator[tuple[int, ClusterName]]:
    """Ports of the clusters that a manager served here before."""
    for file in data_dir.glob(f"*/{_PORT_FILE}") if data_dir is not None else ():
        namespace, _, cluster = file.parent.name.partition("_")
        if (text := file.read_text()).isdecimal():
            yield int(text), (namespace, cluster)


class _FaultyHandler:
    """Delays or blocks requests to the API server, according to the fault."""

    receives_body = True

    def __init__(self, server: ApiServer, fault: str) -> None:
        self._server = server
        self._fault = fault

    async def handle(self, request: Request) -> Response:
        if self._fault == HANG:
            await asyncio.get_running_loop().create_future()
        if self._fault:
            await asyncio.sleep(response_delay(self._fault))
        return await self._server.handle(request)


async def _stop_workload(workload: _Workload) -> None:
    if workload.front is not None:
        await workload.front.stop(grace=0)
    await workload.server.stop()


def _cluster(arguments: Mapping[str, Any]) -> ClusterName:
    return arguments["namespace"], arguments["cluster"]
