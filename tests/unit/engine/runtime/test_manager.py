"""The manager runs reconcilers over shared caches, from the first sync to the last write."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from herder.engine.control.cache import Change, Key
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime import manager as manager_module
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import (
    DONE,
    Apply,
    Create,
    Decision,
    Effect,
    Refusal,
    waiting,
)
from herder.engine.runtime.executor import Action
from herder.engine.runtime.handlers import DynamicWatches, Watches, changed, named_by_label
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.view import View
from herder.engine.wire import Request, Response
from herder.sim import loop as virtual
from tests.unit.engine.runtime.world import CONFIG_MAP, SECRET, World, controller, managed, now, thing, until, world


async def test_a_secret_for_each_config_map_follows_its_changes() -> None:
    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, view.name)
        if found is None or view.name == "kube-root-ca.crt":
            return DONE
        wanted = thing(f"{view.name}-copy", SECRET, stringData=found.get("data") or {})
        return Decision(writes=(Apply(SECRET, wanted, "a copy"),))

    async with world() as here, managed(here, controller(reconcile, watches=(Watches(SECRET),))) as manager:
        await here.create("a", data={"x": "1"})
        await until(lambda: manager.caches[SECRET].get(Key("default", "a-copy")))
        await here.change("a", data={"x": "2"})
        await until(lambda: manager.caches[SECRET].get(Key("default", "a-copy"))["data"]["x"] == "Mg==")  # type: ignore[index]
        assert here.wire.reads("configmaps") == here.wire.reads("secrets") == ["stream"]


async def test_changes_of_others_set_off_whom_they_concern_and_only_when_they_matter() -> None:
    passes: list[str] = []

    def reconcile(view: View) -> Decision:
        passes.append(view.name)
        return DONE

    watches = (Watches(SECRET, named_by_label("for"), changed("data")),)
    async with world() as here, managed(here, controller(reconcile, watches=watches)):
        secret = await here.create("s", SECRET, metadata={"labels": {"for": "a"}}, stringData={"x": "1"})
        await until(lambda: passes.count("a") == 1)
        for patch in ({"metadata": {"annotations": {"x": "1"}}}, {"stringData": {"x": "2"}}):
            await here.outside.patch(SECRET.resource, secret["metadata"]["name"], patch, namespace="default")
        await until(lambda: passes.count("a") == 2)
        await asyncio.sleep(0.05)
        assert passes.count("a") == 2


async def test_a_controller_whose_kind_is_not_served_holds_up_nobody_else() -> None:
    seen: list[str] = []

    def reconcile(view: View) -> Decision:
        seen.append(view.name)
        return DONE

    missing = Controller("missing", Kind("example.com", "v1", "Missing", "missings"), lambda _view: DONE)
    async with world() as here, managed(here, missing, controller(reconcile)) as manager:
        await here.create("a")
        await until(lambda: "a" in seen)
        assert [informer.failure for informer in manager.informers.values()] == ["404 page not found", ""]


def test_a_decision_wakes_itself_when_it_said() -> None:
    passes: list[float] = []

    def reconcile(view: View) -> Decision:
        if view.name != "a":
            return DONE
        passes.append(asyncio.get_running_loop().time())
        return waiting("the hour has not come", wake_at=view.now + timedelta(hours=1))

    async def work() -> str:
        async with world() as here, managed(here, controller(reconcile)) as manager:
            await here.create("a")
            await asyncio.sleep(3600 * 3.5)
            wait = manager.running["test"].outcomes[Key("default", "a")].decision.wait
            return wait.reason if wait else ""

    assert virtual.run(work()) == "the hour has not come"
    assert [round(at - passes[0]) for at in passes] == [0, 3600, 7200, 10800]


async def test_a_reconciler_that_changes_what_it_was_shown_is_found_out() -> None:
    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, view.name)
        if found is not None:
            found["data"] = {"mine": "now"}
        return DONE

    async with world() as here, managed(here, controller(reconcile)) as manager:
        await here.create("a")
        await until(lambda: manager.metrics.of("test").results["error"] > 0)


async def test_effects_come_back_through_the_view() -> None:
    async def roll(arguments: Mapping[str, Any]) -> str:
        return "4" * arguments["times"]

    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, "a")
        if found is None:
            return DONE
        key = (found["metadata"]["uid"], "roll")
        result = view.result(key)
        if result is None:
            return Decision(effects=(Effect("roll", key, {"times": 3}, "chance decides"),))
        return Decision(writes=(Apply(CONFIG_MAP, thing("a", data={"rolled": result.value}), "told"),))

    async with world() as here:
        only_a = controller(reconcile, predicate=lambda change: change.key.name == "a")
        async with managed(here, only_a, performers={"roll": roll}) as manager:
            await here.create("a")
            found: Callable[[], Object | None] = lambda: manager.caches[CONFIG_MAP].get(Key("default", "a"))  # noqa: E731
            await until(lambda: (found() or {}).get("data") == {"rolled": "444"})


async def test_a_refusal_is_kept_with_its_reason() -> None:
    def no(act: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
        return Refusal("no", f"{view.name} may not")

    def reconcile(view: View) -> Decision:
        return Decision(writes=(Create(SECRET, thing("s", SECRET), "wanted"),)) if view.name == "a" else DONE

    async with world() as here, managed(here, controller(reconcile), guards=[no]) as manager:
        await here.create("a")
        outcomes = manager.running["test"].outcomes
        await until(lambda: Key("default", "a") in outcomes)
        assert outcomes[Key("default", "a")].refusal == Refusal("no", "a may not")
        with pytest.raises(NotFound):
            await here.outside.get(SECRET.resource, "s", namespace="default")


async def test_a_refusal_is_seen_in_the_next_pass_until_it_is_over() -> None:
    allowed: list[str] = []
    seen: list[str] = []

    def no(act: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
        return None if view.name in allowed else Refusal("no", f"{view.name} may not")

    def reconcile(view: View) -> Decision:
        if view.name != "a":
            return DONE
        seen.append(str(view.refused or ""))
        return Decision(writes=(Apply(SECRET, thing("s", SECRET), "wanted"),))

    async with world() as here, managed(here, controller(reconcile), guards=[no]) as manager:
        await here.create("a")
        await until(lambda: seen == ["", "refused: no: a may not"])
        allowed.append("a")
        manager.trigger("test", Key("default", "a"))
        await until(lambda: seen[1:] == ["refused: no: a may not"] * 2 + [""])


async def test_one_controllers_faulty_trigger_does_not_hide_a_change_from_the_others() -> None:
    seen: list[str] = []

    def faulty(change: Change) -> bool:
        raise KeyError("no such field")

    def reconcile(view: View) -> Decision:
        seen.append(view.name)
        return DONE

    bad = Controller("bad", CONFIG_MAP, lambda _view: DONE, predicate=faulty)
    async with world() as here, managed(here, bad, controller(reconcile)):
        await here.create("a")
        await here.create("b")
        await until(lambda: {"a", "b"} <= set(seen))


# --- stopping -------------------------------------------------------------------------------------------------------


async def stopping(here: World, *, abort: bool) -> tuple[list[str], list[str]]:
    """Stop while the first of two writes of one decision is on its way and another key waits; what was written."""
    arrived, go = asyncio.Event(), asyncio.Event()
    passes: list[str] = []

    def reconcile(view: View) -> Decision:
        if view.name == "kube-root-ca.crt":
            return DONE
        passes.append(view.name)
        writes = tuple(Apply(SECRET, thing(f"{view.name}-{n}", SECRET), "wanted") for n in (1, 2))
        return Decision(writes=writes)

    inner = here.wire.send

    async def slowly(request: Request) -> Response:
        if request.method == "PATCH":
            arrived.set()
            await go.wait()
        return await inner(request)

    here.wire.send = slowly  # type: ignore[method-assign]
    manager = Manager(here.client, [controller(reconcile, workers=1)], clock=now, entropy=os.urandom)
    task = asyncio.ensure_future(manager.run())
    await here.create("a")
    await here.create("b")
    await arrived.wait()
    if abort:
        manager.abort()
    task.cancel()
    await asyncio.sleep(0.05)
    assert task.done() == abort, "a stop waits for what is on its way"
    go.set()
    await asyncio.gather(task, return_exceptions=True)
    page = await here.outside.list(SECRET.resource, namespace="default")
    return passes, [obj["metadata"]["name"] for obj in page.items]


async def test_a_stop_finishes_the_decision_on_its_way_and_begins_no_other() -> None:
    async with world() as here:
        assert await stopping(here, abort=False) == (["a"], ["a-1", "a-2"])


async def test_an_abort_finishes_nothing() -> None:
    async with world() as here:
        assert await stopping(here, abort=True) == (["a"], [])


def test_a_stop_does_not_wait_for_ever() -> None:
    def reconcile(view: View) -> Decision:
        return Decision(writes=(Apply(SECRET, thing(view.name.replace(".", "-"), SECRET), "wanted"),))

    async def work() -> float:
        async with world() as here:
            inner = here.wire.send

            async def never(request: Request) -> Response:
                if request.method == "PATCH":
                    await asyncio.sleep(1e6)
                return await inner(request)

            here.wire.send = never  # type: ignore[method-assign]
            async with managed(here, controller(reconcile)):
                await here.create("a")
                await asyncio.sleep(5)
                began = asyncio.get_running_loop().time()
            return asyncio.get_running_loop().time() - began

    assert virtual.run(work()) == pytest.approx(manager_module.STOP_SECONDS, abs=0.1)


async def test_metrics_tell_passes_depth_and_lists() -> None:
    async with world() as here, managed(here, controller(lambda _view: DONE)) as manager:
        await here.create("a")
        await until(lambda: Key("default", "a") in manager.running["test"].outcomes)
        text = manager.metrics.render().decode()
    for line in (
        'controller_runtime_reconcile_total{controller="test",result="success"}',
        'workqueue_depth{name="test"} 0.0',
        'workqueue_adds_total{name="test"}',
        'informer_lists_total{kind="ConfigMap.v1"} 1.0',
    ):
        assert line in text


def test_kinds_are_shared_between_controllers() -> None:
    other = replace(controller(lambda _view: DONE), name="other", indexes={CONFIG_MAP: {"x": lambda _obj: ["1"]}})

    async def work() -> int:
        async with world() as here, managed(here, controller(lambda _view: DONE), other) as manager:
            await here.create("a")
            await asyncio.sleep(1)
            assert manager.caches[CONFIG_MAP].select(index=("x", "1"))[0]["metadata"]["name"] == "a"
            return here.wire.reads("configmaps").count("stream")

    assert virtual.run(work()) == 1


# --- kinds met at run time, metadata alone ------------------------------------------------------------------------


async def test_a_kind_met_at_run_time_is_followed_from_then_on() -> None:
    """What a ConfigMap refers to is of a kind that only its data tell."""
    seen: list[tuple[str, bool]] = []

    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, view.name)
        if found is None or view.name == "kube-root-ca.crt":
            return DONE
        referred = view.get(SECRET, found["data"]["refers"])
        seen.append((view.name, referred is not None))
        return DONE

    dynamic_watches = DynamicWatches(named_by_label("for"))
    async with world() as here, managed(here, controller(reconcile, dynamic_watches=dynamic_watches)) as manager:
        assert SECRET not in manager.caches
        await here.create("a", data={"refers": "s"})
        await here.create("b", data={"refers": "s"})
        await until(lambda: ("a", False) in seen and ("b", False) in seen)
        await here.create("s", SECRET, metadata={"labels": {"for": "a"}})
        await until(lambda: ("a", True) in seen)
        assert ("b", True) not in seen
        assert here.wire.reads("secrets") == ["stream"], "whoever meets the kind shares one watch"


async def test_spellings_of_a_kind_share_one_watch() -> None:
    """Users write the kinds of references in any case, and they name the same resource."""
    seen: list[tuple[str, str]] = []

    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, view.name)
        if found is None or view.name == "kube-root-ca.crt":
            return DONE
        referred = view.get(SECRET._replace(kind=found["data"]["kind"]), "s")
        seen.append((view.name, referred["kind"] if referred else ""))
        return DONE

    by_label = DynamicWatches(named_by_label("for"))
    async with world() as here, managed(here, controller(reconcile, dynamic_watches=by_label)) as manager:
        await here.create("s", SECRET)
        for name, kind in (("a", "sEcret"), ("b", "Secret"), ("c", "SECRET")):
            await here.create(name, data={"kind": kind})
            await until(lambda name=name: (name, "Secret") in seen)  # type: ignore[misc]
        assert here.wire.reads("secrets") == ["stream"]
        assert SECRET in manager.caches, "what is written as it is already is not sent"


async def test_a_kind_read_as_metadata_alone_is_known_by_name_and_owner_only() -> None:
    names = SECRET.metadata_only()
    seen: list[Object] = []

    def reconcile(view: View) -> Decision:
        seen.extend(view.select(names))
        return DONE

    watches = (Watches(names, named_by_label("for"), fields="type=example.com/kept"),)
    async with world() as here, managed(here, controller(reconcile, watches=watches)) as manager:
        await here.create("other", SECRET, metadata={"labels": {"for": "a"}}, stringData={"x": "hidden"})
        mine = {"metadata": {"labels": {"for": "a"}}, "type": "example.com/kept", "stringData": {"x": "hidden"}}
        await here.create("mine", SECRET, **mine)
        await until(lambda: seen)
        assert [obj["metadata"]["name"] for obj in manager.caches[names].select()] == ["mine"]
        assert seen[0]["kind"] == "Secret"
        assert set(seen[0]) == {"apiVersion", "kind", "metadata"}
