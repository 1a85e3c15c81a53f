"""A decision is carried out in order, past the guards, without needless requests, and is visible at once."""

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
from herder.engine.runtime.executor import Action, DecisionExecutor, Guard
from herder.engine.runtime.view import UndeclaredKind, View
from herder.engine.runtime.writer import StaleWrite, Writer
from herder.engine.wire import Request, Response
from herder.sim import loop as virtual
from tests.unit.engine.runtime.world import CONFIG_MAP, SECRET, World, now, thing, world

DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)


class Carrying:
    def __init__(self, here: World, guards: Sequence[Guard] = ()) -> None:
        self.here = here
        self.caches = {kind: Cache(kind) for kind in (CONFIG_MAP, SECRET, DEPLOYMENT)}
        self.changes: list[tuple[Kind, Change]] = []
        self.writer = Writer(here.client, caches=self.caches, on_change=lambda *change: self.changes.append(change))
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
        return len(self.here.wire.requests)


@asynccontextmanager
async def carrying(guards: Sequence[Guard] = ()) -> AsyncIterator[Carrying]:
    async with world() as here:
        yield Carrying(here, guards)


def apply(name: str, **fields: Any) -> Apply:
    return Apply(CONFIG_MAP, thing(name, **fields), "wanted")


async def test_writes_are_made_in_order_and_seen_at_once() -> None:
    async with carrying() as carry:
        outcome = await carry(apply("b", data={"x": "1"}), Create(SECRET, thing("a", SECRET), "wanted"))
        assert outcome.done == 2
        assert outcome.details == ["wanted", "wanted"]
        assert [path.rsplit("/", 1)[-1] for _, path in carry.here.wire.writes()] == ["b", "secrets"]
        assert carry.cached("b")["data"] == {"x": "1"}
        assert carry.cached("a", SECRET)["metadata"]["uid"]
        assert [change.key.name for _, change in carry.changes] == ["b", "a"]


async def test_an_apply_that_changes_nothing_makes_no_request() -> None:
    async with carrying() as carry:
        await carry(apply("a", data={"x": "1"}))
        sent = carry.sent()
        outcome = await carry(apply("a", data={"x": "1"}))
        assert (carry.sent(), outcome.skipped, outcome.done) == (sent, 1, 1)


async def test_an_apply_is_made_again_when_somebody_changed_its_fields_and_only_then() -> None:
    async with carrying() as carry:
        await carry(apply("a", data={"x": "1"}))
        carry.caches[CONFIG_MAP].upsert(await carry.here.change("a", data={"theirs": "2"}))
        sent = carry.sent()
        assert (await carry(apply("a", data={"x": "1"}))).skipped == 1
        assert carry.sent() == sent, "others' fields are others' business"
        carry.caches[CONFIG_MAP].upsert(await carry.here.change("a", data={"x": "changed"}))
        assert (await carry(apply("a", data={"x": "1"}))).skipped == 0
        assert carry.cached("a")["data"] == {"x": "1", "theirs": "2"}


async def test_an_apply_is_made_again_on_a_successor_of_the_same_name() -> None:
    async with carrying() as carry:
        await carry(apply("a", data={"x": "1"}))
        await carry.here.delete("a")
        carry.caches[CONFIG_MAP].forget(Key("default", "a"), carry.cached("a")["metadata"]["uid"])
        carry.caches[CONFIG_MAP].upsert(await carry.here.create("a", data={"x": "1"}))
        assert (await carry(apply("a", data={"x": "1"}))).skipped == 0


async def test_of_two_that_write_an_object_at_once_the_second_looks_again_and_sends_nothing() -> None:
    async with carrying() as carry:
        await carry(apply("a", data={"x": "1"}))
        seen = carry.cached("a")["metadata"]["resourceVersion"]
        sent = carry.sent()

        def locked(**data: str) -> Patch:
            return Patch(Ref(CONFIG_MAP, "a", "default"), {"data": data}, "wanted", resource_version=seen)

        first, second = await asyncio.gather(carry(locked(one="1")), carry(locked(two="2")), return_exceptions=True)
        assert isinstance(first, Outcome)
        assert isinstance(second, StaleWrite)
        assert carry.sent() == sent + 1
        assert carry.cached("a")["data"] == {"x": "1", "one": "1"}


