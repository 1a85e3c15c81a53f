"""Crash an actor in each phase of each operation, on each distribution, and judge the outcome.

The controllers, guards and the agents' core are the real ones; machines, time and the network are simulated. For each
operation and distribution, a cluster is created once. When a phase is stored, the simulation is forked. The first copy
lets the phase pass, and reports when machines have tasks in it. Then there is a copy for each actor: it waits for a
random moment of the phase, by the seed, verifies that the stored operation is in this phase, crashes the actor, and
continues to the end.

python -m tests.simulation.plans.crash_matrix                      all cells; writes docs/results/crash-matrix.md
python -m tests.simulation.plans.crash_matrix --sample 8 --seed 3  some cells; writes nothing
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import Run
from herder.sim import loop
from herder.sim.nodes import SimulatedNode
from tests.simulation.plans import crash_page
from tests.simulation.plans.crash_operations.matrix import MATRIX
from tests.simulation.plans.crash_operations.operation import DISTRIBUTIONS, CrashedOperation, short
from tests.simulation.plans.crash_page import ACTORS, API_SERVER, BROKEN, NOT_RUN, Cell
from tests.simulation.plans.operations.operated_cluster import OperatedCluster
from tests.simulation.plans.operations.test_rotations import plans, reading

OFF_SECONDS = 60.0
SAMPLE_SECONDS = 0.1
CUT_SECONDS = 120.0
"""How long a line stays cut after the deadline of the phase."""
READ_SECONDS = 3.0
EARLIER_SECONDS = 0.001
"""An API server crashes this much before a moment when it was observed to run: it may stop at that moment."""
CPU_SECONDS = 240
ATTEMPTS = 4
NO_API = "– no API server runs in this phase"
SAMPLE_OF_GROUP = 2


# --- cells ------------------------------------------------------------------------------------------------------------


def all_cells() -> list[Cell]:
    """From the definitions of the operations."""
    return [
        Cell(title, phase, actor, distribution)
        for title, operation in MATRIX.items()
        for distribution in DISTRIBUTIONS
        for phase in operation.phases()
        for actor in operation.actors()
    ]


def reason_of(cell: Cell) -> str:
    return MATRIX[cell.title].reason(cell.distribution, cell.phase)


def servers_of(distribution: str) -> int:
    return 1 if distribution == "embedded" else 3


# --- crashes ----------------------------------------------------------------------------------------------------------


async def crash_manager(cluster: OperatedCluster, _run: Run) -> None:
    cluster.simulation.sim.world.crash()


async def crash_agents(cluster: OperatedCluster, _run: Run) -> None:
    for node in cluster.simulation.nodes:
        node.kill_agent()


async def crash_machine(cluster: OperatedCluster, run: Run) -> None:
    """The machine that has a task now, or the leader, or a server."""
    node = _busy_machine(cluster, run)
    node.power_off()
    asyncio.get_running_loop().call_later(OFF_SECONDS, node.boot)


def _busy_machine(cluster: OperatedCluster, run: Run) -> SimulatedNode:
    busy = {plan.labels[names.MACHINE_NAME] for plan in plans(cluster) if plan.is_moving}
    by_machine = {cluster.simulation.machine_of(node): node for node in cluster.simulation.nodes}
    chosen = [by_machine[name] for name in sorted(busy) if name in by_machine]
    leader = [by_machine[run.leader]] if run.leader in by_machine else []
    return [*chosen, *leader, *cluster.servers][0]


async def crash_api_server(cluster: OperatedCluster, _run: Run) -> None:
    """All of the cluster. On K3s and embedded servers it is a part of the service, which systemd starts again."""
    downstream = cluster.simulation.sim.downstream
    if cluster.servers[0].runtime in ("k3s", "herder"):
        for node in cluster.servers:
            node.service.crash()
        return
    downstream.stop_api()
    asyncio.get_running_loop().call_later(OFF_SECONDS, downstream.start_api)


async def cut_line(cluster: OperatedCluster, run: Run) -> None:
    """The machine that has a task cannot reach the manager until the phase has passed its deadline. Nothing stops."""
    node = _busy_machine(cluster, run)
    left = (run.deadline - cluster.simulation.sim.world.now()).total_seconds() if run.deadline is not None else 0.0
    node.line.cut()
    asyncio.get_running_loop().call_later(max(left, 0.0) + CUT_SECONDS, node.line.heal)


CRASHES: dict[str, Callable[[OperatedCluster, Run], Awaitable[None]]] = dict(
    zip(ACTORS, (crash_manager, crash_agents, crash_machine, crash_api_server, cut_line), strict=True)
)


# --- phases -----------------------------------------------------------------------------------------------------------


@dataclass
class Interval:
    """One phase, as it is without a crash."""

    begin: float
    end: float = 0.0
    busy: list[float] = field(default_factory=list)  # moments when a machine has a task
    serving: list[float] = field(default_factory=list)  # moments when the API of the cluster answers

    def moment(self, actor: str, random: Random) -> float | None:
        """When to crash the actor, in seconds after the begin; None if that is impossible."""
        busy = self.busy or [self.begin + random.uniform(0.1, 0.9) * (self.end - self.begin)]
        if actor == API_SERVER:
            both = sorted(set(self.busy) & set(self.serving))
            busy = [each - EARLIER_SECONDS for each in both or self.serving]
        return random.choice(busy) - self.begin if busy else None


async def runs_of(operation: CrashedOperation) -> AsyncIterator[Run]:
    """The stored run of the operation, whenever it changes, until it has ended."""
    client = operation.cluster.simulation.sim.world.client
    while True:  # a server ends each watch some time
        async for event in client.watch(CONTROL_PLANE.resource, initial_events=True):
            run = Run.of(event.object)
            if run is not None and run.kind == operation.kind and run.id not in operation.earlier:
                yield run
                if not run.is_active:
                    return


async def observe(operation: CrashedOperation, phase: str) -> Interval:
    """Let the current phase pass."""

    async def until_over() -> None:
        async for run in runs_of(operation):
            if run.phase != phase:
                return

    cluster, time_of = operation.cluster, asyncio.get_running_loop().time
    interval = Interval(time_of())
    if cluster.simulation.sim.downstream.has_api:
        interval.serving.append(interval.begin + 2 * EARLIER_SECONDS)
    over = asyncio.ensure_future(until_over())
    while not over.done():
        await asyncio.wait([over], timeout=SAMPLE_SECONDS)
        interval.end = time_of()
        if not over.done() and any(plan.is_moving for plan in plans(cluster)):
            interval.busy.append(interval.end)
        if not over.done() and cluster.simulation.sim.downstream.has_api:
            interval.serving.append(interval.end)
    return interval


# --- one operation on one distribution --------------------------------------------------------------------------------


Report = dict[str, Any]


async def forked(work: Callable[[], Awaitable[Report]]) -> Report:
    """The report of a copy of this simulation, in a process of its own."""
    reading_end, writing_end = os.pipe()
    child = loop.fork()
    if child == 0:
        os.close(reading_end)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(spent.ru_utime + spent.ru_stime) + CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        try:
            report = await work()
        except BaseException as error:
            report = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writing_end, "wb") as stream:
            stream.write(json.dumps(report).encode())
        os._exit(0)
    os.close(writing_end)
    with os.fdopen(reading_end, "rb") as stream:
        output = stream.read()
    os.waitpid(child, 0)
    found: Report = json.loads(output) if output else {"error": f"no end within {CPU_SECONDS} s of CPU"}
    return found


@dataclass
class Runner:
    title: str
    distribution: str
    seed: int
    cells: Sequence[Cell]
    report: Callable[[dict[Cell, str]], None]

    async def run(self) -> None:
        build = DISTRIBUTIONS[self.distribution]
        kind = MATRIX[self.title]
        cluster = OperatedCluster(
            f"{kind.first_version}{build}", servers=servers_of(self.distribution), seed=self.seed, strict=False
        )
        async with cluster.simulation:
            self._operation = kind(cluster, build)
            await self._operation.prepare()
            request = asyncio.ensure_future(self._operation.request())
            phase, waiting = "", list(self.cells)
            async for run in runs_of(self._operation):
                if run.phase == phase or not waiting:
                    continue
                phase = run.phase
                chosen = [cell for cell in waiting if cell.phase == phase]
                waiting = [cell for cell in waiting if cell not in chosen]
                if chosen:
                    await self._run_phase(phase, chosen)
                if not waiting:
                    break
            self.report(dict.fromkeys(waiting, f"{BROKEN}: a run without a crash does not reach the phase"))
            await request

    async def _run_phase(self, phase: str, cells: Sequence[Cell]) -> None:
        """At its begin: copies of the simulation let it pass, and crash an actor in it."""

        async def pass_phase() -> Report:
            return vars(await observe(self._operation, phase))

        observed = await forked(pass_phase)
        if error := observed.get("error"):
            self.report(dict.fromkeys(cells, f"{BROKEN}: without a crash: {short(error)}"))
            return
        for cell in cells:
            moment = Interval(**observed).moment(cell.actor, Random(f"{self.seed} {cell}"))
            self.report({cell: NO_API if moment is None else await self._outcome(cell, moment)})

    async def _outcome(self, cell: Cell, moment: float) -> str:
        """The copies are not equal in the last microsecond, so the phase may be over: then the crash is earlier."""
        for attempt in range(ATTEMPTS):
            report = await forked(lambda wait=moment / 2**attempt: self._crash(cell, wait))  # type: ignore[misc]
            if not report.get("missed"):
                break
        error = "the crash does not hit the phase" if report.get("missed") else report.get("error")
        return f"{BROKEN}: {short(error)}" if error else report["outcome"]

    async def _crash(self, cell: Cell, wait: float) -> Report:
        operation = self._operation
        await asyncio.sleep(wait)
        found = await operation.run()
        if found is None or (found.phase, found.is_active) != (cell.phase, True):
            return {"missed": True}
        if cell.actor == API_SERVER and not operation.cluster.simulation.sim.downstream.has_api:
            return {"missed": True}
        await CRASHES[cell.actor](operation.cluster, found)
        if not operation.keeps_secrets_readable:
            return {"outcome": await operation.judge(await operation.until_ended())}
        async with reading(operation.cluster):
            outcome = await operation.judge(await operation.until_ended())
            await asyncio.sleep(READ_SECONDS)  # another read of Secrets
            return {"outcome": outcome}


def run_group(
    title: str, distribution: str, seed: int, cells: Sequence[Cell], report: Callable[[dict[Cell, str]], None]
) -> None:
    """Report the outcomes of these cells of one operation on one distribution, one by one."""
    reasons = {cell: reason for cell in cells if (reason := reason_of(cell))}
    report(reasons)
    runner = Runner(title, distribution, seed, [cell for cell in cells if cell not in reasons], report)
    if runner.cells:
        gc.disable()  # the timing of finalizers depends on all that the process did before
        try:
            loop.run(runner.run())
        finally:
            gc.enable()
            gc.collect()


def run_cells(cells: Iterable[Cell], seed: int, publish: bool = False) -> dict[Cell, str]:
    """Outcomes by cell, with a line of progress for each operation and distribution."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.title, cell.distribution), []).append(cell)
    outcomes: dict[Cell, str] = {}

    def report(found: dict[Cell, str]) -> None:
        outcomes.update(found)
        for cell, outcome in found.items():
            if outcome.startswith(BROKEN):
                print(f"    {', '.join(cell)}: {outcome}", flush=True)
        if publish:
            crash_page.publish(found, all_cells(), seed)

    for (title, distribution), chosen in groups.items():
        began = time.monotonic()
        run_group(title, distribution, seed, chosen, report)
        print(f"  {title}, {distribution}: {len(chosen)} cells, {time.monotonic() - began:.0f} s", flush=True)
    return outcomes


