"""Events are recorded when a write changed something, in the background, and never disturb a reconcile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from herder.engine.control.cache import Key
from herder.engine.meta.errors import Forbidden
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.runtime.decision import DONE, WARNING, Create, Decision, Event, Patch, Ref, Refusal, waiting
from herder.engine.runtime.events import recorder
from herder.engine.runtime.events.recorder import MAX_MESSAGE, EventRecorder
from herder.engine.runtime.view import View
from herder.engine.wire import Request, Response
from herder.sim import loop as virtual
from tests.unit.engine.runtime.envtest import (
    CONFIG_MAP,
    Environment,
    controller,
    environment,
    new_object,
    now,
    running_manager,
    until,
)

EVENTS = GroupVersionResource("", "v1", "events")


def on_virtual_time(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(work)
    def run() -> None:
        virtual.run(work())

    return run


async def events(env: Environment, **fields: str) -> list[Object]:
    found = await env.outside.list(EVENTS, namespace="default")
    return [each for each in found.items if all(each.get(name) == value for name, value in fields.items())]


async def recorded(env: Environment, count: int, **fields: str) -> list[Object]:
    async with asyncio.timeout(60):
        while len(found := await events(env, **fields)) < count:
            await asyncio.sleep(0.01)
    return found


def about(obj: Object, reason: str, message: str = "") -> Event:
    meta = obj["metadata"]
    return Event(Ref(CONFIG_MAP, meta["name"], meta["namespace"]), meta["uid"], reason, message or reason)


def labels(obj: Object, value: str, *given: Event) -> Patch:
    meta = obj["metadata"]
    patch = {"metadata": {"labels": {"seen": value}}}
    return Patch(Ref(CONFIG_MAP, meta["name"], meta["namespace"]), patch, "test", events=given)


def mark(view: View) -> Decision:
    """Label the ConfigMap; every decision has the write and its Event."""
    obj = view.get(CONFIG_MAP, "one") if view.name == "one" else None
    return Decision(writes=(labels(obj, "yes", about(obj, "Labeled")),)) if obj else DONE


@on_virtual_time
async def test_an_event_is_recorded_with_the_write_that_it_describes() -> None:
    async with environment() as env, running_manager(env, controller(mark)):
        created = await env.create("one")
        (event,) = await recorded(env, 1)
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "ConfigMap", "name": "one", "namespace": "default",
        "uid": created["metadata"]["uid"],
    }  # fmt: skip
    assert (event["type"], event["reason"], event["message"], event["count"]) == ("Normal", "Labeled", "Labeled", 1)
    assert event["source"] == {"component": "test-controller"}
    assert event["metadata"]["name"].startswith("one.")
    assert event["firstTimestamp"] == event["lastTimestamp"]


@on_virtual_time
async def test_a_decision_that_repeats_records_nothing() -> None:
    async with environment() as env:
        for restart in range(3):
            async with running_manager(env, controller(mark)):
                if not restart:
                    await env.create("one")
                    await recorded(env, 1)
                await env.change("one", data={"round": str(restart)})
                await asyncio.sleep(5)
        (event,) = await events(env)
    assert event["count"] == 1


@on_virtual_time
async def test_a_failed_write_does_not_record_its_event_but_why_it_failed() -> None:
    def reconcile(view: View) -> Decision:
        obj = view.get(CONFIG_MAP, view.name)
        if obj is None or view.name != "one":
            return DONE
        wanted = new_object("Not_A_Name")
        return Decision(writes=(Create(CONFIG_MAP, wanted, "test", events=(about(obj, "Created"),)),))

    async with environment() as env, running_manager(env, controller(reconcile)):
        await env.create("one")
        (event,) = await recorded(env, 1, reason="FailedCreate")
        assert not await events(env, reason="Created")
    assert event["type"] == WARNING
    assert event["message"].startswith("Failed to create ConfigMap default/Not_A_Name: ")


@on_virtual_time
async def test_failures_in_other_namespaces_are_not_reported() -> None:
    def reconcile(view: View) -> Decision:
        wanted = new_object("x", metadata={"namespace": "of-others"})
        return Decision(writes=(Create(CONFIG_MAP, wanted, "test"),)) if view.get(CONFIG_MAP, view.name) else DONE

    async with environment() as env, running_manager(env, controller(reconcile)) as manager:
        env.wire.intercept = _refuse_in("of-others")
        await env.create("one")
        await until(lambda: manager.running["test"].outcomes.get(Key("default", "one")))
        await asyncio.sleep(5)
        assert not await events(env)


def _refuse_in(namespace: str) -> Any:
    def intercept(request: Request) -> Request | Response:
        if request.method == "POST" and f"/namespaces/{namespace}/" in request.path:
            raise Forbidden("a quota of others is exceeded")
        return request

    return intercept


@on_virtual_time
async def test_a_refusal_of_a_guard_is_recorded_once() -> None:
    def guard(_action: object, _view: View, _earlier: object) -> Refusal:
        return Refusal("never", "this is a test")

    async with environment() as env, running_manager(env, controller(mark), guards=[guard]):
        await env.create("one")
        await recorded(env, 1)
        await asyncio.sleep(300)  # retried every 30 seconds
        (event,) = await events(env)
    assert (event["reason"], event["type"], event["count"]) == ("GuardRefused", WARNING, 1)
    assert event["message"] == "never: this is a test"


@on_virtual_time
async def test_events_of_a_decision_are_recorded_once_per_state() -> None:
    def reconcile(view: View) -> Decision:
        obj = view.get(CONFIG_MAP, view.name)
        problem = ((obj or {}).get("data") or {}).get("problem", "")
        if obj is None or not problem:
            return DONE
        return waiting(problem, wake_at=view.now.replace(year=view.now.year + 1)) + Decision(
            events=(about(obj, "Refused", problem),)
        )

    async with environment() as env, running_manager(env, controller(reconcile)):
        await env.create("one", data={"problem": "a"})
        await recorded(env, 1)
        await env.change("one", data={"problem": "a", "other": "x"})
        await asyncio.sleep(5)
        await env.change("one", data={"problem": "b"})
        await recorded(env, 2)
        await env.change("one", data={"problem": ""})
        await asyncio.sleep(5)
        await env.change("one", data={"problem": "a"})
        async with asyncio.timeout(60):
            while {each["message"]: each["count"] for each in await events(env)} != {"a": 2, "b": 1}:
                await asyncio.sleep(0.1)


@on_virtual_time
async def test_recording_survives_rejections_and_expired_events() -> None:
    async with environment() as env:
        obj = await env.create("one")
        events_recorder = EventRecorder(env.client, clock=now, jitter=lambda: 0.5)
        task = asyncio.ensure_future(events_recorder.run())
        gone = {**obj, "metadata": {**obj["metadata"], "namespace": "does-not-exist"}}
        events_recorder.record(about(gone, "Lost"), "test")
        events_recorder.record(about(obj, "Kept"), "test")
        (first,) = await recorded(env, 1)
        await env.outside.delete(EVENTS, first["metadata"]["name"], namespace="default")
        events_recorder.record(about(obj, "Kept"), "test")
        (again,) = await recorded(env, 1)
        task.cancel()
    assert again["count"] == 2
    assert again["firstTimestamp"] == first["firstTimestamp"]


@on_virtual_time
async def test_an_unreachable_server_is_retried_and_the_queue_is_bounded() -> None:
    async with environment() as env:
        obj = await env.create("one")
        events_recorder = EventRecorder(env.client, clock=now, jitter=lambda: 0.5)
        task = asyncio.ensure_future(events_recorder.run())
        env.wire.down = True
        for number in range(3 * recorder.MAX_QUEUED):
            events_recorder.record(about(obj, "Many", f"message {number}"), "test")
        await asyncio.sleep(20)
        assert not await events(env)
        env.wire.down = False
        found = await recorded(env, 1)
        await events_recorder.flush()
        found = await events(env)
        task.cancel()
    assert len(found) == 10, "nine apart, the others combined"
    assert sum(each["count"] for each in found) <= 25


@on_virtual_time
async def test_long_messages_and_unusual_names_are_accepted() -> None:
    async with environment() as env:
        obj = await env.create("one")
        events_recorder = EventRecorder(env.client, clock=now, jitter=lambda: 0.5)
        task = asyncio.ensure_future(events_recorder.run())
        odd = {**obj, "metadata": {**obj["metadata"], "name": "Not:A:Subdomain"}}
        events_recorder.record(about(odd, "Long", "ä" * MAX_MESSAGE), "test")
        (event,) = await recorded(env, 1)
        task.cancel()
    assert len(event["message"].encode()) <= MAX_MESSAGE
    assert event["message"].endswith("…")


@on_virtual_time
async def test_queued_events_are_written_when_the_manager_ends() -> None:
    async with environment() as env:
        async with running_manager(env, controller(mark)):
            await env.create("one")
            await until(lambda: env.wire.count("PATCH", "configmaps"))
        assert len(await events(env)) == 1
