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
from tests.unit.engine.runtime.envtest import (
    CONFIG_MAP,
    SECRET,
    Environment,
    controller,
    environment,
    new_object,
    now,
    running_manager,
    until,
)


async def test_a_secret_for_each_config_map_follows_its_changes() -> None:
    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, view.name)
        if found is None or view.name == "kube-root-ca.crt":
            return DONE
        wanted = new_object(f"{view.name}-copy", SECRET, stringData=found.get("data") or {})
        return Decision(writes=(Apply(SECRET, wanted, "a copy"),))

    async with environment() as env, running_manager(env, controller(reconcile, watches=(Watches(SECRET),))) as manager:
        await env.create("a", data={"x": "1"})
        await until(lambda: manager.caches[SECRET].get(Key("default", "a-copy")))
        await env.change("a", data={"x": "2"})
        await until(lambda: manager.caches[SECRET].get(Key("default", "a-copy"))["data"]["x"] == "Mg==")  # type: ignore[index]
        assert env.wire.reads("configmaps") == env.wire.reads("secrets") == ["stream"]


async def test_changes_of_watched_objects_trigger_a_reconcile_only_if_the_predicate_matches() -> None:
    passes: list[str] = []

    def reconcile(view: View) -> Decision:
        passes.append(view.name)
        return DONE

    watches = (Watches(SECRET, named_by_label("for"), changed("data")),)
    async with environment() as env, running_manager(env, controller(reconcile, watches=watches)):
        secret = await env.create("s", SECRET, metadata={"labels": {"for": "a"}}, stringData={"x": "1"})
        await until(lambda: passes.count("a") == 1)
        for patch in ({"metadata": {"annotations": {"x": "1"}}}, {"stringData": {"x": "2"}}):
            await env.outside.patch(SECRET.resource, secret["metadata"]["name"], patch, namespace="default")
        await until(lambda: passes.count("a") == 2)
        await asyncio.sleep(0.05)
        assert passes.count("a") == 2


async def test_a_controller_whose_kind_is_not_served_does_not_block_the_others() -> None:
    seen: list[str] = []

    def reconcile(view: View) -> Decision:
        seen.append(view.name)
        return DONE

    missing = Controller("missing", Kind("example.com", "v1", "Missing", "missings"), lambda _view: DONE)
    async with environment() as env, running_manager(env, missing, controller(reconcile)) as manager:
        await env.create("a")
        await until(lambda: "a" in seen)
        assert [informer.failure for informer in manager.informers.values()] == ["404 page not found", ""]


def test_a_decision_is_requeued_at_its_wake_time() -> None:
    passes: list[float] = []

    def reconcile(view: View) -> Decision:
        if view.name != "a":
            return DONE
        passes.append(asyncio.get_running_loop().time())
        return waiting("the hour has not come", wake_at=view.now + timedelta(hours=1))

    async def work() -> str:
        async with environment() as env, running_manager(env, controller(reconcile)) as manager:
            await env.create("a")
            await asyncio.sleep(3600 * 3.5)
            wait = manager.running["test"].outcomes[Key("default", "a")].decision.wait
            return wait.reason if wait else ""

    assert virtual.run(work()) == "the hour has not come"
    assert [round(at - passes[0]) for at in passes] == [0, 3600, 7200, 10800]


async def test_a_reconciler_that_modifies_a_cached_object_fails() -> None:
    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, view.name)
        if found is not None:
            found["data"] = {"mine": "now"}
        return DONE

    async with environment() as env, running_manager(env, controller(reconcile)) as manager:
        await env.create("a")
        await until(lambda: manager.metrics.of("test").results["error"] > 0)


async def test_effect_results_are_visible_in_the_view() -> None:
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
        return Decision(writes=(Apply(CONFIG_MAP, new_object("a", data={"rolled": result.value}), "told"),))

    async with environment() as env:
        only_a = controller(reconcile, predicate=lambda change: change.key.name == "a")
        async with running_manager(env, only_a, performers={"roll": roll}) as manager:
            await env.create("a")
            found: Callable[[], Object | None] = lambda: manager.caches[CONFIG_MAP].get(Key("default", "a"))  # noqa: E731
            await until(lambda: (found() or {}).get("data") == {"rolled": "444"})


