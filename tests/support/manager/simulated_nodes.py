"""Simulated machines under a real manager: only the machines themselves are simulated.

A driver whose kinds the manager knows, but whose machines only this module creates. Each machine registers with the
gateway, runs the node agent's core on its plan Secret, and becomes a Node of a cluster whose API the test serves, with
the real cluster agent connecting from it.
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
from herder.sim.host.etcd import Content, freeze, load
from herder.sim.lines import Line
from herder.sim.nodes import MANIFEST, Pace, SimulatedNode, SimulationContext
from herder.sim.provider import Provider
from tests.support.capi import wait_until_served
from tests.support.manager.provisioned import MOST_CONFLICTS, ManagerSite, ProvisionedCluster

DRIVER = "pod"
POD = kinds_of(DRIVER)
FIELDS = {"userdata": {"type": "string", "create": True, "update": True}}
VERSIONS = {"embedded": "v1.33.4+k3s1", "real": "v1.33.4+rke2r1"}
"""One distribution per engine: plans differ by distribution, not by engine."""
PACE = Pace(boot=0.5, pull=0.5, start=0.5)
CREATION, REMOVAL = 1.0, 0.5  # seconds, at most

_CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_ADMIN = User("simulation", groups=("system:masters", "system:authenticated"))
_TOKEN = re.compile(r"^CATTLE_TOKEN='([^']+)'$", re.MULTILINE)


async def install_driver(site: ManagerSite) -> None:
    """Install the driver's kinds without the driver label, so that the manager's machine provider ignores them."""
    for definition in driver_definitions(DRIVER, FIELDS):
        labels = {key: value for key, value in definition["metadata"]["labels"].items() if key != DRIVER_LABEL}
        await site.client.create(_CRDS, {**definition, "metadata": {**definition["metadata"], "labels": labels}})
    await wait_until_served(site.client, *POD.all)
    await site.client.create(DYNAMIC_SCHEMA.resource, schema(f"{DRIVER}config", FIELDS))


@asynccontextmanager
async def simulated(
    site: ManagerSite, name: str, *pools: Object, **options: Any
) -> AsyncIterator[tuple[ProvisionedCluster, SimulatedNodes]]:
    """Create a k3s or RKE2 cluster with simulated machines."""
    cluster = await site.create_cluster(name, *pools, kinds=POD, version=VERSIONS[site.engine.name], **options)
    async with SimulatedNodes(cluster, site.directory / cluster.namespace) as nodes:
        yield cluster, nodes


class SimulatedNodes:
    """The machines of one cluster: those of its pools, and those that are registered."""

    def __init__(self, cluster: ProvisionedCluster, directory: Path) -> None:
        self._cluster = cluster
        self._failure: BaseException | None = None
        self._context = SimulationContext(
            random=Random(cluster.name),
            wall=time.time,
            failed=self._fail,
            pace=PACE,
        )
        self._transports: list[LazyTransport] = []
        self._api = ServedApi(directory)
        self.downstream = DialingDownstream(self._api, cluster, directory)
        self._provider = Provider(
            cluster.client,
            POD,
            cluster.namespace,
            make=self._new_node,
            random=self._context.random,
            failed=self._fail,
            creation=CREATION,
            removal=REMOVAL,
        )
        self._registered: list[SimulatedNode] = []

    async def __aenter__(self) -> SimulatedNodes:
        self._downstream_task = asyncio.ensure_future(self.downstream.run())
        self._downstream_task.add_done_callback(self._ended)
        self._provider.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._provider.stop()
        for node in self._registered:
            node.destroy()
        self._downstream_task.cancel()
        await asyncio.gather(self._downstream_task, return_exceptions=True)
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

    def _new_node(self, name: str, address: str, secret: str) -> SimulatedNode:
        async def connect() -> Transport:
            _, transport = await self._request_connection(await self._token_in_script(name), name, {})
            return transport

        return self._build_node(name, address, secret, LazyTransport(connect))

    async def register(self, name: str, address: str, *flags: str) -> SimulatedNode:
        """Register a custom machine, as the command does with these flags."""
        _, token = await self._cluster.registration()
        headers = _claims(flags) | {"x-cattle-node-name": name, "x-cattle-address": address}
        secret, transport = await self._request_connection(token, name, headers)

        async def connected() -> Transport:
            return transport

        node = self._build_node(name, address, secret, LazyTransport(connected))
        self._registered.append(node)
        node.boot()
        return node

    def _build_node(self, name: str, address: str, secret: str, transport: LazyTransport) -> SimulatedNode:
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
        """The token in the bootstrap script of the machine."""
        machines = await self._cluster.machines()
        [machine] = [each for each in machines if each["spec"]["infrastructureRef"]["name"] == name]
        data = machine["spec"]["bootstrap"]["dataSecretName"]
        secret = await self._cluster.client.get(SECRET.resource, data, namespace=self._cluster.namespace)
        found = _TOKEN.search(base64.b64decode(secret["data"]["value"]).decode())
        assert found is not None, "the install script has no token"
        return found[1]

    async def _request_connection(self, token: str, name: str, headers: dict[str, str]) -> tuple[str, Transport]:
        """Request the connection as the install script does: the name of the plan Secret, and a transport to it."""
        transport = HttpTransport(RestConfig(self._cluster.site.url, skip_tls_verify=True, token=token))
        own = {"x-cattle-id": hashlib.sha256(name.encode()).hexdigest()[:63]}
        try:
            answer = await transport.send(Request("GET", "/v3/connect/agent", headers=own | headers))
        finally:
            await transport.close()
        assert answer.status == 200, answer.content()
        connection = json.loads(answer.content())
        assert connection["namespace"] == self._cluster.namespace
        return connection["secretName"], HttpTransport(kubeconfig.parse(connection["kubeConfig"]))


def _claims(flags: tuple[str, ...]) -> dict[str, str]:
    """The headers that the install script derives from its flags."""
    arguments = iter(flags)
    roles, labels, taints = dict[str, str](), ["cattle.io/os=linux"], list[str]()
    for argument in arguments:
        if argument == "--label":
            labels.append(next(arguments))
        elif argument == "--taint":
            taints.append(next(arguments))
        else:
            role = {"--etcd": "etcd", "--controlplane": "control-plane", "--worker": "worker"}[argument]
            roles[f"x-cattle-role-{role}"] = "true"
    return {**roles, "x-cattle-labels": ",".join(labels), **({"x-cattle-taints": ",".join(taints)} if taints else {})}


class LazyTransport:
    """A transport to the manager that connects before its first request."""

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


# --- the downstream cluster -------------------------------------------------------------------------------------------


class ServedApi:
    """The API of one cluster on loopback; it starts with the first call of `serve`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server: ApiServer | None = None
        self._front: HttpFront | None = None
        self._is_cut = False
        self.kubeconfig = directory / "kubeconfig"

    async def serve(self, _cluster: str) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will contain secrets
        pki = Pki.load_or_create(self._directory / "pki", now=_now(), hosts=("127.0.0.1",))
        self._server = await assemble(None, clock=_now, entropy=os.urandom, pki=pki)
        self._pristine = freeze(self._server)
        self._front = HttpFront(self, clock=_now, body_bytes=BODY_BYTES)
        _, port = await self._front.listen("127.0.0.1", 0, pki.server_context())
        self.kubeconfig.write_text(yaml.safe_dump(pki.admin_kubeconfig(f"https://127.0.0.1:{port}")))

    async def handle(self, request: Request) -> Response:
        assert self._server is not None
        if self._is_cut:
            return Response(503, {"content-type": "text/plain"}, b"no server of the cluster runs")
        return await self._server.handle(request)

    def cut(self, _cluster: str) -> None:
        self._is_cut = True

    def heal(self, _cluster: str) -> None:
        self._is_cut = False

    def client(self, _cluster: str) -> Client:
        assert self._server is not None
        return Client(InProcess(self._server, _ADMIN), field_manager="kubelet")

    def also_known_as(self, _alias: str, _cluster: str) -> None:
        """Nothing to do: clients connect through the tunnel."""

    def freeze(self, _cluster: str) -> Content:
        assert self._server is not None
        return freeze(self._server)

    async def load(self, _cluster: str, content: Content | None) -> None:
        assert self._server is not None
        await load(self._server, content or self._pristine)

    def restrict_secrets(self, _cluster: str, _readable: Callable[[], bool]) -> None:
        """Nothing to do: these clusters rotate no keys."""

    async def close(self) -> None:
        if self._front is not None and self._server is not None:
            await self._front.stop(grace=0)
            await self._server.stop()


class DialingDownstream(Downstream):
    """A downstream cluster whose agent connects to the manager, with the manifest from the plans of its servers."""

    def __init__(self, api: ServedApi, cluster: ProvisionedCluster, directory: Path) -> None:
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
        """Apply the manifest as servers do, and derive the agent's configuration from it."""
        manifests = self._directory / "manifests"
        manifests.mkdir(exist_ok=True)
        (manifests / "cluster-agent.yaml").write_bytes(self._manifest())
        applied = Manifests(self._api.client(self.key), manifests, self._directory / "applied.json")
        agent = agent_wanted(await applied.apply())
        assert agent is not None, "the manifest has no agent"
        token = self._directory / "agent-token"
        token.write_text(agent.token)
        flags = ("--token-file", str(token), "--kubeconfig", str(self._api.kubeconfig))
        return configuration(flags, dict(agent.environment))

    def _manifest(self) -> bytes:
        files = (item for node in self.nodes.values() if node.running for item in node.disk.files.items())
        return next(bytes(content) for path, content in files if MANIFEST.fullmatch(path) and content)


def _now() -> datetime:
    return datetime.now(UTC)
