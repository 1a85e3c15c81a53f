"""The example controller in simulation: thousands of orders and faults, one set of invariants, replayable by seed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from herder.api.crds import FLOCK_CRD
from herder.api.example import CONFIG_MAP, FLOCK, FLOCK_LABEL, SECRET
from herder.api.guards import GUARDS
from herder.controllers.example.flock import CONTROLLER
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from herder.sim.world import World

SEEDS = range(1, 26)


class Invariants:
    """What must hold at every event, whatever fails."""

    def __init__(self) -> None:
        self.members: dict[str, Object] = {}
        self.flock: Object | None = None
        self.keys: set[str] = set()
        self.lowest: int | None = None

    def __call__(self, kind: Kind, event: str, obj: Object) -> None:
        if kind == FLOCK:
            self.flock = None if event == "DELETED" else obj
            if event == "DELETED":
                assert not self.members, "a flock is deleted only after its members"
        elif kind == SECRET and event == "ADDED":
            self.keys.add(obj["metadata"]["uid"])
            assert len(self.keys) == 1, "a key is created once, however often the manager crashes"
        elif kind == CONFIG_MAP and FLOCK_LABEL in (obj["metadata"].get("labels") or {}):
            self._member(event, obj)

    def _member(self, event: str, obj: Object) -> None:
        if event == "DELETED":
            self.members.pop(obj["metadata"]["name"])
        else:
            self.members[obj["metadata"]["name"]] = obj
        assert len(self.members) <= 6, "never above the ceiling"
        deleting = self.flock is None or self.flock["metadata"].get("deletionTimestamp")
        if event == "DELETED" and not deleting:
            assert len(self.members) >= 2, "never below minAvailable"


async def run_scenario(seed: int, faults: Faults) -> World:
    invariants = Invariants()

    async def random_key(arguments: Mapping[str, Any]) -> str:
        return base64.b64encode(world.random.randbytes(arguments["bytes"])).decode()

    world = World(
        seed,
        [CONTROLLER],
        crds=[FLOCK_CRD],
        guards=GUARDS,
        performers={"random-key": random_key},
        faults=faults,
        watched=(FLOCK, CONFIG_MAP, SECRET),
        invariant=invariants,
    )
    async with world:
        spec = {"size": 5, "minAvailable": 2, "message": "one", "pauseSeconds": 2}
        await world.client.create(
            FLOCK.resource,
            {
                "apiVersion": FLOCK.api_version,
                "kind": "Flock",
                "metadata": {"name": "f", "namespace": "default"},
                "spec": spec,
            },
            namespace="default",
        )
        for change in ({}, {"message": "two"}, {"size": 3}, {"size": 6, "message": "three"}):
            await world.client.patch(FLOCK.resource, "f", {"spec": change}, namespace="default")
            await world.until(lambda: is_ready(world))
        await world.client.delete(FLOCK.resource, "f", namespace="default")
        await world.until(lambda: is_deleted(world))
        assert invariants.members == {}
        assert invariants.flock is None
    return world


async def is_ready(world: World) -> bool:
    flock = await world.client.get(FLOCK.resource, "f", namespace="default")
    status = flock.get("status") or {}
    return status.get("phase") == "Ready" and status.get("observedGeneration") == flock["metadata"]["generation"]


async def is_deleted(world: World) -> bool:
    try:
        await world.client.get(FLOCK.resource, "f", namespace="default")
    except NotFound:
        return True
    return False


def test_a_flock_is_created_and_deleted_without_faults() -> None:
    world = loop.run(run_scenario(0, NONE))
    assert world.crashes == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_under_conflicts_losses_and_crashes(seed: int) -> None:
    loop.run(run_scenario(seed, ROUGH))


def test_the_same_seed_gives_the_same_event_log() -> None:
    first, second = (loop.run(run_scenario(7, ROUGH)) for _ in range(2))
    assert first.log == second.log
    assert first.digest() != loop.run(run_scenario(8, ROUGH)).digest()
