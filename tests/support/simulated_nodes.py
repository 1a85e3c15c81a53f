"""Simulated machines under a manager that is real: only what runs on them is played.

They are made by a driver whose kinds the manager knows and whose machines nobody but this makes. Each asks the gateway
who it is, runs the node agent's own core on its plan Secret, and becomes a Node of a cluster whose API is served from
the test, with the real cluster agent dialling out from it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import yaml

from herder.api.capi.kinds import SECRET
from herder.api.machines.crds import driver_definitions
from herder.api.machines.drivers.known import DRIVER_LABEL
from herder.api.machines.drivers.schemas import schema
from herder.api.machines.kinds import DYNAMIC_SCHEMA, kinds_of
from herder.clusteragent.agent import Agent
from herder.clusteragent.configuration import Configuration, configuration
from herder.embedded.cluster_agent import wanted as agent_wanted
from herder.embedded.manifests import Manifests
from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.request.limits import BODY_BYTES
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.front.http import HttpFront
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.wire import Request, Response, Transport, User
from herder.sim.downstream import Downstream
from herder.sim.lines import Line
from herder.sim.nodes import MANIFEST, Pace, SimulatedNode, SimulationContext
from herder.sim.provider import Provider
from tests.support.capi import served
from tests.support.provisioned import MOST_CONFLICTS, Asked, Site

DRIVER = "pod"
POD = kinds_of(DRIVER)
FIELDS = {"userdata": {"type": "string", "create": True, "update": True}}
VERSIONS = {"embedded": "v1.33.4+k3s1", "real": "v1.33.4+rke2r1"}
"""One distribution on each engine: their plans differ, and what engines do does not depend on it."""
PACE = Pace(boot=0.5, pull=0.5, start=0.5)
CREATION, REMOVAL = 1.0, 0.5  # seconds, at most

_CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_ADMIN = User("simulation", groups=("system:masters", "system:authenticated"))
_TOKEN = re.compile(r"^CATTLE_TOKEN='([^']+)'$", re.MULTILINE)


async def install_driver(site: Site) -> None:
    """Its kinds, of which the manager's provider of machines knows nothing: they are not marked as a driver's."""
    for definition in driver_definitions(DRIVER, FIELDS):
        labels = {key: value for key, value in definition["metadata"]["labels"].items() if key != DRIVER_LABEL}
        await site.client.create(_CRDS, {**definition, "metadata": {**definition["metadata"], "labels": labels}})
    await served(site.client, *POD.all)
    await site.client.create(DYNAMIC_SCHEMA.resource, schema(f"{DRIVER}config", FIELDS))


@asynccontextmanager
async def simulated(
    site: Site, name: str, *pools: Object, **wanted: Any
) -> AsyncIterator[tuple[Asked, SimulatedNodes]]:
    """A cluster of k3s or RKE2 that was asked for, and its machines."""
    cluster = await site.ask_for(name, *pools, kinds=POD, version=VERSIONS[site.engine.name], **wanted)
    async with SimulatedNodes(cluster, site.directory / cluster.namespace) as nodes:
        yield cluster, nodes


class SimulatedNodes:
    """Of one cluster: those that its pools ask for, and those that are registered."""

    def __init__(self, cluster: Asked, directory: Path) -> None:
        self._cluster = cluster
        self._failure: BaseException | None = None
        self._context = SimulationContext(
            random=Random(cluster.name),
            wall=time.time,
            failed=self._fail,
            pace=PACE,
        )
        self._transports: list[Registered] = []
        self._api = ServedApi(directory)
        self.downstream = DiallingDownstream(self._api, cluster, directory)
        self._provider = Provider(
            cluster.client,
            POD,
            cluster.namespace,
            make=self._made,
            random=self._context.random,
            failed=self._fail,
            creation=CREATION,
            removal=REMOVAL,
        )
        self._registered: list[SimulatedNode] = []

    async def __aenter__(self) -> SimulatedNodes:
        self._keeping = asyncio.ensure_future(self.downstream.run())
        self._keeping.add_done_callback(self._ended)
        self._provider.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._provider.stop()
        for node in self._registered:
            node.destroy()
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        await self.downstream.set_tunnel(False)
        for transport in self._transports:
            await transport.close()
        await self._api.close()
        if kind is None and self._failure is not None:
            raise self._failure
        most = max((transport.conflicts for transport in self._transports), default=0)
        assert kind is not None or most <= MOST_CONFLICTS, f"an agent was refused {most} times for conflicts"

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # --- machines -----------------------------------------------------------------------------------------------------

    def _made(self, name: str, address: str, secret: str) -> SimulatedNode:
        async def connect() -> Transport:
            _, transport = await self._ask_who_it_is(await self._token_in_script(name), name, {})
            return transport

        return self._node(name, address, secret, Registered(connect))

    async def register(self, name: str, address: str, *flags: str) -> SimulatedNode:
        """A machine that somebody else made, on which the command was run with these flags."""
        _, token = await self._cluster.registration()
        headers = _claims(flags) | {"x-cattle-node-name": name, "x-cattle-address": address}
        secret, transport = await self._ask_who_it_is(token, name, headers)

        async def connected() -> Transport:
            return transport

        node = self._node(name, address, secret, Registered(connected))
        self._registered.append(node)
        node.boot()
        return node

    def _node(self, name: str, address: str, secret: str, transport: Registered) -> SimulatedNode:
        self._transports.append(transport)
        line = Line(transport)
        return SimulatedNode(
            name,
            address,
            cluster=self.downstream,
            client=Client(line, field_manager="agent"),
            line=line,
            namespace=self._cluster.namespace,
            secret=secret,
            context=self._context,
        )

    async def _token_in_script(self, name: str) -> str:
        """What the machine would find in the script that it was booted with."""
        machines = await self._cluster.machines()
        [machine] = [each for each in machines if each["spec"]["infrastructureRef"]["name"] == name]
        data = machine["spec"]["bootstrap"]["dataSecretName"]
        secret = await self._cluster.client.get(SECRET.resource, data, namespace=self._cluster.namespace)
        found = _TOKEN.search(base64.b64decode(secret["data"]["value"]).decode())
        assert found is not None, "the install script has no token"
        return found[1]

    async def _ask_who_it_is(self, token: str, name: str, headers: dict[str, str]) -> tuple[str, Transport]:
        """As the install script does: the name of its plan's Secret, and how it is reached."""
        asking = HttpTransport(RestConfig(self._cluster.site.url, skip_tls_verify=True, token=token))
        own = {"x-cattle-id": hashlib.sha256(name.encode()).hexdigest()[:63]}
        try:
            answer = await asking.send(Request("GET", "/v3/connect/agent", headers=own | headers))
        finally:
            await asking.close()
        assert answer.status == 200, answer.content()
        told = json.loads(answer.content())
        assert told["namespace"] == self._cluster.namespace
        return told["secretName"], HttpTransport(kubeconfig.parse(told["kubeConfig"]))


