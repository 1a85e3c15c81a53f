"""Simulated lifecycle of a node driver with faults: no kind is deleted while objects of it exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.crds import CRDS
from herder.api.machines.drivers.known import DRIVER_LABEL
from herder.api.machines.kinds import DYNAMIC_SCHEMA, NODE_DRIVER, kinds_of
from herder.controllers.machines import dynamic_schemas, node_drivers
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.performers.find import list_names
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World
from tests.support.builders import new_manifest

KINDS = kinds_of("sheep")
DRIVER_ANSWER = {
    "name": "sheep",
    "flags": [{"name": "sheep-wool", "type": "string", "default": "white", "env": "", "usage": "which"}],
}


class SimulatedDriver:
    """One driver and the objects of its kinds."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.objects: set[str] = set()
        self.requests = 0
        self.world = World(
            seed,
            [node_drivers.controller(lambda _name: None), dynamic_schemas.CONTROLLER],
            crds=CRDS,
            performers={"driver-flags": self.driver_flags, "list-names": self.list_names},
            faults=faults,
            watched=(DEFINITION, NODE_DRIVER),
            invariant=self.invariant,
        )

    async def driver_flags(self, _arguments: Mapping[str, Any]) -> Any:
        self.requests += 1
        if self.requests == 1:
            raise OSError("the network is away")
        return DRIVER_ANSWER

    async def list_names(self, arguments: Mapping[str, Any]) -> list[str]:
        return await list_names(self.world.client, arguments)

    def invariant(self, kind: Kind, event: str, obj: Object) -> None:
        meta = obj["metadata"]
        deleting = event == "DELETED" or meta.get("deletionTimestamp")
        if kind == DEFINITION and DRIVER_LABEL in (meta.get("labels") or {}):
            assert not (deleting and self.objects), "a kind is deleted only when no object of it exists"
        if kind == NODE_DRIVER and event == "DELETED":
            assert not self.objects, "a driver in use stays"

    async def run_lifecycle(self) -> None:
        spec = {"displayName": "sheep", "active": True, "url": "https://x/docker-machine-driver-sheep"}
        await self.world.client.create(NODE_DRIVER.resource, new_manifest(NODE_DRIVER, "nd-1", spec=spec))
        await self.world.until(self.is_served)
        await self.create(KINDS.machine, "m")
        await self.create(KINDS.config, "c")
        await self.set_active(active=False)
        await self.world.until(self.is_refused)
        await self.remove(KINDS.machine, "m")
        await self.set_active(active=True)
        await self.set_active(active=False)
        await self.remove(KINDS.config, "c")
        await self.world.until(self.is_undefined)
        await self.set_active(active=True)
        await self.world.until(self.is_served)
        await self.create(KINDS.template, "t")
        await self.world.client.delete(NODE_DRIVER.resource, "nd-1")
        await self.world.until(self.is_refused)
        await self.remove(KINDS.template, "t")
        await self.world.until(self.is_gone)
        await self.world.until(self.is_undefined)
        for registry in (await self.world.client.list_all(DYNAMIC_SCHEMA.resource)).items:
            assert not registry["spec"].get("resourceFields"), "nothing of the driver remains"

    # --- actions ------------------------------------------------------------------------------------------------

    async def set_active(self, *, active: bool) -> None:
        await self.world.client.patch(NODE_DRIVER.resource, "nd-1", {"spec": {"active": active}})

    async def create(self, kind: Kind, name: str) -> None:
        self.objects.add(name)
        fields = {"spec": {"template": {"spec": {}}}} if kind == KINDS.template else {}
        obj = new_manifest(kind, name, "default", **fields)
        await self.world.client.create(kind.resource, obj, namespace="default")

    async def remove(self, kind: Kind, name: str) -> None:
        await self.world.client.delete(kind.resource, name, namespace="default")
        self.objects.discard(name)

    # --- conditions to wait for ---------------------------------------------------------------------------------

    async def is_served(self) -> bool:
        try:
            for kind in (KINDS.config, KINDS.template, KINDS.machine):
                await self.world.client.list(kind.resource)
        except NotFound:
            return False
        return not await self.is_undefined()

    async def is_undefined(self) -> bool:
        listed = await self.world.client.list_all(DEFINITION.resource, labels=DRIVER_LABEL)
        return not [each for each in listed.items if not each["metadata"].get("deletionTimestamp")]

    async def is_refused(self) -> bool:
        driver = await self.world.client.get(NODE_DRIVER.resource, "nd-1")
        conditions = (driver.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Inactive" and each.get("reason") == "ObjectsLeft" for each in conditions)

    async def is_gone(self) -> bool:
        return not (await self.world.client.list_all(NODE_DRIVER.resource)).items


async def simulate(seed: int, faults: Faults) -> SimulatedDriver:
    driver = SimulatedDriver(seed, faults)
    async with driver.world:
        await driver.run_lifecycle()
    return driver


def test_a_driver_is_activated_deactivated_and_deleted() -> None:
    driver = loop.run(simulate(0, NONE))
    assert driver.requests == 2, "the driver is asked until it has answered, and never again"


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_object_is_lost_despite_conflicts_losses_and_crashes(seed: int) -> None:
    loop.run(simulate(seed, ROUGH))
