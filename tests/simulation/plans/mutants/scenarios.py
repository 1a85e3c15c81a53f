"""Scenarios of mutants of operations: which operation runs, on which distribution, and what disturbs it.

The operations are those of the crash matrix, and restores of snapshots that are damaged. A cluster is created and
prepared once for each operation and distribution, by the unmodified planner. Then the simulation is forked, and in the
copy another planner takes over.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import NamedTuple

from herder.api.guards import GUARDS
from herder.api.rke.operations import FAILED, Run
from herder.engine.meta.kinds import Object
from herder.sim import loop
from herder.sim.faults import ROUGH
from herder.sim.host.disk import Snapshot
from herder.sim.host.etcd import EtcdData
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans.crash_matrix import runs_of, servers_of
from tests.simulation.plans.crash_operations.matrix import MATRIX
from tests.simulation.plans.crash_operations.operation import DISTRIBUTIONS, CrashedOperation, require
from tests.simulation.plans.crash_operations.restores import RestoreData, RestoreOnNewServers
from tests.simulation.plans.mutants.planner_mutants import ALIVE, NOTICED, VIOLATION, import_mutated, recording
from tests.simulation.plans.operations.operated_cluster import HOUR, OperatedCluster
from tests.simulation.plans.provisioning_simulation import controllers
from tools.mutants import Mutant

CPU_SECONDS = 60
LIMIT = 4 * HOUR
"""Virtual time in which an operation ends."""
SETTLE_SECONDS = 1200.0
NO_DISTURBANCE, ROUGH_NETWORK, PARTITION = "no fault", "rough network", "partition"
DISTURBANCES = (NO_DISTURBANCE, ROUGH_NETWORK, f"{PARTITION} 1", f"{PARTITION} 2", f"{PARTITION} 3")
"""Each partition has another moment and length."""


class Case(NamedTuple):
    """One run of an operation."""

    title: str
    distribution: str
    disturbance: str

    def __str__(self) -> str:
        return ", ".join(self)


# --- operations -------------------------------------------------------------------------------------------------------


class DamagedSnapshot(RestoreData):
    """All copies of the snapshot are damaged when this phase is stored; the restore must keep the old data."""

    damaged_in = ""  # before the request

    async def prepare(self) -> None:
        await super().prepare()
        if not self.damaged_in:
            self._damage()

    def _damage(self) -> None:
        for node in self.cluster.servers:
            for path, file in list(node.disk.files.items()):
                if isinstance(file, Snapshot):
                    node.disk.files[path] = replace(file, damage="bytes")

    async def request(self) -> None:
        await super().request()
        if self.damaged_in:
            async for run in runs_of(self):
                if run.phase == self.damaged_in:
                    self._damage()
                    return

    async def judge(self, run: Run) -> str:
        require(run.phase == FAILED, f"a damaged snapshot was restored: {run.phase}")
        await self.cluster.simulation.until_settled()
        await self._check_cluster(before=True, after=True)
        return "failed; old data kept"


class DamagedBefore(DamagedSnapshot):
    title = "Restore of a damaged snapshot"


class DamagedMeanwhile(DamagedSnapshot):
    title = "Restore of a snapshot that is damaged after its check"
    damaged_in = "Shutdown"


_ADDED: Sequence[type[CrashedOperation]] = (DamagedBefore, DamagedMeanwhile)
SCENARIOS: Mapping[str, type[CrashedOperation]] = MATRIX | {each.title: each for each in _ADDED}


def cases(titles: Iterable[str], distributions: Iterable[str]) -> list[Case]:
    """The cases that exist, of these operations and distributions."""
    wanted = tuple(distributions)
    return [
        Case(title, distribution, disturbance)
        for title in titles
        for distribution in wanted
        if not SCENARIOS[title].reason(distribution, SCENARIOS[title].phases()[0])
        for disturbance in DISTURBANCES
    ]


# --- one case ---------------------------------------------------------------------------------------------------------


class PreparedCluster:
    """A cluster on which the operation can be requested. Every evaluation takes place in a copy of it."""

    def __init__(self, title: str, distribution: str) -> None:
        self.refusals: list[str] = []
        kind, build = SCENARIOS[title], DISTRIBUTIONS[distribution]
        guards = [recording(guard, self.refusals) for guard in GUARDS]
        version = f"{kind.first_version}{build}"
        self.cluster = OperatedCluster(version, servers=servers_of(distribution), guards=guards, strict=False)
        self.operation = kind(self.cluster, build)

    async def evaluate(self, mutant: Mutant | None, case: Case) -> Object:
        """The verdict on a mutant, in its own process."""
        return await forked(lambda: self._judge(mutant, case), self._verdict)

    async def _judge(self, mutant: Mutant | None, case: Case) -> Object:
        simulation = self.cluster.simulation
        simulation._timeout = SETTLE_SECONDS
        simulation.invariants.machines_are_stable = True
        self.refusals.clear()
        import_mutated(mutant)
        simulation.sim.world.replace_manager(controllers())
        disturbing = asyncio.ensure_future(self._disturb(case))
        requesting = asyncio.ensure_future(self.operation.request())
        async with asyncio.timeout(LIMIT):
            async for run in runs_of(self.operation):
                ended = run
        await requesting
        outcome = await self.operation.judge(ended)
        await disturbing
        await asyncio.sleep(HOUR / 4)  # a member that was cut off may come back
        simulation.check()
        return self._verdict(f"{outcome}; phases: {', '.join([*ended.timings, ended.phase])}")

    def _verdict(self, outcome: str, error: BaseException | None = None) -> Object:
        violations = [*self.cluster.simulation.invariants.all_violations, *self._lost_data()]
        verdict = VIOLATION if violations else NOTICED if error is not None else ALIVE
        details = "; ".join(violations) if violations else outcome
        return {"verdict": verdict, "details": details[:300], "refusals": sorted(set(self.refusals))}

    def _lost_data(self) -> list[str]:
        """No operation may drop the data of the last server that has it."""
        if isinstance(self.operation, RestoreOnNewServers):
            return []
        disks = [node.disk for node in self.cluster.simulation.nodes]
        kept = [each for disk in disks for each in disk.files.values() if isinstance(each, EtcdData)]
        return [] if kept else ["data is never lost: no server has any"]

    # --- disturbances -------------------------------------------------------------------------------------------------

    async def _disturb(self, case: Case) -> None:
        if case.disturbance == ROUGH_NETWORK:
            self.cluster.simulation.sim.disturb(ROUGH)
        if not case.disturbance.startswith(PARTITION):
            return
        random = Random(str(case))
        phase, wait = random.choice(["", *self.operation.phases()]), random.uniform(0, 3)
        run = await self._in_phase(phase)
        await asyncio.sleep(wait)
        chosen = self._followers(run, random)
        for node in chosen:
            node.line.cut()
        await asyncio.sleep(random.choice((60, 600, 2400)))
        for node in chosen:
            node.line.heal()

    async def _in_phase(self, phase: str) -> Run | None:
        """Wait until the phase is stored. A mutant may never reach it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HOUR / 12 if phase else 0.1):
                async for run in runs_of(self.operation):
                    if run.phase == phase:
                        return run
        return await self.operation.run()

    def _followers(self, run: Run | None, random: Random) -> list[SimulatedNode]:
        """One or two servers that do not act for the others; a worker if there is no such server."""
        simulation = self.cluster.simulation
        leader = run.leader if run is not None else ""
        servers = [node for node in self.cluster.servers if simulation.machine_of(node) != leader]
        others = servers if len(self.cluster.servers) > 1 else [node for node in simulation.nodes if node.is_worker]
        return random.sample(others, min(random.choice((1, 2)), len(others)))


