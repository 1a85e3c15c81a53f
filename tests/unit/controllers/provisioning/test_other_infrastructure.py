"""A cluster on the infrastructure of another provider: it says where the API answers and makes the machines, which get
what they run first as cloud-config."""

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
from tests.unit.controllers.provisioning.provisioned import NAME, WORKSPACE, Pasture, cluster, new

SETTINGS = Settings(flags={"server-url": "https://manager.example.com", "cacerts": "the certificates"})
BALANCER = {"host": "api.example.com", "port": 6443}
USERDATA = "#cloud-config\nruncmd: [echo mine]\npackage_update: true\n"


class Provided(Pasture):
    def __init__(self) -> None:
        super().__init__(
            controllers=(rke_bootstrap.CONTROLLER,),
            crds=CRDS,
            performers={MAKE_BOOTSTRAP_DATA: self._make_data},
            settings=SETTINGS,
        )

    async def _make_data(self, arguments: Mapping[str, Any]) -> None:
        await BootstrapData(self.world.client, SETTINGS.get)(arguments)

    async def ask(self) -> None:
        await self.create(IN_MEMORY_CLUSTER, new(IN_MEMORY_CLUSTER, "net", WORKSPACE) | {"spec": {}})
        template = new(IN_MEMORY_MACHINE_TEMPLATE, "small", WORKSPACE) | {"spec": {"template": {"spec": {}}}}
        await self.create(IN_MEMORY_MACHINE_TEMPLATE, template)
        pool = {
            "name": "servers",
            "quantity": 1,
            **dict.fromkeys(("etcdRole", "controlPlaneRole", "workerRole"), True),
            "machineConfigRef": _reference(template),
            "userdata": {"inlineUserdata": USERDATA},
        }
        wanted = cluster(pool, infrastructureRef={**_reference(new(IN_MEMORY_CLUSTER, "net")), "namespace": WORKSPACE})
        await self.create(PROVISIONING_CLUSTER, wanted)

    async def provide(self) -> None:
        """In the provider's place."""
        await self.patch(IN_MEMORY_CLUSTER, "net", {"spec": {"controlPlaneEndpoint": BALANCER}})
        done = {"status": {"initialization": {"provisioned": True}}}
        await self.patch(IN_MEMORY_CLUSTER, "net", done, subresource="status")

    async def data_of_the_machine(self) -> str:
        """What its provider hands to cloud-init; "" while there is none."""
        for machine in await self.all(MACHINE):
            name = machine["spec"]["bootstrap"].get("dataSecretName")
            secret = await self.get(SECRET, name) if name else None
            return base64.b64decode(secret["data"]["value"]).decode() if secret else ""
        return ""


def _reference(obj: Object) -> Object:
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": obj["metadata"]["name"]}


def test_machines_of_another_provider_get_their_script_as_cloud_config() -> None:
    async def run(pasture: Provided) -> None:
        async with pasture.world as world:
            await _ask_and_provide(pasture)

            async def is_made() -> bool:
                return bool(await pasture.data_of_the_machine())

            await world.until(is_made, within=120)
            text = await pasture.data_of_the_machine()
            assert text.startswith("## template: jinja\n#cloud-config\n")
            told = yaml.safe_load(text)
            assert told["runcmd"] == ["sh /usr/local/custom_script/install.sh", "echo mine"]
            assert told["package_update"] is True
            assert await pasture.names(RKE_CLUSTER) == [], "there is no infrastructure of our own"
            [machine] = await pasture.names(IN_MEMORY_MACHINE)
            assert machine.startswith("meadow-servers-")
            [start] = await pasture.names(BOOTSTRAP_TEMPLATE)
            assert start.startswith("meadow-servers-"), "each pool has its own, as it may have userdata"

    loop.run(run(Provided()))


async def _ask_and_provide(pasture: Provided) -> None:
    async def is_there() -> bool:
        return await pasture.get(CLUSTER, NAME) is not None

    await pasture.prepare()
    await pasture.ask()
    await pasture.world.until(is_there, within=60)
    await pasture.provide()


def test_where_the_api_answers_is_the_providers_to_say() -> None:
    """It may have a balancer; the first server would be a poor substitute."""

    async def run(pasture: Provided) -> None:
        async with pasture.world as world:
            await _ask_and_provide(pasture)

            async def endpoint() -> Object | None:
                found = await pasture.get(CLUSTER, NAME)
                known: Object | None = (found or {})["spec"].get("controlPlaneEndpoint")
                return known

            async def is_reported() -> bool:
                return await endpoint() == BALANCER

            await world.until(is_reported, within=60)
            first = {"host": "10.0.0.7", "port": 6443}
            await pasture.patch(CONTROL_PLANE, NAME, {"spec": {"controlPlaneEndpoint": first}})
            await asyncio.sleep(60)
            assert await endpoint() == BALANCER

    loop.run(run(Provided()))