async def test_a_guard_refusal_is_recorded_with_its_reason() -> None:
    def deny(action: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
        return Refusal("no", f"{view.name} may not")

    def reconcile(view: View) -> Decision:
        return Decision(writes=(Create(SECRET, new_object("s", SECRET), "wanted"),)) if view.name == "a" else DONE

    async with environment() as env, running_manager(env, controller(reconcile), guards=[deny]) as manager:
        await env.create("a")
        outcomes = manager.running["test"].outcomes
        await until(lambda: Key("default", "a") in outcomes)
        assert outcomes[Key("default", "a")].refusal == Refusal("no", "a may not")
        with pytest.raises(NotFound):
            await env.outside.get(SECRET.resource, "s", namespace="default")


async def test_a_guard_refusal_is_visible_in_the_view_until_it_is_lifted() -> None:
    allowed: list[str] = []
    seen: list[str] = []

    def deny(action: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
        return None if view.name in allowed else Refusal("no", f"{view.name} may not")

    def reconcile(view: View) -> Decision:
        if view.name != "a":
            return DONE
        seen.append(str(view.refused or ""))
        return Decision(writes=(Apply(SECRET, new_object("s", SECRET), "wanted"),))

    async with environment() as env, running_manager(env, controller(reconcile), guards=[deny]) as manager:
        await env.create("a")
        await until(lambda: seen == ["", "refused: no: a may not"])
        allowed.append("a")
        manager.trigger("test", Key("default", "a"))
        await until(lambda: seen[1:] == ["refused: no: a may not"] * 2 + [""])


async def test_a_failing_predicate_does_not_hide_a_change_from_other_controllers() -> None:
    seen: list[str] = []

    def failing_predicate(change: Change) -> bool:
        raise KeyError("no such field")

    def reconcile(view: View) -> Decision:
        seen.append(view.name)
        return DONE

    bad = Controller("bad", CONFIG_MAP, lambda _view: DONE, predicate=failing_predicate)
    async with environment() as env, running_manager(env, bad, controller(reconcile)):
        await env.create("a")
        await env.create("b")
        await until(lambda: {"a", "b"} <= set(seen))


# --- stopping -----------------------------------------------------------------------------------------------------


async def stop_manager(env: Environment, *, abort: bool) -> tuple[list[str], list[str]]:
    """Stop the manager while the first of two writes is in flight and another key is queued; return what was reconciled
    and written."""
    arrived, proceed = asyncio.Event(), asyncio.Event()
    passes: list[str] = []

    def reconcile(view: View) -> Decision:
        if view.name == "kube-root-ca.crt":
            return DONE
        passes.append(view.name)
        writes = tuple(Apply(SECRET, new_object(f"{view.name}-{n}", SECRET), "wanted") for n in (1, 2))
        return Decision(writes=writes)

    inner = env.wire.send

    async def send_slowly(request: Request) -> Response:
        if request.method == "PATCH":
            arrived.set()
            await proceed.wait()
        return await inner(request)

    env.wire.send = send_slowly  # type: ignore[method-assign]
    manager = Manager(env.client, [controller(reconcile, workers=1)], clock=now, entropy=os.urandom)
    task = asyncio.ensure_future(manager.run())
    await env.create("a")
    await env.create("b")
    await arrived.wait()
    if abort:
        manager.abort()
    task.cancel()
    await asyncio.sleep(0.05)
    assert task.done() == abort, "a stop waits for what is on its way"
    proceed.set()
    await asyncio.gather(task, return_exceptions=True)
    page = await env.outside.list(SECRET.resource, namespace="default")
    return passes, [obj["metadata"]["name"] for obj in page.items]


async def test_a_stop_finishes_the_decision_in_flight_and_starts_no_other() -> None:
    async with environment() as env:
        assert await stop_manager(env, abort=False) == (["a"], ["a-1", "a-2"])


async def test_an_abort_cancels_the_decision_in_flight() -> None:
    async with environment() as env:
        assert await stop_manager(env, abort=True) == (["a"], [])


def test_a_stop_times_out() -> None:
    def reconcile(view: View) -> Decision:
        return Decision(writes=(Apply(SECRET, new_object(view.name.replace(".", "-"), SECRET), "wanted"),))

    async def work() -> float:
        async with environment() as env:
            inner = env.wire.send

            async def send_never(request: Request) -> Response:
                if request.method == "PATCH":
                    await asyncio.sleep(1e6)
                return await inner(request)

            env.wire.send = send_never  # type: ignore[method-assign]
            async with running_manager(env, controller(reconcile)):
                await env.create("a")
                await asyncio.sleep(5)
                began = asyncio.get_running_loop().time()
            return asyncio.get_running_loop().time() - began

    assert virtual.run(work()) == pytest.approx(manager_module.STOP_SECONDS, abs=0.1)


async def test_metrics_report_reconciles_queue_depth_and_lists() -> None:
    async with environment() as env, running_manager(env, controller(lambda _view: DONE)) as manager:
        await env.create("a")
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
        async with environment() as env, running_manager(env, controller(lambda _view: DONE), other) as manager:
            await env.create("a")
            await asyncio.sleep(1)
            assert manager.caches[CONFIG_MAP].select(index=("x", "1"))[0]["metadata"]["name"] == "a"
            return env.wire.reads("configmaps").count("stream")

    assert virtual.run(work()) == 1


# --- kinds first read at run time, metadata only ------------------------------------------------------------------


async def test_a_kind_first_read_at_run_time_is_watched_from_then_on() -> None:
    """The kind that a ConfigMap refers to is only known from its data."""
    seen: list[tuple[str, bool]] = []

    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, view.name)
        if found is None or view.name == "kube-root-ca.crt":
            return DONE
        referenced = view.get(SECRET, found["data"]["refers"])
        seen.append((view.name, referenced is not None))
        return DONE

    dynamic_watches = DynamicWatches(named_by_label("for"))
    async with (
        environment() as env,
        running_manager(env, controller(reconcile, dynamic_watches=dynamic_watches)) as manager,
    ):
        assert SECRET not in manager.caches
        await env.create("a", data={"refers": "s"})
        await env.create("b", data={"refers": "s"})
        await until(lambda: ("a", False) in seen and ("b", False) in seen)
        await env.create("s", SECRET, metadata={"labels": {"for": "a"}})
        await until(lambda: ("a", True) in seen)
        assert ("b", True) not in seen
        assert env.wire.reads("secrets") == ["stream"], "whoever meets the kind shares one watch"


async def test_spellings_of_a_kind_share_one_watch() -> None:
    """Users spell the kind of a reference in any case; all spellings name the same resource."""
    seen: list[tuple[str, str]] = []

    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, view.name)
        if found is None or view.name == "kube-root-ca.crt":
            return DONE
        referenced = view.get(SECRET._replace(kind=found["data"]["kind"]), "s")
        seen.append((view.name, referenced["kind"] if referenced else ""))
        return DONE

    by_label = DynamicWatches(named_by_label("for"))
    async with environment() as env, running_manager(env, controller(reconcile, dynamic_watches=by_label)) as manager:
        await env.create("s", SECRET)
        for name, kind in (("a", "sEcret"), ("b", "Secret"), ("c", "SECRET")):
            await env.create(name, data={"kind": kind})
            await until(lambda name=name: (name, "Secret") in seen)  # type: ignore[misc]
        assert env.wire.reads("secrets") == ["stream"]
        assert SECRET in manager.caches, "what is written as it is already is not sent"


async def test_a_metadata_only_watch_caches_only_metadata() -> None:
    names = SECRET.metadata_only()
    seen: list[Object] = []

    def reconcile(view: View) -> Decision:
        seen.extend(view.select(names))
        return DONE

    watches = (Watches(names, named_by_label("for"), fields="type=example.com/kept"),)
    async with environment() as env, running_manager(env, controller(reconcile, watches=watches)) as manager:
        await env.create("other", SECRET, metadata={"labels": {"for": "a"}}, stringData={"x": "hidden"})
        mine = {"metadata": {"labels": {"for": "a"}}, "type": "example.com/kept", "stringData": {"x": "hidden"}}
        await env.create("mine", SECRET, **mine)
        await until(lambda: seen)
        assert [obj["metadata"]["name"] for obj in manager.caches[names].select()] == ["mine"]
        assert seen[0]["kind"] == "Secret"
        assert set(seen[0]) == {"apiVersion", "kind", "metadata"}
