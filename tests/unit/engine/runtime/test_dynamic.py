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


def note(kind: Kind, view: View) -> Decision:
    """Each toy gets a ConfigMap that says its colour, and wears what the ConfigMap `paint` says."""
    toy = view.get(kind, view.name)
    if toy is None:
        return DONE
    paint = view.get(CONFIG_MAP, "paint")
    told = {"kind": kind.kind, "colour": ((paint or {}).get("data") or {}).get("colour", "plain")}
    obj = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"note-{view.name}", "namespace": view.namespace},
        "data": told,
    }
    return Decision(writes=(Apply(CONFIG_MAP, obj, "tell of the toy"),))


def toy_controller(kind: Kind) -> Controller:
    return Controller(
        name=f"toy-{kind.plural}",
        kind=kind,
        reconcile=partial(note, kind),
        watches=(Watches(CONFIG_MAP, named_by_label("toy"), changed("data")),),
        indexes={CONFIG_MAP: {"named": name_of}},
    )


def name_of(obj: Object) -> list[str]:
    return [obj["metadata"]["name"]]


FAMILY = DynamicController("toys", DEFINITION, toy_kind, toy_controller)


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


async def defined(world: World, name: str) -> Kind:
    await world.client.create(CRDS, definition(name))
    await asyncio.sleep(1)
    kind = toy_kind(definition(name))
    assert kind is not None
    return kind


async def noted(world: World, name: str) -> dict[str, str]:
    await asyncio.sleep(2)
    found = await world.client.get(CONFIG_MAP.resource, f"note-{name}", namespace="default")
    return dict(found["data"])


def run(story: Callable[[World], object], *controllers: Controller) -> None:
    async def live() -> None:
        async with World(1, controllers, dynamic_controllers=[FAMILY]) as world:
            await story(world)  # type: ignore[misc]

    loop.run(live())


def test_a_kind_that_is_defined_while_we_run_gets_its_controller() -> None:
    async def story(world: World) -> None:
        for name in ("ball", "drum"):
            kind = await defined(world, name)
            await world.client.create(kind.resource, toy(kind, f"my-{name}"), namespace="default")
            assert (await noted(world, f"my-{name}"))["kind"] == kind.kind

    run(story)


def test_what_all_controllers_of_a_family_read_sets_each_of_them_off() -> None:
    async def story(world: World) -> None:
        ball, drum = await defined(world, "ball"), await defined(world, "drum")
        for kind in (ball, drum):
            await world.client.create(kind.resource, toy(kind, f"a-{kind.plural}"), namespace="default")
        await noted(world, "a-drums")
        paint = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "paint", "namespace": "default", "labels": {"toy": "a-drums"}},
            "data": {"colour": "red"},
        }
        await world.client.create(CONFIG_MAP.resource, paint, namespace="default")
        assert (await noted(world, "a-drums"))["colour"] == "red"
        assert (await noted(world, "a-balls"))["colour"] == "plain"

    run(story)


def test_a_kind_that_another_controller_follows_already_is_taken_over_with_its_objects() -> None:
    """Whoever met the kind first made the cache: the new controller must still see what is in it."""
    met = toy_kind(definition("ball"))
    assert met is not None

    def look(view: View) -> Decision:
        if view.name == "meet":
            view.get(met, "my-ball")
        return DONE

    follower = Controller(
        name="follower",
        kind=CONFIG_MAP,
        reconcile=look,
        dynamic_watches=DynamicWatches(owner(CONFIG_MAP), predicate=changed("spec")),
    )

    async def story(world: World) -> None:
        meet = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "meet", "namespace": "default"}}
        await world.client.create(CONFIG_MAP.resource, meet, namespace="default")
        await asyncio.sleep(1)
        kind = await defined(world, "ball")
        await world.client.create(kind.resource, toy(kind, "my-ball"), namespace="default")
        assert (await noted(world, "my-ball"))["kind"] == "Ball"

    run(story, follower)


def test_definitions_of_others_and_ones_that_come_again_change_nothing() -> None:
    async def story(world: World) -> None:
        kind = await defined(world, "ball")
        await world.client.delete(CRDS, f"balls.{GROUP}")
        await asyncio.sleep(2)
        again = await defined(world, "ball")
        await world.client.create(kind.resource, toy(again, "second"), namespace="default")
        await asyncio.sleep(60)
        assert (await noted(world, "second"))["kind"] == "Ball"
        assert [name for name in world.manager.running if name.startswith("toy-")] == ["toy-balls"]

    run(story)
