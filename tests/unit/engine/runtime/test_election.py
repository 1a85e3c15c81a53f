"""One leader at a time: the next takes over when the first has gone, at once where it said goodbye."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.meta.kinds import Object
from herder.engine.runtime.election import LEASES, LeaderElection, LeaseTimes
from herder.engine.runtime.leader_thread import run_as_leader
from herder.sim import loop as virtual
from tests.support.api import Api
from tests.support.engines import Engine
from tests.unit.engine.runtime.world import ADMIN, Wire, World, now, until, world

TIMES = LeaseTimes(lease_seconds=15, renew_seconds=10, retry_seconds=2)


@dataclass
class Candidate:
    name: str
    election: LeaderElection
    led: list[tuple[float, float]] = field(default_factory=list)  # from when, to when
    task: asyncio.Task[None] | None = None

    def start(self) -> Candidate:
        self.task = asyncio.ensure_future(self.election.run(self._lead))
        return self

    async def _lead(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.led.append((began, asyncio.get_running_loop().time()))

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def candidate(name: str, client: Client) -> Candidate:
    election = LeaderElection(client, name="lead", namespace="default", identity=name, clock=now, times=TIMES)
    return Candidate(name, election)


def two(scenario: Callable[[World, Candidate, Wire, Candidate], Awaitable[Any]]) -> Any:
    """A scenario on virtual time: the first leads, the second waits; the first talks through a wire of its own."""
    from herder.engine.apiserver.inprocess import InProcess

    async def work() -> Any:
        async with world() as here:
            wire = Wire(InProcess(here.server, ADMIN))
            first = candidate("first", Client(wire)).start()
            await asyncio.sleep(1)
            second = candidate("second", here.outside).start()
            await asyncio.sleep(10)
            assert (first.election.leading, second.election.leading) == (True, False)
            try:
                return await scenario(here, first, wire, second)
            finally:
                await first.stop()
                await second.stop()

    return virtual.run(work())


async def lease(here: World) -> Object:
    found: Object = (await here.outside.get(LEASES, "lead", namespace="default"))["spec"]
    return found


def test_the_leader_stays_while_it_renews() -> None:
    async def scenario(here: World, first: Candidate, _wire: Wire, second: Candidate) -> None:
        await asyncio.sleep(600)
        assert (first.election.leading, second.election.leading) == (True, False)
        spec = await lease(here)
        assert spec["holderIdentity"] == "first"
        assert spec["leaseTransitions"] == 0

    two(scenario)


def test_a_leader_that_stops_leaves_the_lease_to_the_next_at_once() -> None:
    async def scenario(here: World, first: Candidate, _wire: Wire, second: Candidate) -> None:
        await first.stop()
        assert (await lease(here))["holderIdentity"] == ""
        await asyncio.sleep(TIMES.retry_seconds + 0.1)
        assert second.election.leading
        assert (await lease(here))["leaseTransitions"] == 1

    two(scenario)


def test_a_leader_that_dies_is_replaced_when_its_lease_has_run_out_and_not_before() -> None:
    async def scenario(_here: World, first: Candidate, wire: Wire, second: Candidate) -> None:
        wire.down = True  # nothing of it arrives any more, not even a goodbye
        died = asyncio.get_running_loop().time()
        await until(lambda: second.election.leading)
        took = asyncio.get_running_loop().time() - died
        assert TIMES.lease_seconds - TIMES.retry_seconds <= took <= TIMES.lease_seconds + 2 * TIMES.retry_seconds

    two(scenario)


def test_a_leader_that_is_cut_off_stops_before_another_may_start() -> None:
    async def scenario(_here: World, first: Candidate, wire: Wire, second: Candidate) -> None:
        wire.down = True
        await until(lambda: second.election.leading)
        assert first.led[0][1] < asyncio.get_running_loop().time() - 1

    two(scenario)


def test_a_leader_that_finds_anothers_name_in_the_lease_stops_at_once() -> None:
    async def scenario(here: World, first: Candidate, _wire: Wire, _second: Candidate) -> None:
        found = await here.outside.get(LEASES, "lead", namespace="default")
        found["spec"]["holderIdentity"] = "usurper"
        await here.outside.update(LEASES, found)
        await asyncio.sleep(TIMES.retry_seconds + 0.1)
        assert not first.election.leading
        assert (await lease(here))["holderIdentity"] == "usurper"

    two(scenario)


def test_what_leading_raises_is_raised() -> None:
    async def fail() -> None:
        raise RuntimeError("the work failed")

    async def work() -> str:
        async with world() as here:
            election = candidate("only", here.client).election
            with pytest.raises(RuntimeError, match="the work failed"):
                await election.run(fail)
            return str((await lease(here))["holderIdentity"])

    assert virtual.run(work()) == "", "and the lease is given back"


# --- on both engines, each candidate on a thread of its own -------------------------------------------------------


class Replica:
    """Like a process of its own: its election has its own thread, loop and connection."""

    def __init__(self, engine: Engine, namespace: str, name: str) -> None:
        self._engine = engine
        self._namespace = namespace
        self.name = name
        self.leading = asyncio.Event()
        self.aborted = False
        self.task = asyncio.ensure_future(run_as_leader(self._make, self._lead, abort=self._abort))

    def _make(self) -> LeaderElection:
        return LeaderElection(
            Client(HttpTransport(self._engine.connection)),
            name="lead",
            namespace=self._namespace,
            identity=self.name,
            clock=lambda: datetime.now(UTC),
            times=LeaseTimes(lease_seconds=3, renew_seconds=2, retry_seconds=0.2),
        )

    async def _lead(self) -> None:
        self.leading.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.leading.clear()

    def _abort(self) -> None:
        self.aborted = True

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_replicas_hand_over_on_either_engine(api: Api, engine: Engine) -> None:
    where = api.at("coordination.k8s.io/v1/leases", "lead")
    one = Replica(engine, api.namespace, "one")
    await asyncio.wait_for(one.leading.wait(), 30)
    two = Replica(engine, api.namespace, "two")
    await asyncio.sleep(0.5)
    assert not two.leading.is_set()
    await one.stop()
    assert (await api.read(where))["spec"]["holderIdentity"] in ("", "two")
    await asyncio.wait_for(two.leading.wait(), 30)
    await api.patch(where, {"spec": {"holderIdentity": "usurper"}})
    await asyncio.wait_for(two.task, 30)
    assert two.aborted, "with the lease lost there is no time for an orderly end"
    await two.stop()


async def test_a_replica_stopped_as_soon_as_it_starts_ends(api: Api, engine: Engine) -> None:
    for pause in (0, 0, 0.001, 0.01):
        replica = Replica(engine, api.namespace, "hasty")
        await asyncio.sleep(pause)
        await asyncio.wait_for(replica.stop(), 30)
