"""Controllers for kinds that are defined while the manager runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from herder.api.capi.kinds import DEFINITION
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision
from herder.engine.runtime.dynamic import DynamicController
from herder.engine.runtime.handlers import DynamicWatches, Watches, changed, named_by_label, owner
from herder.engine.runtime.view import View
from herder.sim import loop
from herder.sim.world import CRDS, World

CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
GROUP = "toys.example.com"


def toy_kind(definition: Object) -> Kind | None:
    plural, _, group = definition["metadata"]["name"].partition(".")
    if group != GROUP:
        return None
    name = plural.removesuffix("s")
    return Kind(GROUP, "v1", name.capitalize(), plural)


def write_note(kind: Kind, view: View) -> Decision:
    """Write a ConfigMap for each toy with the color that the ConfigMap `paint` sets."""
    toy = view.get(kind, view.name)
    if toy is None:
        return DONE
    paint = view.get(CONFIG_MAP, "paint")
    note_data = {"kind": kind.kind, "colour": ((paint or {}).get("data") or {}).get("colour", "plain")}
    obj = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"note-{view.name}", "namespace": view.namespace},
        "data": note_data,
    }
    return Decision(writes=(Apply(CONFIG_MAP, obj, "tell of the toy"),))


def toy_controller(kind: Kind) -> Controller:
    return Controller(
        name=f"toy-{kind.plural}",
        kind=kind,
        reconcile=partial(write_note, kind),
        watches=(Watches(CONFIG_MAP, named_by_label("toy"), changed("data")),),
        indexes={CONFIG_MAP: {"named": name_of}},
    )


def name_of(obj: Object) -> list[str]:
    return [obj["metadata"]["name"]]


TOY_CONTROLLERS = DynamicController("toys", DEFINITION, toy_kind, toy_controller)


def definition(name: str) -> Object:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{name}s.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": f"{name}s", "singular": name, "kind": name.capitalize(), "listKind": f"{name}List"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }


def toy(kind: Kind, name: str) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": "default"},
    }


async def define_kind(world: World, name: str) -> Kind:
    await world.client.create(CRDS, definition(name))
    await asyncio.sleep(1)
    kind = toy_kind(definition(name))
    assert kind is not None
    return kind


async def read_note(world: World, name: str) -> dict[str, str]:
    await asyncio.sleep(2)
    found = await world.client.get(CONFIG_MAP.resource, f"note-{name}", namespace="default")
    return dict(found["data"])


def run(scenario: Callable[[World], object], *controllers: Controller) -> None:
    async def main() -> None:
        async with World(1, controllers, dynamic_controllers=[TOY_CONTROLLERS]) as world:
            await scenario(world)  # type: ignore[misc]

    loop.run(main())


def test_a_kind_defined_at_run_time_gets_a_controller() -> None:
    async def scenario(world: World) -> None:
        for name in ("ball", "drum"):
            kind = await define_kind(world, name)
            await world.client.create(kind.resource, toy(kind, f"my-{name}"), namespace="default")
            assert (await read_note(world, f"my-{name}"))["kind"] == kind.kind

    run(scenario)


def test_a_change_of_a_shared_watched_object_triggers_each_dynamic_controller() -> None:
    async def scenario(world: World) -> None:
        ball, drum = await define_kind(world, "ball"), await define_kind(world, "drum")
        for kind in (ball, drum):
            await world.client.create(kind.resource, toy(kind, f"a-{kind.plural}"), namespace="default")
        await read_note(world, "a-drums")
        paint = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "paint", "namespace": "default", "labels": {"toy": "a-drums"}},
            "data": {"colour": "red"},
        }
        await world.client.create(CONFIG_MAP.resource, paint, namespace="default")
        assert (await read_note(world, "a-drums"))["colour"] == "red"
        assert (await read_note(world, "a-balls"))["colour"] == "plain"

    run(scenario)


def test_a_kind_that_another_controller_already_watches_is_reconciled_with_its_objects() -> None:
    """The first watcher created the cache: the new controller must still reconcile the objects in it."""
    ball_kind = toy_kind(definition("ball"))
    assert ball_kind is not None

    def read_ball(view: View) -> Decision:
        if view.name == "meet":
            view.get(ball_kind, "my-ball")
        return DONE

    follower = Controller(
        name="follower",
        kind=CONFIG_MAP,
        reconcile=read_ball,
        dynamic_watches=DynamicWatches(owner(CONFIG_MAP), predicate=changed("spec")),
    )

    async def scenario(world: World) -> None:
        meet = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "meet", "namespace": "default"}}
        await world.client.create(CONFIG_MAP.resource, meet, namespace="default")
        await asyncio.sleep(1)
        kind = await define_kind(world, "ball")
        await world.client.create(kind.resource, toy(kind, "my-ball"), namespace="default")
        assert (await read_note(world, "my-ball"))["kind"] == "Ball"

    run(scenario, follower)


def test_a_recreated_definition_starts_no_second_controller() -> None:
    async def scenario(world: World) -> None:
        kind = await define_kind(world, "ball")
        await world.client.delete(CRDS, f"balls.{GROUP}")
        await asyncio.sleep(2)
        again = await define_kind(world, "ball")
        await world.client.create(kind.resource, toy(again, "second"), namespace="default")
        await asyncio.sleep(60)
        assert (await read_note(world, "second"))["kind"] == "Ball"
        assert [name for name in world.manager.running if name.startswith("toy-")] == ["toy-balls"]

    run(scenario)
