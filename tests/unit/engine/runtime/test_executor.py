"""The executor checks guards, sends writes in order, skips no-op requests and updates the caches immediately."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from herder.engine.control.cache import Cache, Change, Key
from herder.engine.meta.errors import AlreadyExists, Conflict, ServiceUnavailable
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import (
    Apply,
    Create,
    Decision,
    Delete,
    Effect,
    Outcome,
    Parallel,
    Patch,
    Ref,
    Refusal,
    Update,
    Write,
)
from herder.engine.runtime.executor import Action, DecisionExecutor, Guard, Reconciled
from herder.engine.runtime.view import UndeclaredKind, View
from herder.engine.runtime.writer import StaleWrite, Writer
from herder.engine.wire import Request, Response
from herder.sim import loop as virtual
from tests.unit.engine.runtime.envtest import CONFIG_MAP, SECRET, Environment, environment, new_object, now

DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)


class ExecutorHarness:
    def __init__(self, env: Environment, guards: Sequence[Guard] = ()) -> None:
        self.env = env
        self.caches = {kind: Cache(kind) for kind in (CONFIG_MAP, SECRET, DEPLOYMENT)}
        self.changes: list[tuple[Kind, Change]] = []
        self.writer = Writer(env.client, caches=self.caches, on_change=lambda *change: self.changes.append(change))
        self.executor = DecisionExecutor(self.writer, guards=guards)

    async def __call__(self, *writes: Write | Parallel, effects: tuple[Effect, ...] = ()) -> Outcome:
        return await self.executor.execute(Decision(writes, effects), self.view(), manager="tester", now=now())

    def view(self) -> View:
        return View(
            key=Key("default", "x"),
            now=now(),
            caches={CONFIG_MAP: self.caches[CONFIG_MAP]},
            all_caches=self.caches,
            results={},
            observe=lambda _subscription: None,
            setting=str,
            seed=b"seed",
        )

    def cached(self, name: str, kind: Kind = CONFIG_MAP) -> Any:
        return self.caches[kind].get(Key("default", name))

    def sent(self) -> int:
        return len(self.env.wire.requests)


@asynccontextmanager
async def executor_harness(guards: Sequence[Guard] = ()) -> AsyncIterator[ExecutorHarness]:
    async with environment() as env:
        yield ExecutorHarness(env, guards)


def apply(name: str, **fields: Any) -> Apply:
    return Apply(CONFIG_MAP, new_object(name, **fields), "wanted")


async def test_writes_are_sent_in_order_and_cached_immediately() -> None:
    async with executor_harness() as harness:
        outcome = await harness(apply("b", data={"x": "1"}), Create(SECRET, new_object("a", SECRET), "wanted"))
        assert outcome.done == 2
        assert outcome.details == ["wanted", "wanted"]
        assert [path.rsplit("/", 1)[-1] for _, path in harness.env.wire.writes()] == ["b", "secrets"]
        assert harness.cached("b")["data"] == {"x": "1"}
        assert harness.cached("a", SECRET)["metadata"]["uid"]
        assert [change.key.name for _, change in harness.changes] == ["b", "a"]


async def test_a_noop_apply_sends_no_request() -> None:
    async with executor_harness() as harness:
        await harness(apply("a", data={"x": "1"}))
        sent = harness.sent()
        outcome = await harness(apply("a", data={"x": "1"}))
        assert (harness.sent(), outcome.skipped, outcome.done) == (sent, 1, 1)


async def test_an_apply_is_resent_only_after_another_manager_changes_its_fields() -> None:
    async with executor_harness() as harness:
        await harness(apply("a", data={"x": "1"}))
        harness.caches[CONFIG_MAP].upsert(await harness.env.change("a", data={"theirs": "2"}))
        sent = harness.sent()
        assert (await harness(apply("a", data={"x": "1"}))).skipped == 1
        assert harness.sent() == sent, "others' fields are others' business"
        harness.caches[CONFIG_MAP].upsert(await harness.env.change("a", data={"x": "changed"}))
        assert (await harness(apply("a", data={"x": "1"}))).skipped == 0
        assert harness.cached("a")["data"] == {"x": "1", "theirs": "2"}


async def test_an_apply_is_resent_to_a_recreated_object_of_the_same_name() -> None:
    async with executor_harness() as harness:
        await harness(apply("a", data={"x": "1"}))
        await harness.env.delete("a")
        harness.caches[CONFIG_MAP].forget(Key("default", "a"), harness.cached("a")["metadata"]["uid"])
        harness.caches[CONFIG_MAP].upsert(await harness.env.create("a", data={"x": "1"}))
        assert (await harness(apply("a", data={"x": "1"}))).skipped == 0


async def test_the_second_of_two_concurrent_versioned_writes_is_stale_and_not_sent() -> None:
    async with executor_harness() as harness:
        await harness(apply("a", data={"x": "1"}))
        seen = harness.cached("a")["metadata"]["resourceVersion"]
        sent = harness.sent()

        def versioned_patch(**data: str) -> Patch:
            return Patch(Ref(CONFIG_MAP, "a", "default"), {"data": data}, "wanted", resource_version=seen)

        first, second = await asyncio.gather(
            harness(versioned_patch(one="1")), harness(versioned_patch(two="2")), return_exceptions=True
        )
        assert isinstance(first, Outcome)
        assert isinstance(second, StaleWrite)
        assert harness.sent() == sent + 1
        assert harness.cached("a")["data"] == {"x": "1", "one": "1"}


async def test_fields_missing_from_the_next_apply_are_removed() -> None:
    async with executor_harness() as harness:
        await harness(apply("a", data={"x": "1", "y": "2"}))
        await harness(apply("a", data={"x": "1"}))
        assert harness.cached("a")["data"] == {"x": "1"}


async def test_fields_that_the_server_converts_are_not_applied_again() -> None:
    async with executor_harness() as harness:
        secret = new_object("a", SECRET, stringData={"x": "1"})
        await harness(Apply(SECRET, secret, "wanted"))
        sent = harness.sent()
        assert (await harness(Apply(SECRET, secret, "wanted"))).skipped == 1
        assert harness.sent() == sent


async def test_an_update_of_a_stale_object_conflicts() -> None:
    async with executor_harness() as harness:
        stale = await harness.env.create("a")
        await harness.env.change("a", data={"x": "1"})
        with pytest.raises(Conflict):
            await harness(Update(CONFIG_MAP, stale | {"data": {"x": "2"}}, "wanted"))


async def test_a_noop_update_sends_no_request() -> None:
    async with executor_harness() as harness:
        created = await harness.env.create("a")
        harness.caches[CONFIG_MAP].upsert(created)
        assert (await harness(Update(CONFIG_MAP, created, "wanted"))).skipped == 1
        assert harness.sent() == 0


async def test_a_versioned_patch_of_a_newer_object_conflicts_and_a_noop_patch_is_skipped() -> None:
    async with executor_harness() as harness:
        stale = await harness.env.create("a")
        harness.caches[CONFIG_MAP].upsert(await harness.env.change("a", data={"x": "1"}))
        ref = Ref(CONFIG_MAP, "a", "default")
        assert (await harness(Patch(ref, {"data": {"x": "1"}}, "wanted"))).skipped == 1
        assert harness.sent() == 0
        version = stale["metadata"]["resourceVersion"]
        with pytest.raises(Conflict):
            await harness(Patch(ref, {"data": {"x": "2"}}, "wanted", resource_version=version))
        await harness(Patch(ref, {"data": {"x": "3"}}, "wanted"))
        assert harness.cached("a")["data"] == {"x": "3"}


async def test_creating_an_existing_object_raises_already_exists() -> None:
    async with executor_harness() as harness:
        await harness.env.create("a")
        with pytest.raises(AlreadyExists):
            await harness(Create(CONFIG_MAP, new_object("a"), "wanted"))


async def test_a_delete_spares_a_recreated_object_with_another_uid() -> None:
    async with executor_harness() as harness:
        old = await harness.env.create("a")
        await harness.env.delete("a")
        await harness.env.create("a")
        with pytest.raises(Conflict):
            await harness(Delete(Ref(CONFIG_MAP, "a", "default"), old["metadata"]["uid"], "unwanted"))


async def test_a_delete_updates_the_cache_even_if_the_object_is_already_gone() -> None:
    async with executor_harness() as harness:
        for name in ("a", "b"):
            harness.caches[CONFIG_MAP].upsert(await harness.env.create(name))
        uids = {name: harness.cached(name)["metadata"]["uid"] for name in ("a", "b")}
        await harness.env.delete("b")
        await harness(*(Delete(Ref(CONFIG_MAP, name, "default"), uids[name], "unwanted") for name in ("a", "b")))
        assert len(harness.caches[CONFIG_MAP]) == 0


async def test_an_object_with_a_finalizer_stays_cached_and_is_not_deleted_twice() -> None:
    async with executor_harness() as harness:
        created = await harness.env.create("a", metadata={"finalizers": ["example.com/hold"]})
        harness.caches[CONFIG_MAP].upsert(created)
        delete = Delete(Ref(CONFIG_MAP, "a", "default"), created["metadata"]["uid"], "unwanted")
        await harness(delete)
        assert harness.cached("a")["metadata"]["deletionTimestamp"]
        sent = harness.sent()
        assert (await harness(delete)).skipped == 1
        assert harness.sent() == sent


async def test_a_terminating_namespace_stays_in_the_cache() -> None:
    async with executor_harness() as harness:
        created = await harness.env.client.create(NAMESPACE.resource, {"metadata": {"name": "pasture"}})
        harness.caches[NAMESPACE] = cache = Cache(NAMESPACE)
        cache.upsert(created)
        await harness(Delete(Ref(NAMESPACE, "pasture"), created["metadata"]["uid"], "unwanted"))
        cached_namespace = cache.get(Key("", "pasture"))
        assert cached_namespace is not None
        assert cached_namespace["status"]["phase"] == "Terminating"


async def test_a_subresource_response_of_another_kind_is_not_cached_as_the_object() -> None:
    async with executor_harness() as harness:
        labels = {"app": "a"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec: Object = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        await harness(Create(DEPLOYMENT, new_object("a", DEPLOYMENT, spec=spec), "wanted"))
        ref = Ref(DEPLOYMENT, "a", "default")
        await harness(Patch(ref, {"spec": {"replicas": 2}}, "wanted", subresource="scale"))
        assert harness.cached("a", DEPLOYMENT)["kind"] == "Deployment"


# --- guards -------------------------------------------------------------------------------------------------------


def deny_delete_while_secret_exists(action: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
    """Read a kind that the controller under test has not declared."""
    if isinstance(action, Delete) and view.get(SECRET, "keep") is not None:
        return Refusal("keeps-secrets", "there is a secret to keep")
    return None


async def test_a_guard_stops_the_decision_where_it_refuses() -> None:
    async with executor_harness([deny_delete_while_secret_exists]) as harness:
        harness.caches[SECRET].upsert(await harness.env.create("keep", SECRET))
        obj_to_delete = await harness.env.create("doomed")
        delete = Delete(Ref(CONFIG_MAP, "doomed", "default"), obj_to_delete["metadata"]["uid"], "unwanted")
        outcome = await harness(apply("before"), delete, apply("after"))
        assert outcome.refusal == Refusal("keeps-secrets", "there is a secret to keep")
        assert outcome.done == 1
        assert [path.rsplit("/", 1)[-1] for _, path in harness.env.wire.writes()] == ["before"]


async def test_a_guard_sees_the_effects_of_earlier_writes_in_the_decision() -> None:
    def at_most_one(action: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
        return Refusal("at-most-one", "one is enough") if view.select(CONFIG_MAP) else None

    async with executor_harness([at_most_one]) as harness:
        outcome = await harness(apply("a"), apply("b"))
        assert outcome.done == 1
        assert outcome.refusal is not None


async def test_a_guard_that_reads_an_undeclared_kind_fails_closed() -> None:
    def undeclared_guard(action: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
        view.get(Kind("example.com", "v1", "Unknown", "unknowns"), "x")
        return None

    async with executor_harness([undeclared_guard]) as harness:
        with pytest.raises(UndeclaredKind):
            await harness(apply("a"))
        assert harness.env.wire.writes() == []


async def test_an_unknown_cluster_or_performer_or_a_dead_transport_raises() -> None:
    async with executor_harness() as harness:
        with pytest.raises(LookupError, match="cluster 'far'"):
            await harness(Apply(CONFIG_MAP, new_object("a"), "wanted", target="far"))
        with pytest.raises(LookupError, match="effect performer 'magic' is not registered"):
            await harness(effects=(Effect("magic", ("k",), {}, "wanted"),))
        harness.env.wire.down = True
        with pytest.raises(ServiceUnavailable):
            await harness(apply("a"), apply("b"))
        assert len(harness.env.wire.writes()) == 1, "nothing after the first failure"


# --- parallel writes ---------------------------------------------------------------------------------------------


async def test_parallel_writes_are_all_sent_even_if_one_fails() -> None:
    async with executor_harness() as harness:
        await harness(Create(CONFIG_MAP, new_object("b"), "wanted"))
        names = [chr(ord("a") + number) for number in range(20)]
        with pytest.raises(AlreadyExists):
            await harness(Parallel(tuple(Create(CONFIG_MAP, new_object(name), "wanted") for name in names)))
        assert all(harness.cached(name) for name in names)


async def test_no_parallel_write_is_sent_if_a_guard_refuses_one() -> None:
    def guard(action: Action, _view: View, _before: Sequence[Action]) -> Refusal | None:
        return (
            Refusal("test", "not b") if isinstance(action, Create) and action.obj["metadata"]["name"] == "b" else None
        )

    async with executor_harness([guard]) as harness:
        outcome = await harness(
            Parallel((Create(CONFIG_MAP, new_object("a"), "x"), Create(CONFIG_MAP, new_object("b"), "x")))
        )
        assert outcome.refusal is not None
        assert harness.env.wire.writes() == []


# --- debounced writes ---------------------------------------------------------------------------------------------


def debounced_patch(number: int) -> Patch:
    return Patch(Ref(CONFIG_MAP, "a", "default"), {"data": {"x": str(number)}}, "progress", debounce=2.0)


def test_a_debounced_patch_is_deferred_and_sent_once() -> None:
    async def scenario() -> None:
        async with executor_harness() as harness:
            await harness(Create(CONFIG_MAP, new_object("a"), "wanted"))
            start = now()
            for number in range(4):
                outcome = await harness(debounced_patch(number))
                assert outcome.deferred_until == start + timedelta(seconds=2)
                await asyncio.sleep(0.4)
            await asyncio.sleep(0.4)
            assert harness.env.wire.count("PATCH") == 0
            outcome = await harness(debounced_patch(5))
            assert (outcome.deferred_until, harness.cached("a")["data"]) == (None, {"x": "5"})
            assert (await harness(debounced_patch(6))).deferred_until == now() + timedelta(seconds=2), (
                "patience begins anew"
            )

    virtual.run(scenario())


def test_a_noop_debounced_patch_is_skipped_without_deferral() -> None:
    async def scenario() -> None:
        async with executor_harness() as harness:
            await harness(Create(CONFIG_MAP, new_object("a", data={"x": "1"}), "wanted"))
            outcome = await harness(debounced_patch(1))
            assert (outcome.deferred_until, outcome.skipped) == (None, 1)

    virtual.run(scenario())


# --- lost responses ---------------------------------------------------------------------------------------


async def test_a_write_whose_response_was_lost_is_read_back_before_the_next_reconcile() -> None:
    async with executor_harness() as harness:
        send = harness.env.wire.send

        async def send_and_lose_response(request: Request) -> Response:
            response = await send(request)
            if request.method == "POST":
                raise ServiceUnavailable("the line is dead")
            return response

        harness.env.wire.send = send_and_lose_response  # type: ignore[method-assign]
        with pytest.raises(ServiceUnavailable):
            await harness(Create(CONFIG_MAP, new_object("a"), "wanted"))
        assert harness.cached("a") is None
        await harness.executor.resolve_uncertain()
        assert harness.cached("a")["metadata"]["uid"]
        requests_before = harness.sent()
        await harness.executor.resolve_uncertain()
        assert harness.sent() == requests_before, "what is settled is not asked again"


async def test_own_writes_outside_the_cache_selectors_are_not_cached() -> None:
    """The watch would not deliver later changes, and the writer would skip writes because of an outdated object."""
    async with environment() as env:
        harness = ExecutorHarness(env)
        harness.caches[CONFIG_MAP].set_selectors("colour=red", "metadata.namespace=default")
        for name, colour in (("r", "red"), ("b", "blue")):
            obj = new_object(name)
            obj["metadata"]["labels"] = {"colour": colour}
            await harness(Create(CONFIG_MAP, obj, "test"))
        assert [obj["metadata"]["name"] for obj in harness.caches[CONFIG_MAP].select()] == ["r"]


# --- withheld actions ------------------------------------------------------------------------------------------------


async def test_withheld_actions_are_left_out_and_the_others_executed() -> None:
    about: list[Reconciled] = []

    def withhold(action: Action, _view: View, reconciled: Reconciled) -> Refusal | None:
        about.append(reconciled)
        return Refusal("observe-only", action.reason) if action.reason.startswith("dangerous") else None

    async with executor_harness() as harness:
        await harness(apply("same", data={"x": "1"}))
        performed: list[str] = []
        executor = DecisionExecutor(
            harness.writer, withhold=withhold, perform=lambda effect, _key: performed.append(effect.performer) or ""
        )
        sent, reconciled = harness.sent(), Reconciled(CONFIG_MAP, "fleet/demo")
        noop = Apply(CONFIG_MAP, new_object("same", data={"x": "1"}), "dangerous, but changes nothing")
        writes = (noop, Create(SECRET, new_object("a", SECRET), "dangerous create"), apply("b"))
        effects = (Effect("evict", ("a",), {}, "dangerous effect"), Effect("read", ("b",), {}, "harmless"))
        outcome = await executor.execute(
            Decision(writes, effects), harness.view(), manager="tester", now=now(), reconciled=reconciled
        )
        assert outcome.refusal == Refusal("observe-only", "dangerous create"), "a no-op is no reason to report"
        assert [path.rsplit("/", 1)[-1] for _, path in harness.env.wire.writes()[-1:]] == ["b"]
        assert harness.sent() == sent + 1
        assert performed == ["read"]
        assert set(about) == {reconciled}