# --- processes --------------------------------------------------------------------------------------------------------


class TooLong(Exception):
    """The process has used its CPU time."""


async def forked(work: Callable[[], Awaitable[Object]], verdict: Callable[[str, BaseException], Object]) -> Object:
    """The verdict of a copy of this simulation, in a process of its own. What has failed is noticed."""
    reading_end, writing_end = os.pipe()
    child = loop.fork()
    if child == 0:
        os.close(reading_end)
        _limit_cpu()
        try:
            found = await work()
        except BaseException as error:
            found = verdict(f"{type(error).__name__}: {error}", error)
        with os.fdopen(writing_end, "wb") as stream:
            stream.write(json.dumps(found).encode())
        os._exit(0)
    os.close(writing_end)
    with os.fdopen(reading_end, "rb") as stream:
        output = stream.read()
    os.waitpid(child, 0)
    ended: Object = json.loads(output) if output else {"verdict": NOTICED, "details": "it never ends", "refusals": []}
    return ended


def _limit_cpu() -> None:
    def raise_error(_signal: int, _frame: object) -> None:
        raise TooLong(f"no end within {CPU_SECONDS} s of CPU")

    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(spent.ru_utime + spent.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    signal.signal(signal.SIGXCPU, raise_error)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_prepared(title: str, distribution: str, work: Callable[[PreparedCluster], Awaitable[None]]) -> None:
    """Do the work with a prepared cluster."""

    async def run() -> None:
        prepared = PreparedCluster(title, distribution)
        async with prepared.cluster.simulation:
            await prepared.operation.prepare()
            await work(prepared)

    gc.disable()  # the timing of finalizers depends on all that the process did before
    try:
        loop.run(run())
    finally:
        gc.enable()
        gc.collect()
