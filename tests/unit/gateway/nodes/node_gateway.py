"""A gateway that machines can call: an in-process API server, the controllers of machines, and the node routes.

Tests play the Cluster API core: they make a Machine the owner of the objects that it references.
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
from tests.support.builders import new_manifest
from tests.unit.engine.runtime.envtest import environment, now
from tests.unit.gateway.managed_clusters import create_managed_cluster

WORKSPACE, NAME, ID = "fleet-default", "meadow", "c-m-meadow22"
SERVER = "https://manager.example.com"
TOKEN, OTHER_TOKEN, IMPORTED_TOKEN = "b" * 54, "d" * 54, "f" * 54  # of three clusters
PATIENCE = 30.0


@dataclass
class NodeGateway:
    client: Client
    registration_token: str
    settings: Settings
    clock_offset: timedelta = timedelta()  # added to the manager's clock
    nodes: NodeRoutes = field(init=False)

    def clock(self) -> datetime:
        return now() + self.clock_offset

    async def get(self, path: str, token: str = "", **headers: str) -> Response:
        """Header names are given in short form: `id`, `role_worker`."""
        request_headers = {f"x-cattle-{name.replace('_', '-')}": value for name, value in headers.items()}
        if token:
            request_headers["authorization"] = f"Bearer {token}"
        response = await self.nodes.handle(Request("GET", path, headers=request_headers))
        assert response is not None
        return response

    async def create_machine(self, name: str, **labels: str) -> Object:
        """Create a Machine and its RKEBootstrap, as the core would leave them."""
        machine_labels = {CLUSTER_NAME: NAME, "rke.cattle.io/worker-role": "true", **labels}
        reference = {"apiGroup": BOOTSTRAP.group, "kind": BOOTSTRAP.kind, "name": name}
        infra = {"apiGroup": "rke-machine.cattle.io", "kind": "ProcessMachine", "name": name}
        spec = {"clusterName": NAME, "bootstrap": {"configRef": reference}, "infrastructureRef": infra}
        machine = await self.create(MACHINE, name, WORKSPACE, labels=machine_labels, spec=spec)
        owner = {"apiVersion": MACHINE.api_version, "kind": "Machine", "name": name, "uid": machine["metadata"]["uid"]}
        await self.create(
            BOOTSTRAP, name, WORKSPACE, labels=machine_labels, ownerReferences=[owner], spec={"clusterName": NAME}
        )
        return machine

    async def adopt(self, name: str) -> None:
        """Make the Machine the owner of its RKEBootstrap, as the core does."""
        machine = await self.client.get(MACHINE.resource, name, namespace=WORKSPACE)
        owner = {"apiVersion": MACHINE.api_version, "kind": "Machine", "name": name, "uid": machine["metadata"]["uid"]}
        patch = {"metadata": {"ownerReferences": [owner]}}
        await self.client.patch(BOOTSTRAP.resource, name, patch, namespace=WORKSPACE)

    async def create(
        self, kind: Kind, name: str, namespace: str = "", *, spec: Object | None = None, **meta: object
    ) -> Object:
        obj = new_manifest(kind, name, namespace, metadata=meta, spec=spec or {})
        return await self.client.create(kind.resource, obj, namespace=namespace)

    async def secret(self, name: str) -> Object:
        return await self.client.get(SECRET.resource, name, namespace=WORKSPACE)

    async def script_of(self, machine: str) -> str:
        """The bootstrap script of the machine, once it exists."""
        name = f"{machine}-machine-bootstrap"
        secret = await self.eventually(lambda: self.secret(name))
        return base64.b64decode(secret["data"]["value"]).decode()

    async def bootstrap_token(self, machine: str) -> str:
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
async def running_node_gateway(
    *controllers: Controller, wait: float = PATIENCE, **flags: str
) -> AsyncIterator[NodeGateway]:
    """`wait` is how long a request of a machine may wait for its answer."""
    settings = Settings(flags={"server-url": SERVER, "cacerts": "the certificates"} | flags)
    async with environment() as env:
        client = env.outside
        await install_kinds(client, [*CAPI_CRDS, *MANAGEMENT_CRDS, *RKE_CRDS, SETTING_CRD])
        gateway = NodeGateway(client, TOKEN, settings)
        await gateway.create(NAMESPACE, WORKSPACE)
        await _cluster(gateway, NAME, ID, TOKEN)
        await _cluster(gateway, "pasture", "c-m-pasture2", OTHER_TOKEN)
        await _cluster(gateway, "heath", "c-m-heath222", IMPORTED_TOKEN, imported=True)
        registration = Registration(client, clock=gateway.clock, setting=settings.get)
        gateway.nodes = NodeRoutes(
            client,
            clock=gateway.clock,
            setting=settings.get,
            cluster_of=registration.cluster_of,
            build_agent=lambda path: Path(path).write_bytes(b"an agent"),
            wait=wait,
        )
        performers = {MAKE_BOOTSTRAP_DATA: BootstrapData(client, settings.get), READ_REQUEST: RequestReader(client)}
        manager = Manager(
            client,
            list(controllers or CONTROLLERS),
            clock=gateway.clock,
            entropy=lambda size: b"x" * size,
            performers=performers,
            setting=settings.get,
        )
        running = [asyncio.ensure_future(part.run()) for part in (registration, gateway.nodes, manager)]
        await registration.ready()
        await gateway.nodes.ready()
        try:
            yield gateway
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _cluster(gateway: NodeGateway, name: str, id_: str, token: str, *, imported: bool = False) -> None:
    """Create what machines need of a cluster, which is provisioned or imported."""
    await create_managed_cluster(gateway.client, id_, Tokens(token, now() + timedelta(days=1)))
    annotations = {management.PROVISIONING_CLUSTER_OF: f"{WORKSPACE}/{name}"}
    patch = {"metadata": {"annotations": annotations}, "spec": {"fleetWorkspaceName": WORKSPACE}}
    await gateway.client.patch(MANAGEMENT_CLUSTER.resource, id_, patch)
    version = "v1.35.0+k3s1"
    cluster_spec = {} if imported else {"kubernetesVersion": version, "rkeConfig": {}}
    await gateway.create(PROVISIONING_CLUSTER, name, WORKSPACE, spec=cluster_spec)
    status = {"status": {"clusterName": id_}}
    await gateway.client.patch(PROVISIONING_CLUSTER.resource, name, status, namespace=WORKSPACE, subresource="status")
    spec = {"clusterName": name, "managementClusterName": id_, "kubernetesVersion": version}
    await gateway.create(CONTROL_PLANE, name, WORKSPACE, spec=spec)
    reference = {"apiGroup": CONTROL_PLANE.group, "kind": CONTROL_PLANE.kind, "name": name}
    await gateway.create(CLUSTER, name, WORKSPACE, spec={"controlPlaneRef": reference})
    ready = {"status": {"initialization": {"infrastructureProvisioned": True}}}
    await gateway.client.patch(CLUSTER.resource, name, ready, namespace=WORKSPACE, subresource="status")
