"""Controllers retry conflicts and failures with backoff, pace themselves, and repeat effects whose result is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from herder.engine.control.cache import Key
from herder.engine.meta.errors import Conflict, ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import (
    DONE,
    Apply,
    Decision,
    Effect,
    Update,
    requesting,
)
from herder.engine.runtime.handlers import Watches
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.view import View
from herder.engine.wire import Request, Response
from herder.sim import loop as virtual
from tests.unit.engine.runtime.envtest import (
    CONFIG_MAP,
    SECRET,
    controller,
    environment,
    new_object,
    now,
    running_manager,
    until,
)


async def test_a_conflicting_write_is_retried_until_it_succeeds() -> None:
    """Another client changes the object between the read and the write, three times."""
    interferences = 3

    def reconcile(view: View) -> Decision:
        found = view.get(CONFIG_MAP, "a")
        if found is None or (found.get("data") or {}).get("ours"):
            return DONE
        return Decision(writes=(Update(CONFIG_MAP, found | {"data": {"ours": "1"}}, "ours"),))

    async with environment() as env:

        def intercept(request: Request) -> Request | Response:
            nonlocal interferences
            if request.method == "PUT" and interferences:
                interferences -= 1
                return Response(409, body=encoded(Conflict("the object has been modified")))
            return request

        env.wire.intercept = intercept
        async with running_manager(
            env, controller(reconcile, predicate=lambda change: change.key.name == "a")
        ) as manager:
            await env.create("a")
            await until(lambda: (manager.caches[CONFIG_MAP].get(Key("default", "a")) or {}).get("data"))
            assert env.wire.count("PUT") == 4
            assert b'controller_runtime_reconcile_total{controller="test",result="requeue"} 3.0' in (
                manager.metrics.render()
            )
            await until(lambda: manager.running["test"].outcomes[Key("default", "a")].error == "")


def encoded(error: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(error.to_status())


def test_a_persistent_conflict_is_reported() -> None:
    def reconcile(view: View) -> Decision:
        wanted = new_object("a", data={"x": "ours"})
        return Decision(writes=(Apply(CONFIG_MAP, wanted, "ours", force=False),)) if view.name == "a" else DONE

    async def work() -> str:
        async with environment() as env:
            await env.outside.apply(CONFIG_MAP.resource, new_object("a", data={"x": "theirs"}), field_manager="they")
            async with running_manager(env, controller(reconcile)) as manager:
                await asyncio.sleep(600)
                return manager.running["test"].outcomes[Key("default", "a")].error

    assert 'conflict with "they"' in virtual.run(work())


def test_a_reconcile_that_raises_is_reported_and_retried_with_backoff() -> None:
    passes: list[float] = []

    def reconcile(view: View) -> Decision:
        if view.name != "a":
            return DONE
        passes.append(view.now.timestamp())
        raise ValueError("cannot decide")

    async def work() -> str:
        async with environment() as env, running_manager(env, controller(reconcile)) as manager:
            await env.create("a")
            await asyncio.sleep(60)
            return manager.running["test"].outcomes[Key("default", "a")].error

    assert virtual.run(work()) == "ValueError: cannot decide"
    gaps = [later - earlier for earlier, later in itertools.pairwise(passes)]
    assert 10 <= len(passes) <= 16
    assert gaps == sorted(gaps)


def test_a_paced_controller_reconciles_once_for_a_burst_of_changes() -> None:
    passes: list[float] = []

    async def scenario() -> None:
        def reconcile(view: View) -> Decision:
            if view.name == "a":
                passes.append(asyncio.get_running_loop().time())
            return DONE

        async with environment() as env, running_manager(env, controller(reconcile, pace=1.0)):
            await env.create("a")
            await until(lambda: passes)
            for number in range(50):
                await env.change("a", data={"x": str(number)})
                await asyncio.sleep(0.01)
            await asyncio.sleep(5)

    virtual.run(scenario())
    assert len(passes) == 2
    assert passes[1] - passes[0] >= 1.0


@pytest.mark.parametrize(("pace", "expected"), [(0.1, 5.0), (0.0, 0.0)])
async def test_a_slow_reconcile_runs_less_often(pace: float, expected: float) -> None:
    timestamps = iter([10.0, 10.5])  # the reconcile takes half a second
    async with environment() as env:
        manager = Manager(
            env.client,
            [controller(lambda _view: DONE, pace=pace)],
            clock=now,
            entropy=os.urandom,
            stopwatch=lambda: next(timestamps),
        )
        running, key = manager.running["test"], Key("default", "a")
        await running._reconcile(key)
        assert running._pause(key) == expected
        assert running._pause(key) == pace, "each reconcile counts for itself"


@pytest.mark.parametrize("fault", ["naive wake_at", "cluster"])
def test_an_invalid_decision_does_not_stop_a_worker(fault: str) -> None:
    """The decision of one object is reported and retried; the others are reconciled as usual."""
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
        async with environment() as env:
            options = {"workers": 2, "cluster_of": cluster_of}
            async with running_manager(env, controller(reconcile, **options)) as manager:
                for number in range(4):
                    await env.client.create(CONFIG_MAP.resource, new_object(f"bad-{number}"), namespace="default")
                await asyncio.sleep(60)
                await env.client.create(CONFIG_MAP.resource, new_object("good"), namespace="default")
                await until(lambda: "good" in seen)
                outcome = manager.running["test"].outcomes[Key("default", "bad-0")]
                if fault == "naive wake_at":
                    assert "no time zone" in outcome.error
                    assert 10 < seen.count("bad-0") < 30, "retried, ever more slowly"

    virtual.run(main())


def test_an_object_created_by_an_effect_is_recreated_after_deletion() -> None:
    """A performer creates a Secret through the API, and a user deletes it."""

    def reconcile(view: View) -> Decision:
        if view.name != "cluster":
            return DONE
        if view.get(SECRET, "tokens") is not None:
            return DONE
        effect = Effect("make-tokens", ("make-tokens",), {}, "machines join with them", repeat=True)
        return requesting(effect, view.result(effect.key), "waiting for the tokens")

    async def main() -> None:
        async with environment() as env:
            failures = ["the disk is full"]

            async def create_tokens(arguments: Mapping[str, Any]) -> None:
                if failures:
                    raise ServiceUnavailable(failures.pop())
                await env.client.create(SECRET.resource, new_object("tokens", SECRET), namespace="default")

            watches = (Watches(SECRET, lambda _obj: [Key("default", "cluster")]),)
            async with running_manager(
                env, controller(reconcile, watches=watches), performers={"make-tokens": create_tokens}
            ) as manager:
                outcomes = manager.running["test"].outcomes
                await env.client.create(CONFIG_MAP.resource, new_object("cluster"), namespace="default")
                await until(lambda: "the disk is full" in str(outcomes.get(Key("default", "cluster"))))
                outcome = outcomes[Key("default", "cluster")]
                assert outcome.decision.wait is not None
                assert outcome.decision.wait.reason == "waiting for the tokens: ServiceUnavailable: the disk is full"
                for _ in range(3):
                    await until(lambda: Key("default", "tokens") in manager.caches[SECRET], 600)
                    await env.client.delete(SECRET.resource, "tokens", namespace="default")
                    await until(lambda: Key("default", "tokens") not in manager.caches[SECRET])
                await until(lambda: Key("default", "tokens") in manager.caches[SECRET], 600)

    virtual.run(main())
