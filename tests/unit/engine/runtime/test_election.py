"""Leader election has one leader at a time, and hands over at once when the leader releases its lease."""

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
from tests.unit.engine.runtime.envtest import ADMIN, Environment, Wire, environment, now, until

TIMES = LeaseTimes(lease_seconds=15, renew_seconds=10, retry_seconds=2)


@dataclass
class Candidate:
    name: str
    election: LeaderElection
    terms: list[tuple[float, float]] = field(default_factory=list)  # start and end of each term
    task: asyncio.Task[None] | None = None

    def start(self) -> Candidate:
        self.task = asyncio.ensure_future(self.election.run(self._lead))
        return self

    async def _lead(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.terms.append((began, asyncio.get_running_loop().time()))

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def candidate(name: str, client: Client) -> Candidate:
    election = LeaderElection(client, name="lead", namespace="default", identity=name, clock=now, times=TIMES)
    return Candidate(name, election)


def run_two_candidates(scenario: Callable[[Environment, Candidate, Wire, Candidate], Awaitable[Any]]) -> Any:
    """Run a scenario on virtual time in which the first candidate leads, through its own wire, and the second waits."""
    from herder.engine.apiserver.inprocess import InProcess

    async def work() -> Any:
        async with environment() as env:
            wire = Wire(InProcess(env.server, ADMIN))
            first = candidate("first", Client(wire)).start()
            await asyncio.sleep(1)
            second = candidate("second", env.outside).start()
            await asyncio.sleep(10)
            assert (first.election.leading, second.election.leading) == (True, False)
            try:
                return await scenario(env, first, wire, second)
            finally:
                await first.stop()
                await second.stop()

    return virtual.run(work())


async def lease_spec(env: Environment) -> Object:
    found: Object = (await env.outside.get(LEASES, "lead", namespace="default"))["spec"]
    return found


def test_the_leader_keeps_the_lease_while_it_renews_it() -> None:
    async def scenario(env: Environment, first: Candidate, _wire: Wire, second: Candidate) -> None:
        await asyncio.sleep(600)
        assert (first.election.leading, second.election.leading) == (True, False)
        spec = await lease_spec(env)
        assert spec["holderIdentity"] == "first"
        assert spec["leaseTransitions"] == 0

    run_two_candidates(scenario)


def test_a_leader_that_stops_releases_its_lease() -> None:
    async def scenario(env: Environment, first: Candidate, _wire: Wire, second: Candidate) -> None:
        await first.stop()
        assert (await lease_spec(env))["holderIdentity"] == ""
        await asyncio.sleep(TIMES.retry_seconds + 0.1)
        assert second.election.leading
        assert (await lease_spec(env))["leaseTransitions"] == 1

    run_two_candidates(scenario)


def test_a_dead_leader_is_replaced_when_its_lease_expires_and_not_before() -> None:
    async def scenario(_here: Environment, first: Candidate, wire: Wire, second: Candidate) -> None:
        wire.down = True  # not even the release of the lease arrives
        failed_at = asyncio.get_running_loop().time()
        await until(lambda: second.election.leading)
        takeover_seconds = asyncio.get_running_loop().time() - failed_at
        assert (
            TIMES.lease_seconds - TIMES.retry_seconds
            <= takeover_seconds
            <= TIMES.lease_seconds + 2 * TIMES.retry_seconds
        )

    run_two_candidates(scenario)


def test_a_disconnected_leader_stops_before_another_may_start() -> None:
    async def scenario(_here: Environment, first: Candidate, wire: Wire, second: Candidate) -> None:
        wire.down = True
        await until(lambda: second.election.leading)
        assert first.terms[0][1] < asyncio.get_running_loop().time() - 1

    run_two_candidates(scenario)


def test_a_leader_stops_when_another_identity_holds_the_lease() -> None:
    async def scenario(env: Environment, first: Candidate, _wire: Wire, _second: Candidate) -> None:
        found = await env.outside.get(LEASES, "lead", namespace="default")
        found["spec"]["holderIdentity"] = "usurper"
        await env.outside.update(LEASES, found)
        await asyncio.sleep(TIMES.retry_seconds + 0.1)
        assert not first.election.leading
        assert (await lease_spec(env))["holderIdentity"] == "usurper"

    run_two_candidates(scenario)


def test_an_error_of_the_leader_is_raised_and_releases_the_lease() -> None:
    async def fail() -> None:
        raise RuntimeError("the work failed")

    async def work() -> str:
        async with environment() as env:
            election = candidate("only", env.client).election
            with pytest.raises(RuntimeError, match="the work failed"):
                await election.run(fail)
            return str((await lease_spec(env))["holderIdentity"])

    assert virtual.run(work()) == "", "and the lease is given back"


# --- on both engines, each candidate on its own thread -------------------------------------------------------


class Replica:
    """A replica whose election has its own thread, event loop and connection, as in a separate process."""

    def __init__(self, engine: Engine, namespace: str, name: str) -> None:
        self._engine = engine
        self._namespace = namespace
        self.name = name
        self.leading = asyncio.Event()
        self.aborted = False
        self.task = asyncio.ensure_future(run_as_leader(self._create_election, self._lead, abort=self._abort))

    def _create_election(self) -> LeaderElection:
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


async def test_replicas_hand_over_the_lease_on_either_engine(api: Api, engine: Engine) -> None:
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


async def test_a_replica_can_be_stopped_while_it_starts(api: Api, engine: Engine) -> None:
    for pause in (0, 0, 0.001, 0.01):
        replica = Replica(engine, api.namespace, "hasty")
        await asyncio.sleep(pause)
        await asyncio.wait_for(replica.stop(), 30)
