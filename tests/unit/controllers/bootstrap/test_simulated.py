"""Machines ask to be taken in while writes conflict, answers are lost and the manager dies: each becomes one Machine,
with one script whose token ends in time, and nothing is left of the requests."""

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

WORKSPACE, NAME, ID = "fleet-default", "meadow", "c-m-meadow22"
MACHINES = 4
SETTINGS = Settings(flags={"server-url": "https://manager.example.com"})


class Site:
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
        self.made: dict[str, str] = {}  # name → uid, of what may be made once only

    async def render(self, arguments: Mapping[str, Any]) -> None:
        await BootstrapData(self.world.client, SETTINGS.get)(arguments)

    async def read(self, arguments: Mapping[str, Any]) -> Any:
        return await RequestReader(self.world.client)(arguments)

    def invariant(self, kind: Kind, _event: str, obj: Object) -> None:
        meta = obj["metadata"]
        assert self.made.setdefault(f"{kind.kind} {meta['name']}", meta["uid"]) == meta["uid"], "made twice"
        if kind == BOOTSTRAP and ((obj.get("status") or {}).get("initialization") or {}).get("dataSecretCreated"):
            assert obj["status"]["dataSecretName"] == names.bootstrap_secret(meta["name"])

    # --- acts ---------------------------------------------------------------------------------------------------------

    async def make(self, kind: Kind, name: str, spec: Object | None = None, **meta: object) -> None:
        whole: Object = {"name": name, **meta} | ({"namespace": WORKSPACE} if kind.namespaced else {})
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": whole, "spec": spec or {}}
        await self.world.client.create(kind.resource, obj, namespace=WORKSPACE if kind.namespaced else "")

    async def report_status(self, kind: Kind, name: str, status: Object) -> None:
        await self.world.client.patch(
            kind.resource, name, {"status": status}, namespace=WORKSPACE, subresource="status"
        )

    async def put_up(self) -> None:
        await self.make(NAMESPACE, WORKSPACE)
        await self.make(NAMESPACE, ID)
        marks = {management.PROVISIONING_CLUSTER_OF: f"{WORKSPACE}/{NAME}"}
        await self.make(MANAGEMENT_CLUSTER, ID, {"fleetWorkspaceName": WORKSPACE}, annotations=marks)
        await self.make(PROVISIONING_CLUSTER, NAME, {"rkeConfig": {}})
        await self.report_status(PROVISIONING_CLUSTER, NAME, {"clusterName": ID})
        await self.make(CONTROL_PLANE, NAME, {"clusterName": NAME, "managementClusterName": ID})
        reference = {"apiGroup": CONTROL_PLANE.group, "kind": CONTROL_PLANE.kind, "name": NAME}
        await self.make(CLUSTER, NAME, {"controlPlaneRef": reference})
        await self.report_status(CLUSTER, NAME, {"initialization": {"infrastructureProvisioned": True}})

    async def register(self, machine_id: str) -> None:
        """As the door does, which waits for the answer; here nobody takes the request back."""
        kept = {"id": [machine_id], "role-worker": ["true"], "role-etcd": ["true"]}
        await self.world.client.create(SECRET.resource, request_secret(ID, kept), namespace=ID)

    # --- what is there ------------------------------------------------------------------------------------------------

    async def all_prepared(self) -> bool:
        found = (await self.world.client.list_all(BOOTSTRAP.resource, namespace=WORKSPACE)).items
        told = [each for each in found if (each.get("status") or {}).get("dataSecretName")]
        return len(told) == MACHINES

    async def all_invalidated(self) -> bool:
        label = f"{names.ACCOUNT_ROLE}={names.ACCOUNT_FOR_BOOTSTRAP}"
        secrets = (await self.world.client.list_all(SECRET.resource, namespace=WORKSPACE, labels=label)).items
        return all(names.TOKEN_INVALIDATED in each["metadata"]["annotations"] for each in secrets)

    async def no_requests(self) -> bool:
        return not (await self.world.client.list_all(SECRET.resource, namespace=ID, labels=names.REQUEST_FOR)).items

    async def secret(self, name: str) -> Object | None:
        try:
            return await self.world.client.get(SECRET.resource, name, namespace=WORKSPACE)
        except NotFound:
            return None


async def live(site: Site) -> None:
    async with site.world as world:
        await site.put_up()
        for number in range(MACHINES):
            await site.register(f"sheep-{number}")
        await world.until(site.all_prepared)
        for number in range(MACHINES):
            name = names.custom_machine(f"sheep-{number}")
            for kind in (MACHINE, CUSTOM_MACHINE):
                await world.client.get(kind.resource, name, namespace=WORKSPACE)
            machine = await world.client.get(MACHINE.resource, name, namespace=WORKSPACE)
            assert machine["metadata"]["annotations"][names.ETCD_HOOK] == names.ETCD_HOOK_OWNER
            script = await site.secret(names.bootstrap_secret(name))
            assert script is not None
            assert b"CATTLE_TOKEN='" in base64.b64decode(script["data"]["value"])
            plan = await site.secret(names.plan_secret(name))
            assert plan is not None
            assert (plan["type"], plan.get("data")) == (names.PLAN_SECRET_TYPE, None)
        await world.until(site.no_requests)
        await asyncio.sleep(29 * 60)
        await world.until(site.all_invalidated, within=120)


def test_machines_are_taken_in() -> None:
    loop.run(live(Site(0, NONE)))


@pytest.mark.parametrize("seed", range(1, 7))
def test_each_of_them_once_through_conflicts_losses_and_crashes(seed: int) -> None:
    loop.run(live(Site(seed, ROUGH)))
