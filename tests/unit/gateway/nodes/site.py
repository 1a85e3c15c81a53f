"""A manager that machines can ask: an API server of this process, the controllers of machines, and the one door.

The core of Cluster API is played by hand: it makes a Machine the owner of what it refers to.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from herder.api.capi.crds import CRDS as CAPI_CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, NAMESPACE, SECRET
from herder.api.capi.names import CLUSTER_NAME
from herder.api.crds import SETTING_CRD
from herder.api.management import names as management
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.registration import Tokens
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE
from herder.api.rke.names import MAKE_BOOTSTRAP_DATA, READ_REQUEST
from herder.api.settings import Settings
from herder.app.install import install_kinds
from herder.controllers.bootstrap import rke_bootstrap, tokens
from herder.controllers.machines.custom import requests
from herder.effects.bootstrap_data import BootstrapData
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.manager import Manager
from herder.engine.wire import Request, Response
from herder.gateway.agents.registration import Registration
from herder.gateway.nodes.machine_requests import RequestReader
from herder.gateway.nodes.routes import NodeRoutes
from tests.unit.engine.runtime.world import now, world
from tests.unit.gateway.managed import managed

WORKSPACE, NAME, ID = "fleet-default", "meadow", "c-m-meadow22"
SERVER = "https://manager.example.com"
TOKEN, OTHER_TOKEN, IMPORTED_TOKEN = "b" * 54, "d" * 54, "f" * 54  # of three clusters
PATIENCE = 30.0


@dataclass
class Site:
    client: Client
    registration_token: str
    settings: Settings
    later: timedelta = timedelta()  # how far the manager's clock has been put forward
    nodes: NodeRoutes = field(init=False)

    def clock(self) -> datetime:
        return now() + self.later

    async def ask(self, path: str, token: str = "", **headers: str) -> Response:
        """Header names are told in short: `id`, `role_worker`."""
        sent = {f"x-cattle-{name.replace('_', '-')}": value for name, value in headers.items()}
        if token:
            sent["authorization"] = f"Bearer {token}"
        answer = await self.nodes.handle(Request("GET", path, headers=sent))
        assert answer is not None
        return answer

    async def machine(self, name: str, **labels: str) -> Object:
        """One that was made here: its Machine and RKEBootstrap, as the core would leave them."""
        told = {CLUSTER_NAME: NAME, "rke.cattle.io/worker-role": "true", **labels}
        reference = {"apiGroup": BOOTSTRAP.group, "kind": BOOTSTRAP.kind, "name": name}
        infra = {"apiGroup": "rke-machine.cattle.io", "kind": "ProcessMachine", "name": name}
        spec = {"clusterName": NAME, "bootstrap": {"configRef": reference}, "infrastructureRef": infra}
        machine = await self.make(MACHINE, name, WORKSPACE, labels=told, spec=spec)
        owner = {"apiVersion": MACHINE.api_version, "kind": "Machine", "name": name, "uid": machine["metadata"]["uid"]}
        await self.make(BOOTSTRAP, name, WORKSPACE, labels=told, ownerReferences=[owner], spec={"clusterName": NAME})
        return machine

    async def adopt(self, name: str) -> None:
        """What the core does with a Machine that refers to an RKEBootstrap."""
        machine = await self.client.get(MACHINE.resource, name, namespace=WORKSPACE)
        owner = {"apiVersion": MACHINE.api_version, "kind": "Machine", "name": name, "uid": machine["metadata"]["uid"]}
        patch = {"metadata": {"ownerReferences": [owner]}}
        await self.client.patch(BOOTSTRAP.resource, name, patch, namespace=WORKSPACE)

    async def make(
        self, kind: Kind, name: str, namespace: str = "", *, spec: Object | None = None, **meta: object
    ) -> Object:
        whole: Object = {"name": name, **meta} | ({"namespace": namespace} if namespace else {})
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": whole, "spec": spec or {}}
        return await self.client.create(kind.resource, obj, namespace=namespace)

    async def secret(self, name: str) -> Object:
        return await self.client.get(SECRET.resource, name, namespace=WORKSPACE)

    async def script_of(self, machine: str) -> str:
        """What the machine runs first, once it is there."""
        name = f"{machine}-machine-bootstrap"
        secret = await self.eventually(lambda: self.secret(name))
        return base64.b64decode(secret["data"]["value"]).decode()

    async def token_of(self, machine: str) -> str:
        lines = (await self.script_of(machine)).splitlines()
        return next(line.partition("=")[2].strip("'") for line in lines if line.startswith("CATTLE_TOKEN="))

    async def eventually(self, look: Callable[[], Awaitable[Object]]) -> Object:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await look()
                except NotFound:
                    await asyncio.sleep(0.01)


CONTROLLERS: tuple[Controller, ...] = (rke_bootstrap.CONTROLLER, tokens.CONTROLLER, requests.CONTROLLER)


@asynccontextmanager
async def site(*controllers: Controller, wait: float = PATIENCE, **flags: str) -> AsyncIterator[Site]:
    """`wait`: how long a machine is kept waiting for an answer."""
    settings = Settings(flags={"server-url": SERVER, "cacerts": "the certificates"} | flags)
    async with world() as made:
        client = made.outside
        await install_kinds(client, [*CAPI_CRDS, *MANAGEMENT_CRDS, *RKE_CRDS, SETTING_CRD])
        here = Site(client, TOKEN, settings)
        await here.make(NAMESPACE, WORKSPACE)
        await _cluster(here, NAME, ID, TOKEN)
        await _cluster(here, "pasture", "c-m-pasture2", OTHER_TOKEN)
        await _cluster(here, "heath", "c-m-heath222", IMPORTED_TOKEN, imported=True)
        registration = Registration(client, clock=here.clock, setting=settings.get)
        here.nodes = NodeRoutes(
            client,
            clock=here.clock,
            setting=settings.get,
            cluster_of=registration.cluster_of,
            build_agent=lambda path: Path(path).write_bytes(b"an agent"),
            wait=wait,
        )
        performers = {MAKE_BOOTSTRAP_DATA: BootstrapData(client, settings.get), READ_REQUEST: RequestReader(client)}
        manager = Manager(
            client,
            list(controllers or CONTROLLERS),
            clock=here.clock,
            entropy=lambda size: b"x" * size,
            performers=performers,
            setting=settings.get,
        )
        running = [asyncio.ensure_future(part.run()) for part in (registration, here.nodes, manager)]
        await registration.ready()
        await here.nodes.ready()
        try:
            yield here
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _cluster(here: Site, name: str, id_: str, token: str, *, imported: bool = False) -> None:
    """A cluster as far as its machines need one: provisioned, or imported."""
    await managed(here.client, id_, Tokens(token, now() + timedelta(days=1)))
    marks = {management.PROVISIONING_CLUSTER_OF: f"{WORKSPACE}/{name}"}
    patch = {"metadata": {"annotations": marks}, "spec": {"fleetWorkspaceName": WORKSPACE}}
    await here.client.patch(MANAGEMENT_CLUSTER.resource, id_, patch)
    version = "v1.35.0+k3s1"
    asked = {} if imported else {"kubernetesVersion": version, "rkeConfig": {}}
    await here.make(PROVISIONING_CLUSTER, name, WORKSPACE, spec=asked)
    status = {"status": {"clusterName": id_}}
    await here.client.patch(PROVISIONING_CLUSTER.resource, name, status, namespace=WORKSPACE, subresource="status")
    spec = {"clusterName": name, "managementClusterName": id_, "kubernetesVersion": version}
    await here.make(CONTROL_PLANE, name, WORKSPACE, spec=spec)
    reference = {"apiGroup": CONTROL_PLANE.group, "kind": CONTROL_PLANE.kind, "name": name}
    await here.make(CLUSTER, name, WORKSPACE, spec={"controlPlaneRef": reference})
    ready = {"status": {"initialization": {"infrastructureProvisioned": True}}}
    await here.client.patch(CLUSTER.resource, name, ready, namespace=WORKSPACE, subresource="status")