def sample(count: int, seed: int) -> list[Cell]:
    """Cells of a few operations: creating a cluster costs more than a cell."""
    random = Random(f"sample {seed}")
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in all_cells():
        if not reason_of(cell):
            groups.setdefault((cell.title, cell.distribution), []).append(cell)
    found: list[Cell] = []
    chosen = list(groups.values())
    random.shuffle(chosen)
    for cells in chosen:
        if len(found) < count:
            found += random.sample(cells, min(SAMPLE_OF_GROUP, len(cells), count - len(found)))
    return found


def _summary(outcome: str) -> str:
    first = re.split(r"[:;]", outcome)[0]
    return "without meaning" if first.startswith("–") else first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, help="run this number of cells, and write no page")
    parser.add_argument("--only", nargs="*", default=[], help="titles of operations; other cells of the page are kept")
    parser.add_argument("--distributions", nargs="*", choices=list(DISTRIBUTIONS), default=list(DISTRIBUTIONS))
    parser.add_argument("--actors", nargs="*", choices=ACTORS, default=ACTORS)
    parser.add_argument("--missing", action="store_true", help="only cells that the page lacks")
    parser.add_argument("--dry-run", action="store_true", help="write no page")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # faults are the point here; their log lines are not
    gc.freeze()  # imported modules stay, and are shared with forked processes
    cells = all_cells() if options.sample is None else sample(options.sample, options.seed)
    cells = [each for each in cells if not options.only or each.title in options.only]
    cells = [each for each in cells if each.distribution in options.distributions]
    cells = [each for each in cells if each.actor in options.actors]
    if options.missing:
        known = crash_page.read_page()
        cells = [each for each in cells if known.get(each, NOT_RUN) in (NOT_RUN, "") or known[each].startswith(BROKEN)]
    publish = options.sample is None and not options.dry_run
    counts = Counter(map(_summary, run_cells(cells, options.seed, publish).values()))
    print(f"seed {options.seed}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    sys.exit(1 if counts[BROKEN] else 0)


if __name__ == "__main__":
    main()
