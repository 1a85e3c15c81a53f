"""A cluster on infrastructure of another provider, which sets the endpoint and creates the machines. Machines get
their bootstrap data as cloud-config."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import yaml

from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET
from herder.api.inmemory.crds import CRDS
from herder.api.inmemory.kinds import IN_MEMORY_CLUSTER, IN_MEMORY_MACHINE, IN_MEMORY_MACHINE_TEMPLATE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.kinds import BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.names import MAKE_BOOTSTRAP_DATA
from herder.api.settings import Settings
from herder.controllers.bootstrap import rke_bootstrap
from herder.effects.bootstrap_data import BootstrapData
from herder.engine.meta.kinds import Object
from herder.sim import loop
from tests.support.builders import new_manifest
from tests.unit.controllers.provisioning.objects import NAME, WORKSPACE, cluster
from tests.unit.controllers.provisioning.simulated_manager import SimulatedManager

SETTINGS = Settings(flags={"server-url": "https://manager.example.com", "cacerts": "the certificates"})
BALANCER = {"host": "api.example.com", "port": 6443}
USERDATA = "#cloud-config\nruncmd: [echo mine]\npackage_update: true\n"


class ManagerWithExternalProvider(SimulatedManager):
    def __init__(self) -> None:
        super().__init__(
            controllers=(rke_bootstrap.CONTROLLER,),
            crds=CRDS,
            performers={MAKE_BOOTSTRAP_DATA: self._make_data},
            settings=SETTINGS,
        )

    async def _make_data(self, arguments: Mapping[str, Any]) -> None:
        await BootstrapData(self.world.client, SETTINGS.get)(arguments)

    async def create_cluster(self) -> None:
        await self.create(IN_MEMORY_CLUSTER, new_manifest(IN_MEMORY_CLUSTER, "net", WORKSPACE, spec={}))
        template = new_manifest(IN_MEMORY_MACHINE_TEMPLATE, "small", WORKSPACE, spec={"template": {"spec": {}}})
        await self.create(IN_MEMORY_MACHINE_TEMPLATE, template)
        pool = {
            "name": "servers",
            "quantity": 1,
            **dict.fromkeys(("etcdRole", "controlPlaneRole", "workerRole"), True),
            "machineConfigRef": _reference(template),
            "userdata": {"inlineUserdata": USERDATA},
        }
        cluster_object = cluster(
            pool, infrastructureRef={**_reference(new_manifest(IN_MEMORY_CLUSTER, "net")), "namespace": WORKSPACE}
        )
        await self.create(PROVISIONING_CLUSTER, cluster_object)

    async def provision(self) -> None:
        """Provision the cluster, as the provider would."""
        await self.patch(IN_MEMORY_CLUSTER, "net", {"spec": {"controlPlaneEndpoint": BALANCER}})
        provisioned = {"status": {"initialization": {"provisioned": True}}}
        await self.patch(IN_MEMORY_CLUSTER, "net", provisioned, subresource="status")

    async def bootstrap_data(self) -> str:
        """The bootstrap data that the provider passes to cloud-init; "" while there is none."""
        for machine in await self.all(MACHINE):
            name = machine["spec"]["bootstrap"].get("dataSecretName")
            secret = await self.get(SECRET, name) if name else None
            return base64.b64decode(secret["data"]["value"]).decode() if secret else ""
        return ""


def _reference(obj: Object) -> Object:
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": obj["metadata"]["name"]}


def test_machines_of_another_provider_get_cloud_config() -> None:
    async def run(manager: ManagerWithExternalProvider) -> None:
        async with manager.world as world:
            await _create_and_provision(manager)

            async def has_data() -> bool:
                return bool(await manager.bootstrap_data())

            await world.until(has_data, within=120)
            text = await manager.bootstrap_data()
            assert text.startswith("## template: jinja\n#cloud-config\n")
            cloud_config = yaml.safe_load(text)
            assert cloud_config["runcmd"] == ["sh /usr/local/custom_script/install.sh", "echo mine"]
            assert cloud_config["package_update"] is True
            assert await manager.names(RKE_CLUSTER) == [], "no RKECluster is created"
            [machine] = await manager.names(IN_MEMORY_MACHINE)
            assert machine.startswith("meadow-servers-")
            [template] = await manager.names(BOOTSTRAP_TEMPLATE)
            assert template.startswith("meadow-servers-"), "each pool has its own template, which may contain userdata"

    loop.run(run(ManagerWithExternalProvider()))


async def _create_and_provision(manager: ManagerWithExternalProvider) -> None:
    async def is_there() -> bool:
        return await manager.get(CLUSTER, NAME) is not None

    await manager.prepare()
    await manager.create_cluster()
    await manager.world.until(is_there, within=60)
    await manager.provision()


def test_the_provider_decides_the_endpoint_of_the_cluster() -> None:
    """The provider may have a load balancer, which the address of the first server must not replace."""

    async def run(manager: ManagerWithExternalProvider) -> None:
        async with manager.world as world:
            await _create_and_provision(manager)

            async def endpoint() -> Object | None:
                found = await manager.get(CLUSTER, NAME)
                found_endpoint: Object | None = (found or {})["spec"].get("controlPlaneEndpoint")
                return found_endpoint

            async def is_reported() -> bool:
                return await endpoint() == BALANCER

            await world.until(is_reported, within=60)
            first = {"host": "10.0.0.7", "port": 6443}
            await manager.patch(CONTROL_PLANE, NAME, {"spec": {"controlPlaneEndpoint": first}})
            await asyncio.sleep(60)
            assert await endpoint() == BALANCER

    loop.run(run(ManagerWithExternalProvider()))