async def test_fields_no_longer_wanted_are_removed() -> None:
    async with carrying() as carry:
        await carry(apply("a", data={"x": "1", "y": "2"}))
        await carry(apply("a", data={"x": "1"}))
        assert carry.cached("a")["data"] == {"x": "1"}


async def test_what_the_server_stores_in_another_form_is_not_applied_again_and_again() -> None:
    async with carrying() as carry:
        secret = thing("a", SECRET, stringData={"x": "1"})
        await carry(Apply(SECRET, secret, "wanted"))
        sent = carry.sent()
        assert (await carry(Apply(SECRET, secret, "wanted"))).skipped == 1
        assert carry.sent() == sent


async def test_an_update_is_refused_when_the_object_has_changed_since_it_was_read() -> None:
    async with carrying() as carry:
        stale = await carry.here.create("a")
        await carry.here.change("a", data={"x": "1"})
        with pytest.raises(Conflict):
            await carry(Update(CONFIG_MAP, stale | {"data": {"x": "2"}}, "wanted"))


async def test_an_update_to_what_is_there_makes_no_request() -> None:
    async with carrying() as carry:
        made = await carry.here.create("a")
        carry.caches[CONFIG_MAP].upsert(made)
        assert (await carry(Update(CONFIG_MAP, made, "wanted"))).skipped == 1
        assert carry.sent() == 0


async def test_a_patch_with_a_version_is_refused_on_a_newer_object_and_a_needless_one_is_skipped() -> None:
    async with carrying() as carry:
        stale = await carry.here.create("a")
        carry.caches[CONFIG_MAP].upsert(await carry.here.change("a", data={"x": "1"}))
        ref = Ref(CONFIG_MAP, "a", "default")
        assert (await carry(Patch(ref, {"data": {"x": "1"}}, "wanted"))).skipped == 1
        assert carry.sent() == 0
        version = stale["metadata"]["resourceVersion"]
        with pytest.raises(Conflict):
            await carry(Patch(ref, {"data": {"x": "2"}}, "wanted", resource_version=version))
        await carry(Patch(ref, {"data": {"x": "3"}}, "wanted"))
        assert carry.cached("a")["data"] == {"x": "3"}


async def test_creating_what_exists_is_an_error_that_asks_to_decide_again() -> None:
    async with carrying() as carry:
        await carry.here.create("a")
        with pytest.raises(AlreadyExists):
            await carry(Create(CONFIG_MAP, thing("a"), "wanted"))


async def test_a_deletion_spares_the_successor() -> None:
    async with carrying() as carry:
        old = await carry.here.create("a")
        await carry.here.delete("a")
        await carry.here.create("a")
        with pytest.raises(Conflict):
            await carry(Delete(Ref(CONFIG_MAP, "a", "default"), old["metadata"]["uid"], "unwanted"))


async def test_a_deletion_is_seen_at_once_also_when_somebody_was_quicker() -> None:
    async with carrying() as carry:
        for name in ("a", "b"):
            carry.caches[CONFIG_MAP].upsert(await carry.here.create(name))
        uids = {name: carry.cached(name)["metadata"]["uid"] for name in ("a", "b")}
        await carry.here.delete("b")
        await carry(*(Delete(Ref(CONFIG_MAP, name, "default"), uids[name], "unwanted") for name in ("a", "b")))
        assert len(carry.caches[CONFIG_MAP]) == 0


