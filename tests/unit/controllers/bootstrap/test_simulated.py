"""Simulated registration of machines with conflicts, lost answers and crashes: each request becomes one Machine with
one script, whose token expires in time, and no request is left behind."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import pytest

from herder.api.capi.crds import CRDS as CAPI_CRDS
from herder.api.capi.kinds import CLUSTER, MACHINE, NAMESPACE, SECRET
from herder.api.crds import SETTING_CRD
from herder.api.management import names as management
from herder.api.management.crds import CRDS as MANAGEMENT_CRDS
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.crds import CRDS as RKE_CRDS
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE, CUSTOM_MACHINE
from herder.api.rke.node.requests import request_secret
from herder.api.settings import Settings
from herder.controllers.bootstrap import rke_bootstrap, tokens
from herder.controllers.capi.machine import controller as core
from herder.controllers.machines.custom import machines, requests
from herder.effects.bootstrap_data import BootstrapData
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.gateway.nodes.machine_requests import RequestReader
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.support.builders import new_manifest, object_reference

WORKSPACE, NAME, ID = "fleet-default", "meadow", "c-m-meadow22"
MACHINES = 4
SETTINGS = Settings(flags={"server-url": "https://manager.example.com"})


class RegistrationSimulation:
    def __init__(self, seed: int, faults: Faults) -> None:
        self.world = World(
            seed,
            [each.CONTROLLER for each in (core, rke_bootstrap, tokens, requests, machines)],
            crds=[*CAPI_CRDS, *MANAGEMENT_CRDS, *RKE_CRDS, SETTING_CRD],
            performers={names.MAKE_BOOTSTRAP_DATA: self.render, names.READ_REQUEST: self.read},
            faults=faults,
            watched=(MACHINE, BOOTSTRAP),
            invariant=self.invariant,
            settings=SETTINGS,
        )
        self.created_uids: dict[str, str] = {}  # name → UID, of objects that may be created only once

    async def render(self, arguments: Mapping[str, Any]) -> None:
        await BootstrapData(self.world.client, SETTINGS.get)(arguments)

    async def read(self, arguments: Mapping[str, Any]) -> Any:
        return await RequestReader(self.world.client)(arguments)

    def invariant(self, kind: Kind, _event: str, obj: Object) -> None:
        meta = obj["metadata"]
        assert self.created_uids.setdefault(f"{kind.kind} {meta['name']}", meta["uid"]) == meta["uid"], "created twice"
        if kind == BOOTSTRAP and ((obj.get("status") or {}).get("initialization") or {}).get("dataSecretCreated"):
            assert obj["status"]["dataSecretName"] == names.bootstrap_secret(meta["name"])

    # --- actions ------------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind, name: str, spec: Object | None = None, **metadata: object) -> None:
        namespace = WORKSPACE if kind.namespaced else ""
        obj = new_manifest(kind, name, namespace, metadata=metadata, spec=spec or {})
        await self.world.client.create(kind.resource, obj, namespace=namespace)

    async def report_status(self, kind: Kind, name: str, status: Object) -> None:
        await self.world.client.patch(
            kind.resource, name, {"status": status}, namespace=WORKSPACE, subresource="status"
        )

    async def create_cluster(self) -> None:
        await self.create(NAMESPACE, WORKSPACE)
        await self.create(NAMESPACE, ID)
        annotations = {management.PROVISIONING_CLUSTER_OF: f"{WORKSPACE}/{NAME}"}
        await self.create(MANAGEMENT_CLUSTER, ID, {"fleetWorkspaceName": WORKSPACE}, annotations=annotations)
        await self.create(PROVISIONING_CLUSTER, NAME, {"rkeConfig": {}})
        await self.report_status(PROVISIONING_CLUSTER, NAME, {"clusterName": ID})
        await self.create(CONTROL_PLANE, NAME, {"clusterName": NAME, "managementClusterName": ID})
        await self.create(CLUSTER, NAME, {"controlPlaneRef": object_reference(CONTROL_PLANE, NAME)})
        await self.report_status(CLUSTER, NAME, {"initialization": {"infrastructureProvisioned": True}})

    async def register(self, machine_id: str) -> None:
        """Create a request as the gateway does; here no client deletes it afterwards."""
        parameters = {"id": [machine_id], "role-worker": ["true"], "role-etcd": ["true"]}
        await self.world.client.create(SECRET.resource, request_secret(ID, parameters), namespace=ID)

    # --- state --------------------------------------------------------------------------------------------------------

    async def have_bootstrap_data(self) -> bool:
        found = (await self.world.client.list_all(BOOTSTRAP.resource, namespace=WORKSPACE)).items
        prepared = [each for each in found if (each.get("status") or {}).get("dataSecretName")]
        return len(prepared) == MACHINES

    async def are_invalidated(self) -> bool:
        label = f"{names.ACCOUNT_ROLE}={names.ACCOUNT_FOR_BOOTSTRAP}"
        secrets = (await self.world.client.list_all(SECRET.resource, namespace=WORKSPACE, labels=label)).items
        return all(names.TOKEN_INVALIDATED in each["metadata"]["annotations"] for each in secrets)

    async def has_no_requests(self) -> bool:
        return not (await self.world.client.list_all(SECRET.resource, namespace=ID, labels=names.REQUEST_FOR)).items

    async def secret(self, name: str) -> Object | None:
        try:
            return await self.world.client.get(SECRET.resource, name, namespace=WORKSPACE)
        except NotFound:
            return None


async def register_machines(simulation: RegistrationSimulation) -> None:
    async with simulation.world as world:
        await simulation.create_cluster()
        for number in range(MACHINES):
            await simulation.register(f"sheep-{number}")
        await world.until(simulation.have_bootstrap_data)
        for number in range(MACHINES):
            name = names.custom_machine(f"sheep-{number}")
            for kind in (MACHINE, CUSTOM_MACHINE):
                await world.client.get(kind.resource, name, namespace=WORKSPACE)
            machine = await world.client.get(MACHINE.resource, name, namespace=WORKSPACE)
            assert machine["metadata"]["annotations"][names.ETCD_HOOK] == names.ETCD_HOOK_OWNER
            script = await simulation.secret(names.bootstrap_secret(name))
            assert script is not None
            assert b"CATTLE_TOKEN='" in base64.b64decode(script["data"]["value"])
            plan = await simulation.secret(names.plan_secret(name))
            assert plan is not None
            assert (plan["type"], plan.get("data")) == (names.PLAN_SECRET_TYPE, None)
        await world.until(simulation.has_no_requests)
        await asyncio.sleep(29 * 60)
        await world.until(simulation.are_invalidated, within=120)


def test_machines_are_registered() -> None:
    loop.run(register_machines(RegistrationSimulation(0, NONE)))


@pytest.mark.parametrize("seed", range(1, 7))
def test_each_machine_is_registered_once_despite_conflicts_losses_and_crashes(seed: int) -> None:
    loop.run(register_machines(RegistrationSimulation(seed, ROUGH)))
