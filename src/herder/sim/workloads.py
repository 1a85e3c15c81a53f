"""Simulated workload clusters: in-process API servers on links that can be cut, hung and slowed.

They run on virtual time, and are found by key, `namespace/name`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from herder.api.capi.kubeconfigs import PERFORMER as MAKE_KUBECONFIG
from herder.api.capi.names import cluster_key
from herder.api.inmemory.behavior import HANG, REFUSE, response_delay
from herder.api.inmemory.names import MAKE_AUTHORITY, SERVE_WORKLOAD, SET_WORKLOAD_FAULT, STOP_WORKLOAD
from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.meta.errors import InternalError, ServiceUnavailable
from herder.engine.runtime.effects import Performer
from herder.engine.wire import Request, Response, Transport, User
from herder.sim.host.etcd import Content, freeze, load
from herder.sim.lines import until_cut

ADMIN = User("sim-workload-admin", groups=("system:masters", "system:authenticated"))
HOST = "workload.sim"
FIRST_PORT = 30000
_NO_KEY = "Internal error occurred: no matching key was found for the provided AES transformer"


@dataclass(slots=True, eq=False)
class _Workload:
    server: ApiServer
    port: int
    fault: str = ""
    cut: asyncio.Event = field(default_factory=asyncio.Event)  # never cleared: replaced by a new event
    healed: asyncio.Event = field(default_factory=asyncio.Event)
    pristine: Content = field(default_factory=lambda: Content(0, ()))  # what a new cluster stores
    secrets_readable: Callable[[], bool] | None = None


class Workloads:
    """API servers by cluster key."""

    def __init__(
        self, *, clock: Callable[[], datetime], entropy: Callable[[int], bytes], note: Callable[[str], None]
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._note = note
        self._workloads: dict[str, _Workload] = {}
        self._aliases: dict[str, str] = {}
        self._ports = FIRST_PORT

    async def serve(self, cluster: str) -> None:
        """Idempotent."""
        if cluster not in self._workloads:
            server = await assemble(None, clock=self._clock, entropy=self._entropy, inline=True)
            self._workloads[cluster] = _Workload(server, self._ports, pristine=freeze(server))
            self._ports += 1
            self._note(f"workload {cluster} served")

    async def stop(self, cluster: str) -> None:
        """Delete the cluster and its data."""
        workload = self._workloads.pop(cluster, None)
        if workload is not None:
            workload.cut.set()
            await workload.server.stop()
            self._note(f"workload {cluster} stopped")

    async def close(self) -> None:
        for cluster in list(self._workloads):
            await self.stop(cluster)

    @property
    def served(self) -> list[str]:
        return sorted(self._workloads)

    def client(self, cluster: str) -> Client:
        """Client without injected faults."""
        return Client(InProcess(self._workloads[cluster].server, ADMIN), field_manager="sim")

    def transport(self, cluster: str) -> Transport:
        """Transport to a cluster, whether it exists or not."""
        return _WorkloadTransport(cluster, self._found)

    def also_known_as(self, alias: str, cluster: str) -> None:
        """Another name by which the manager finds the cluster."""
        self._aliases[alias] = cluster

    def _found(self, cluster: str) -> _Workload | None:
        return self._workloads.get(self._aliases.get(cluster, cluster))

    # --- content ----------------------------------------------------------------------------------------------------

    def freeze(self, cluster: str) -> Content:
        return freeze(self._workloads[cluster].server)

    async def load(self, cluster: str, content: Content | None) -> None:
        workload = self._workloads[cluster]
        await load(workload.server, content if content and content.records else workload.pristine)

    def restrict_secrets(self, cluster: str, readable: Callable[[], bool]) -> None:
        self._workloads[cluster].secrets_readable = readable

    # --- faults -----------------------------------------------------------------------------------------------------

    def cut(self, cluster: str, fault: str = REFUSE) -> None:
        """Set the fault: refuse connections, never answer, or answer late."""
        workload = self._workloads[cluster]
        if workload.fault == fault:
            return
        workload.fault = fault
        self._note(f"workload {cluster} {fault or 'healed'}")
        if fault == REFUSE:
            workload.cut.set()
            workload.cut = asyncio.Event()
        if fault == HANG:
            workload.healed.clear()
        else:
            workload.healed.set()

    def heal(self, cluster: str) -> None:
        self.cut(cluster, "")

    # --- for the in-memory provider ---------------------------------------------------------------------------------

    def performers(self) -> dict[str, Performer]:
        """Replacements for the effects that open ports and generate keys."""
        return {
            MAKE_AUTHORITY: self._make_authority,
            MAKE_KUBECONFIG: self._make_kubeconfig,
            SERVE_WORKLOAD: self._serve,
            SET_WORKLOAD_FAULT: self._set_fault,
            STOP_WORKLOAD: self._stop,
        }

    async def _make_authority(self, _arguments: Mapping[str, Any]) -> dict[str, str]:
        """No certificate is verified in the simulation."""
        return {name: base64.b64encode(self._entropy(16)).decode() for name in ("tls.crt", "tls.key")}

    async def _make_kubeconfig(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Not read: clusters are found by key."""
        text = f"{arguments['server']} {self._entropy(4).hex()}"
        never = "9999-01-01T00:00:00Z"
        return {"kubeconfig": base64.b64encode(text.encode()).decode(), "expires": never, "renew": never}

    async def _serve(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        cluster = _cluster_key(arguments)
        await self.serve(cluster)
        self.cut(cluster, arguments["fault"])
        return {"host": HOST, "port": self._workloads[cluster].port, "fault": arguments["fault"]}

    async def _set_fault(self, arguments: Mapping[str, Any]) -> None:
        self.cut(_cluster_key(arguments), arguments["fault"])

    async def _stop(self, arguments: Mapping[str, Any]) -> None:
        await self.stop(_cluster_key(arguments))


def _cluster_key(arguments: Mapping[str, Any]) -> str:
    return cluster_key(arguments["namespace"], arguments["cluster"])


class _WorkloadTransport:
    """Transport to whatever is served under a cluster key at that moment."""

    def __init__(self, cluster: str, find: Callable[[str], _Workload | None]) -> None:
        self._cluster = cluster
        self._find = find

    async def send(self, request: Request) -> Response:
        workload = self._find(self._cluster)
        if workload is None or workload.fault == REFUSE:
            raise ServiceUnavailable(f"{self._cluster}: connection refused")
        await _delayed(workload)
        if "/secrets" in request.path and workload.secrets_readable is not None and not workload.secrets_readable():
            raise InternalError(_NO_KEY)
        response = await InProcess(workload.server, ADMIN).send(request)
        await _delayed(workload)
        if response.stream is not None:
            response = replace(response, stream=until_cut(response.stream, workload.cut, partial(_delayed, workload)))
        return response

    async def close(self) -> None:
        """Nothing to close."""


async def _delayed(workload: _Workload) -> None:
    while workload.fault == HANG:
        await workload.healed.wait()
    if delay := response_delay(workload.fault):
        await asyncio.sleep(delay)