def _claims(flags: tuple[str, ...]) -> dict[str, str]:
    """What the install script makes of its flags."""
    words = iter(flags)
    roles, labels, taints = dict[str, str](), ["cattle.io/os=linux"], list[str]()
    for word in words:
        if word == "--label":
            labels.append(next(words))
        elif word == "--taint":
            taints.append(next(words))
        else:
            role = {"--etcd": "etcd", "--controlplane": "control-plane", "--worker": "worker"}[word]
            roles[f"x-cattle-role-{role}"] = "true"
    return {**roles, "x-cattle-labels": ",".join(labels), **({"x-cattle-taints": ",".join(taints)} if taints else {})}


class Registered:
    """A transport to the manager, of a machine that asks who it is before it asks anything else."""

    def __init__(self, connect: Callable[[], Awaitable[Transport]]) -> None:
        self._connect = connect
        self._turn = asyncio.Lock()
        self._inner: Transport | None = None
        self.conflicts = 0

    async def send(self, request: Request) -> Response:
        async with self._turn:
            if self._inner is None:
                self._inner = await self._connect()
        answer = await self._inner.send(request)
        self.conflicts += answer.status == 409
        return answer

    async def close(self) -> None:
        if self._inner is not None:
            await self._inner.close()


# --- the cluster that they become -------------------------------------------------------------------------------------


class ServedApi:
    """The API of one cluster, on loopback, from when it is first served."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server: ApiServer | None = None
        self._front: HttpFront | None = None
        self._is_cut = False
        self.kubeconfig = directory / "kubeconfig"

    async def serve(self, _cluster: str) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # secrets will be in it
        pki = Pki.load_or_create(self._directory / "pki", now=_now(), hosts=("127.0.0.1",))
        self._server = await assemble(None, clock=_now, entropy=os.urandom, pki=pki)
        self._front = HttpFront(self, clock=_now, body_bytes=BODY_BYTES)
        _, port = await self._front.listen("127.0.0.1", 0, pki.server_context())
        self.kubeconfig.write_text(yaml.safe_dump(pki.admin_kubeconfig(f"https://127.0.0.1:{port}")))

    async def handle(self, request: Request) -> Response:
        assert self._server is not None
        if self._is_cut:
            return Response(503, {"content-type": "text/plain"}, b"none of its servers runs")
        return await self._server.handle(request)

    def cut(self, _cluster: str) -> None:
        self._is_cut = True

    def heal(self, _cluster: str) -> None:
        self._is_cut = False

    def client(self, _cluster: str) -> Client:
        assert self._server is not None
        return Client(InProcess(self._server, _ADMIN), field_manager="kubelet")

    def also_known_as(self, _alias: str, _cluster: str) -> None:
        """Whoever wants in comes through the tunnel."""

    async def close(self) -> None:
        if self._front is not None and self._server is not None:
            await self._front.stop(grace=0)
            await self._server.stop()


class DiallingDownstream(Downstream):
    """With a cluster agent that dials the manager itself, by the manifest in the plans of its servers."""

    def __init__(self, api: ServedApi, cluster: Asked, directory: Path) -> None:
        super().__init__(api, cluster.client, cluster.namespace, cluster.name, clock=_now, note=lambda _line: None)
        self._api = api
        self._directory = directory
        self._agent: asyncio.Task[None] | None = None

    async def set_tunnel(self, wanted: bool) -> bool:
        if self._agent is not None:
            self._agent.cancel()
            await asyncio.gather(self._agent, return_exceptions=True)
            self._agent = None
        if wanted:
            self._agent = asyncio.ensure_future(Agent(await self._configuration()).run())
        return True

    async def _configuration(self) -> Configuration:
        """What the servers apply of the manifest, and run of it."""
        manifests = self._directory / "manifests"
        manifests.mkdir(exist_ok=True)
        (manifests / "cluster-agent.yaml").write_bytes(self._manifest())
        applied = Manifests(self._api.client(self.key), manifests, self._directory / "applied.json")
        told = agent_wanted(await applied.apply())
        assert told is not None, "the manifest has no agent"
        token = self._directory / "agent-token"
        token.write_text(told.token)
        flags = ("--token-file", str(token), "--kubeconfig", str(self._api.kubeconfig))
        return configuration(flags, dict(told.environment))

    def _manifest(self) -> bytes:
        files = (item for node in self.nodes.values() if node.running for item in node.disk.files.items())
        return next(content for path, content in files if MANIFEST.fullmatch(path) and content)


def _now() -> datetime:
    return datetime.now(UTC)
