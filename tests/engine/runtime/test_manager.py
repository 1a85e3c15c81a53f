"""The manager runs reconcilers over shared caches, from the first sync to the last write."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from herder.engine.client.wire import Request, Response
from herder.engine.control.cache import Change, Key
from herder.engine.meta.errors import Conflict, NotFound, ServiceUnavailable
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
    Update,
    requesting,
    waiting,
)
from herder.engine.runtime.executor import Act
from herder.engine.runtime.handlers import Follows, Watches, changed, labelled
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.view import View
from herder.sim import loop as virtual
from tests.engine.runtime.world import CONFIG_MAP, SECRET, World, now, thing, until, world


def controller(reconcile: Callable[[View], Decision], **options: Any) -> Controller:
    return Controller("test", CONFIG_MAP, reconcile, **options)


@asynccontextmanager
async def managed(here: World, *controllers: Controller, **options: Any) -> AsyncIterator[Manager]:
    manager = Manager(here.client, controllers, clock=now, entropy=os.urandom, strict=True, **options)
    task = asyncio.ensure_future(manager.run())
    try:
        yield manager
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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

    watches = (Watches(SECRET, labelled("for"), changed("data")),)
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


async def test_a_stale_view_is_decided_on_again_until_it_works() -> None:
    """Somebody else writes between every look and every write, three times."""
    interferences = 3

    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, "a")
        if found is None or (found.get("data") or {}).get("ours"):
            return DONE
        return Decision(writes=(Update(CONFIG_MAP, found | {"data": {"ours": "1"}}, "ours"),))

    async with world() as here:

        def bend(request: Request) -> Request | Response:
            nonlocal interferences
            if request.method == "PUT" and interferences:
                interferences -= 1
                return Response(409, body=encoded(Conflict("the object has been modified")))
            return request

        here.wire.bend = bend
        async with managed(here, controller(reconcile, predicate=lambda change: change.key.name == "a")) as manager:
            await here.create("a")
            await until(lambda: (manager.caches[CONFIG_MAP].get(Key("default", "a")) or {}).get("data"))
            assert here.wire.count("PUT") == 4
            assert b'controller_runtime_reconcile_total{controller="test",result="requeue"} 3.0' in (
                manager.metrics.render()
            )
            await until(lambda: manager.running["test"].outcomes[Key("default", "a")].error == "")


def encoded(error: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(error.to_status())


def test_a_conflict_that_does_not_go_away_is_told() -> None:
    def reconcile(view: View) -> Decision:
        wanted = thing("a", data={"x": "ours"})
        return Decision(writes=(Apply(CONFIG_MAP, wanted, "ours", force=False),)) if view.name == "a" else DONE

    async def work() -> str:
        async with world() as here:
            await here.outside.apply(CONFIG_MAP.resource, thing("a", data={"x": "theirs"}), field_manager="they")
            async with managed(here, controller(reconcile)) as manager:
                await asyncio.sleep(600)
                return manager.running["test"].outcomes[Key("default", "a")].error

    assert 'conflict with "they"' in virtual.run(work())


def test_a_pass_that_raises_is_told_and_tried_again_with_growing_pauses() -> None:
    passes: list[float] = []

    def reconcile(view: View) -> Decision:
        if view.name != "a":
            return DONE
        passes.append(view.now.timestamp())
        raise ValueError("cannot decide")

    async def work() -> str:
        async with world() as here, managed(here, controller(reconcile)) as manager:
            await here.create("a")
            await asyncio.sleep(60)
            return manager.running["test"].outcomes[Key("default", "a")].error

    assert virtual.run(work()) == "ValueError: cannot decide"
    gaps = [later - earlier for earlier, later in itertools.pairwise(passes)]
    assert 10 <= len(passes) <= 16
    assert gaps == sorted(gaps)


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
    def no(act: Act, view: View, _before: Sequence[Act]) -> Refusal | None:
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

    def no(act: Act, view: View, _before: Sequence[Act]) -> Refusal | None:
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

    follows = Follows(labelled("for"))
    async with world() as here, managed(here, controller(reconcile, follows=follows)) as manager:
        assert SECRET not in manager.caches
        await here.create("a", data={"refers": "s"})
        await here.create("b", data={"refers": "s"})
        await until(lambda: ("a", False) in seen and ("b", False) in seen)
        await here.create("s", SECRET, metadata={"labels": {"for": "a"}})
        await until(lambda: ("a", True) in seen)
        assert ("b", True) not in seen
        assert here.wire.reads("secrets") == ["stream"], "whoever meets the kind shares one watch"


async def test_a_kind_read_as_metadata_alone_is_known_by_name_and_owner_only() -> None:
    names = SECRET.metadata_only()
    seen: list[Object] = []

    def reconcile(view: View) -> Decision:
        seen.extend(view.select(names))
        return DONE

    watches = (Watches(names, labelled("for"), fields="type=example.com/kept"),)
    async with world() as here, managed(here, controller(reconcile, watches=watches)) as manager:
        await here.create("other", SECRET, metadata={"labels": {"for": "a"}}, stringData={"x": "hidden"})
        mine = {"metadata": {"labels": {"for": "a"}}, "type": "example.com/kept", "stringData": {"x": "hidden"}}
        await here.create("mine", SECRET, **mine)
        await until(lambda: seen)
        assert [obj["metadata"]["name"] for obj in manager.caches[names].select()] == ["mine"]
        assert seen[0]["kind"] == "Secret"
        assert set(seen[0]) == {"apiVersion", "kind", "metadata"}


def test_a_paced_controller_sees_a_burst_of_changes_once() -> None:
    passes: list[float] = []

    async def story() -> None:
        def reconcile(view: View) -> Decision:
            if view.name == "a":
                passes.append(asyncio.get_running_loop().time())
            return DONE

        async with world() as here, managed(here, controller(reconcile, pace=1.0)):
            await here.create("a")
            await until(lambda: passes)
            for number in range(50):
                await here.change("a", data={"x": str(number)})
                await asyncio.sleep(0.01)
            await asyncio.sleep(5)

    virtual.run(story())
    assert len(passes) == 2
    assert passes[1] - passes[0] >= 1.0


@pytest.mark.parametrize(("pace", "expected"), [(0.1, 5.0), (0.0, 0.0)])
async def test_what_takes_long_to_decide_is_decided_less_often(pace: float, expected: float) -> None:
    moments = iter([10.0, 10.5])  # it decides for half a second
    async with world() as here:
        manager = Manager(
            here.client,
            [controller(lambda _view: DONE, pace=pace)],
            clock=now,
            entropy=os.urandom,
            stopwatch=lambda: next(moments),
        )
        running, key = manager.running["test"], Key("default", "a")
        await running._reconcile(key)
        assert running._pause(key) == expected
        assert running._pause(key) == pace, "each reconcile counts for itself"


@pytest.mark.parametrize("fault", ["naive wake_at", "cluster"])
def test_a_faulty_decision_ends_no_worker(fault: str) -> None:
    """Of one object: it is reported and retried; the others are reconciled as usual."""
    seen: list[str] = []

    def reconcile(view: View) -> Decision:
        seen.append(view.name)
        if view.name.startswith("bad") and fault == "naive wake_at":
            return Decision(wake_at=datetime(2030, 1, 1))
        return DONE

    def cluster_of(obj: Object) -> str:
        if obj["metadata"]["name"].startswith("bad") and fault == "cluster":
            raise KeyError("labels")
        return ""

    async def main() -> None:
        async with world() as here:
            options = {"workers": 2, "cluster_of": cluster_of}
            async with managed(here, controller(reconcile, **options)) as manager:
                for number in range(4):
                    await here.client.create(CONFIG_MAP.resource, thing(f"bad-{number}"), namespace="default")
                await asyncio.sleep(60)
                await here.client.create(CONFIG_MAP.resource, thing("good"), namespace="default")
                await until(lambda: "good" in seen)
                outcome = manager.running["test"].outcomes[Key("default", "bad-0")]
                if fault == "naive wake_at":
                    assert "no time zone" in outcome.error
                    assert 10 < seen.count("bad-0") < 30, "retried, ever more slowly"

    virtual.run(main())


def test_what_an_effect_created_is_created_again_when_it_is_lost() -> None:
    """Over the API: a Secret that a performer created and a user deletes."""

    def reconcile(view: View) -> Decision:
        if view.name != "cluster":
            return DONE
        if view.get(SECRET, "tokens") is not None:
            return DONE
        effect = Effect("make-tokens", ("make-tokens",), {}, "machines join with them", repeat=True)
        return requesting(effect, view.result(effect.key), "waiting for the tokens")

    async def main() -> None:
        async with world() as here:
            failures = ["the disk is full"]

            async def make(arguments: Mapping[str, Any]) -> None:
                if failures:
                    raise ServiceUnavailable(failures.pop())
                await here.client.create(SECRET.resource, thing("tokens", SECRET), namespace="default")

            watches = (Watches(SECRET, lambda _obj: [Key("default", "cluster")]),)
            async with managed(
                here, controller(reconcile, watches=watches), performers={"make-tokens": make}
            ) as manager:
                outcomes = manager.running["test"].outcomes
                await here.client.create(CONFIG_MAP.resource, thing("cluster"), namespace="default")
                await until(lambda: "the disk is full" in str(outcomes.get(Key("default", "cluster"))))
                outcome = outcomes[Key("default", "cluster")]
                assert outcome.decision.wait is not None
                assert outcome.decision.wait.reason == "waiting for the tokens: ServiceUnavailable: the disk is full"
                for _ in range(3):
                    await until(lambda: Key("default", "tokens") in manager.caches[SECRET], 600)
                    await here.client.delete(SECRET.resource, "tokens", namespace="default")
                    await until(lambda: Key("default", "tokens") not in manager.caches[SECRET])
                await until(lambda: Key("default", "tokens") in manager.caches[SECRET], 600)

    virtual.run(main())
