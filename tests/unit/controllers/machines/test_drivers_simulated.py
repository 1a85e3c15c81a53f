"""Drivers come, are switched off and go, whatever goes wrong meanwhile: no object is lost with its kind."""

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

KINDS = kinds_of("sheep")
TOLD = {
    "name": "sheep",
    "flags": [{"name": "sheep-wool", "type": "string", "default": "white", "env": "", "usage": "which"}],
}


class Herd:
    """One driver and the objects of its kinds."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.objects: set[str] = set()
        self.asked = 0
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
        self.asked += 1
        if self.asked == 1:
            raise OSError("the network is away")
        return TOLD

    async def list_names(self, arguments: Mapping[str, Any]) -> list[str]:
        return await list_names(self.world.client, arguments)

    def invariant(self, kind: Kind, event: str, obj: Object) -> None:
        meta = obj["metadata"]
        going = event == "DELETED" or meta.get("deletionTimestamp")
        if kind == DEFINITION and DRIVER_LABEL in (meta.get("labels") or {}):
            assert not (going and self.objects), "a kind goes only when there is no object of it"
        if kind == NODE_DRIVER and event == "DELETED":
            assert not self.objects, "a driver that is needed stays"

    async def live(self) -> None:
        spec = {"displayName": "sheep", "active": True, "url": "https://x/docker-machine-driver-sheep"}
        await self.world.client.create(NODE_DRIVER.resource, _made(NODE_DRIVER, "nd-1") | {"spec": spec})
        await self.world.until(self.is_served)
        await self.make(KINDS.machine, "m")
        await self.make(KINDS.config, "c")
        await self.switch(active=False)
        await self.world.until(self.is_refused)
        await self.remove(KINDS.machine, "m")
        await self.switch(active=True)
        await self.switch(active=False)
        await self.remove(KINDS.config, "c")
        await self.world.until(self.is_undefined)
        await self.switch(active=True)
        await self.world.until(self.is_served)
        await self.make(KINDS.template, "t")
        await self.world.client.delete(NODE_DRIVER.resource, "nd-1")
        await self.world.until(self.is_refused)
        await self.remove(KINDS.template, "t")
        await self.world.until(self.is_gone)
        await self.world.until(self.is_undefined)
        for registry in (await self.world.client.list_all(DYNAMIC_SCHEMA.resource)).items:
            assert not registry["spec"].get("resourceFields"), "nothing of the driver is left"

    # --- acts ---------------------------------------------------------------------------------------------------

    async def switch(self, *, active: bool) -> None:
        await self.world.client.patch(NODE_DRIVER.resource, "nd-1", {"spec": {"active": active}})

    async def make(self, kind: Kind, name: str) -> None:
        self.objects.add(name)
        obj = _made(kind, name) | ({"spec": {"template": {"spec": {}}}} if kind == KINDS.template else {})
        await self.world.client.create(kind.resource, obj, namespace="default")

    async def remove(self, kind: Kind, name: str) -> None:
        await self.world.client.delete(kind.resource, name, namespace="default")
        self.objects.discard(name)

    # --- what is waited for -------------------------------------------------------------------------------------

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
        told = (driver.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Inactive" and each.get("reason") == "ObjectsLeft" for each in told)

    async def is_gone(self) -> bool:
        return not (await self.world.client.list_all(NODE_DRIVER.resource)).items


def _made(kind: Kind, name: str) -> Object:
    meta = {"name": name} | ({"namespace": "default"} if kind.namespaced else {})
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}


async def live_through(seed: int, faults: Faults) -> Herd:
    herd = Herd(seed, faults)
    async with herd.world:
        await herd.live()
    return herd


def test_a_driver_lives_and_goes_when_nothing_goes_wrong() -> None:
    herd = loop.run(live_through(0, NONE))
    assert herd.asked == 2, "it is asked until it has answered, and then never again"


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_object_is_lost_through_conflicts_losses_and_crashes(seed: int) -> None:
    loop.run(live_through(seed, ROUGH))