async def test_an_object_held_by_a_finalizer_stays_and_is_not_deleted_twice() -> None:
    async with carrying() as carry:
        made = await carry.here.create("a", metadata={"finalizers": ["example.com/hold"]})
        carry.caches[CONFIG_MAP].upsert(made)
        delete = Delete(Ref(CONFIG_MAP, "a", "default"), made["metadata"]["uid"], "unwanted")
        await carry(delete)
        assert carry.cached("a")["metadata"]["deletionTimestamp"]
        sent = carry.sent()
        assert (await carry(delete)).skipped == 1
        assert carry.sent() == sent


async def test_a_namespace_is_there_until_what_is_in_it_has_gone() -> None:
    async with carrying() as carry:
        made = await carry.here.client.create(NAMESPACE.resource, {"metadata": {"name": "pasture"}})
        carry.caches[NAMESPACE] = cache = Cache(NAMESPACE)
        cache.upsert(made)
        await carry(Delete(Ref(NAMESPACE, "pasture"), made["metadata"]["uid"], "unwanted"))
        known = cache.get(Key("", "pasture"))
        assert known is not None
        assert known["status"]["phase"] == "Terminating"


async def test_the_answer_of_a_subresource_with_a_kind_of_its_own_is_not_taken_for_the_object() -> None:
    async with carrying() as carry:
        labels = {"app": "a"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec: Object = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        await carry(Create(DEPLOYMENT, thing("a", DEPLOYMENT, spec=spec), "wanted"))
        ref = Ref(DEPLOYMENT, "a", "default")
        await carry(Patch(ref, {"spec": {"replicas": 2}}, "wanted", subresource="scale"))
        assert carry.cached("a", DEPLOYMENT)["kind"] == "Deployment"


# --- guards ---------------------------------------------------------------------------------------------------------


def keeps_secrets(act: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
    """Looks at a kind that the controller under test has not declared."""
    if isinstance(act, Delete) and view.get(SECRET, "keep") is not None:
        return Refusal("keeps-secrets", "there is a secret to keep")
    return None


async def test_a_guard_stops_the_decision_where_it_refuses() -> None:
    async with carrying([keeps_secrets]) as carry:
        carry.caches[SECRET].upsert(await carry.here.create("keep", SECRET))
        doomed = await carry.here.create("doomed")
        delete = Delete(Ref(CONFIG_MAP, "doomed", "default"), doomed["metadata"]["uid"], "unwanted")
        outcome = await carry(apply("before"), delete, apply("after"))
        assert outcome.refusal == Refusal("keeps-secrets", "there is a secret to keep")
        assert outcome.done == 1
        assert [path.rsplit("/", 1)[-1] for _, path in carry.here.wire.writes()] == ["before"]


async def test_a_guard_judges_each_act_on_what_the_acts_before_have_made_true() -> None:
    def at_most_one(act: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
        return Refusal("at-most-one", "one is enough") if view.select(CONFIG_MAP) else None

    async with carrying([at_most_one]) as carry:
        outcome = await carry(apply("a"), apply("b"))
        assert outcome.done == 1
        assert outcome.refusal is not None


async def test_a_guard_that_cannot_see_fails_closed() -> None:
    def blind(act: Action, view: View, _before: Sequence[Action]) -> Refusal | None:
        view.get(Kind("example.com", "v1", "Unknown", "unknowns"), "x")
        return None

    async with carrying([blind]) as carry:
        with pytest.raises(UndeclaredKind):
            await carry(apply("a"))
        assert carry.here.wire.writes() == []


async def test_what_cannot_be_reached_or_performed_is_an_error() -> None:
    async with carrying() as carry:
        with pytest.raises(LookupError, match="cluster 'far'"):
            await carry(Apply(CONFIG_MAP, thing("a"), "wanted", target="far"))
        with pytest.raises(LookupError, match="effect performer 'magic' is not registered"):
            await carry(effects=(Effect("magic", ("k",), {}, "wanted"),))
        carry.here.wire.down = True
        with pytest.raises(ServiceUnavailable):
            await carry(apply("a"), apply("b"))
        assert len(carry.here.wire.writes()) == 1, "nothing after the first failure"


# --- at the same time ---------------------------------------------------------------------------------------------


async def test_writes_that_belong_together_are_all_made_even_if_one_fails() -> None:
    async with carrying() as carry:
        await carry(Create(CONFIG_MAP, thing("b"), "wanted"))
        names = [chr(ord("a") + number) for number in range(20)]
        with pytest.raises(AlreadyExists):
            await carry(Parallel(tuple(Create(CONFIG_MAP, thing(name), "wanted") for name in names)))
        assert all(carry.cached(name) for name in names)


async def test_nothing_of_a_batch_is_made_if_a_guard_refuses_one_of_it() -> None:
    def guard(act: Action, _view: View, _before: Sequence[Action]) -> Refusal | None:
        return Refusal("test", "not b") if isinstance(act, Create) and act.obj["metadata"]["name"] == "b" else None

    async with carrying([guard]) as carry:
        outcome = await carry(Parallel((Create(CONFIG_MAP, thing("a"), "x"), Create(CONFIG_MAP, thing("b"), "x"))))
        assert outcome.refusal is not None
        assert carry.here.wire.writes() == []


# --- patient writes -----------------------------------------------------------------------------------------------


def patient(number: int) -> Patch:
    return Patch(Ref(CONFIG_MAP, "a", "default"), {"data": {"x": str(number)}}, "progress", debounce=2.0)


def test_a_patient_write_waits_for_more_news_and_is_made_once() -> None:
    async def story() -> None:
        async with carrying() as carry:
            await carry(Create(CONFIG_MAP, thing("a"), "wanted"))
            began = now()
            for number in range(4):
                outcome = await carry(patient(number))
                assert outcome.deferred_until == began + timedelta(seconds=2)
                await asyncio.sleep(0.4)
            await asyncio.sleep(0.4)
            assert carry.here.wire.count("PATCH") == 0
            outcome = await carry(patient(5))
            assert (outcome.deferred_until, carry.cached("a")["data"]) == (None, {"x": "5"})
            assert (await carry(patient(6))).deferred_until == now() + timedelta(seconds=2), "patience begins anew"

    virtual.run(story())


def test_a_patient_write_that_changes_nothing_makes_nobody_wait() -> None:
    async def story() -> None:
        async with carrying() as carry:
            await carry(Create(CONFIG_MAP, thing("a", data={"x": "1"}), "wanted"))
            outcome = await carry(patient(1))
            assert (outcome.deferred_until, outcome.skipped) == (None, 1)

    virtual.run(story())


# --- answers that were lost ---------------------------------------------------------------------------------------


async def test_a_write_whose_answer_was_lost_is_looked_up_before_anyone_decides_again() -> None:
    async with carrying() as carry:
        answered = carry.here.wire.send

        async def lose(request: Request) -> Response:
            response = await answered(request)
            if request.method == "POST":
                raise ServiceUnavailable("the line is dead")
            return response

        carry.here.wire.send = lose  # type: ignore[method-assign]
        with pytest.raises(ServiceUnavailable):
            await carry(Create(CONFIG_MAP, thing("a"), "wanted"))
        assert carry.cached("a") is None
        await carry.executor.resolve_uncertain()
        assert carry.cached("a")["metadata"]["uid"]
        asked = carry.sent()
        await carry.executor.resolve_uncertain()
        assert carry.sent() == asked, "what is settled is not asked again"


async def test_what_a_cache_does_not_follow_is_not_learnt_from_ones_own_writes() -> None:
    """Nobody would tell it of later changes: a write would be left out because of what was true once."""
    async with world() as here:
        carry = Carrying(here)
        carry.caches[CONFIG_MAP].set_selectors("colour=red", "metadata.namespace=default")
        for name, colour in (("r", "red"), ("b", "blue")):
            obj = thing(name)
            obj["metadata"]["labels"] = {"colour": colour}
            await carry(Create(CONFIG_MAP, obj, "test"))
        assert [obj["metadata"]["name"] for obj in carry.caches[CONFIG_MAP].select()] == ["r"]
