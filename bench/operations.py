"""What an operation on one cluster costs, and what it costs the others, by the number of clusters.

Simulated: the real API server, the planner and its guards in one process on a virtual clock, with agents that apply
plans immediately. The CPU time includes the API server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.rke import operations
from herder.api.rke.kinds import CONTROL_PLANE, PLAN_SECRET
from herder.api.rke.operations import Run
from herder.controllers.planner import controller
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision
from herder.engine.runtime.view import View
from herder.sim import loop
from tests.unit.controllers.planner.simulated_cluster import (
    ALL_ROLES,
    NAME,
    NAMESPACE,
    SERVER_ROLES,
    WORKER_ROLES,
    SimulatedCluster,
)

COUNTS = (10, 100, 1000)
"""Numbers of clusters, including the one with the operation."""
SERVERS, WORKERS = 3, 2
OPERATIONS = (operations.CERTIFICATES, operations.SNAPSHOT)
ROUNDS = 3
ROUND_SECONDS = 600.0  # of virtual time: longer than each of these operations takes
SETTLE_SECONDS = 120.0  # of virtual time


@dataclass(frozen=True)
class Cost:
    clusters: int
    title: str
    cpu: float
    """CPU seconds of one operation, without those of an idle manager in the same virtual time."""
    other_reconciles: int
    """Reconciles of the control planes of other clusters."""
    other_writes: int
    """Objects of other clusters that changed."""


def run(_directory: Path) -> str:
    costs = [cost for count in COUNTS for cost in loop.run(measure(count))]
    lines = [
        "## An operation on one of many clusters",
        "",
        f"One cluster has {SERVERS} servers and {WORKERS} workers, and runs {ROUNDS} operations one after the other.",
        "The others have one machine each and are up to date; they should neither be reconciled nor written.",
        "",
        "| clusters | operation | CPU ms per operation | reconciles of other clusters | writes to other clusters |",
        "|---|---|---|---|---|",
    ]
    for cost in costs:
        cells = (cost.clusters, cost.title, f"{cost.cpu * 1000:.0f}", cost.other_reconciles, cost.other_writes)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


async def measure(clusters: int) -> list[Cost]:
    reconciles: Counter[str] = Counter()

    def counted(view: View) -> Decision:
        reconciles[view.name] += 1
        return controller.CONTROLLER.reconcile(view)

    planner = replace(controller.CONTROLLER, reconcile=counted)
    async with SimulatedCluster(strict=False, planner=planner) as simulated:
        await _create(simulated, clusters)
        idle = await _idle_seconds()
        costs = []
        for kind in OPERATIONS:
            before = await _other_versions(simulated)
            reconciles.clear()
            cpu = sum([await _operate(simulated, kind, generation) for generation in range(1, ROUNDS + 1)]) / ROUNDS
            after = await _other_versions(simulated)
            costs.append(
                Cost(
                    clusters,
                    operations.TITLES[kind],
                    cpu - idle,
                    other_reconciles=reconciles.total() - reconciles[NAME],
                    other_writes=sum(after.get(uid) != version for uid, version in before.items()),
                )
            )
        return costs


async def _create(simulated: SimulatedCluster, clusters: int) -> None:
    await simulated.create()
    for number in range(SERVERS + WORKERS):
        await simulated.add(f"m{number}", SERVER_ROLES if number < SERVERS else WORKER_ROLES)
    others = [f"other-{number}" for number in range(clusters - 1)]
    for number, name in enumerate(others):
        await simulated.create(cluster_name=name)
        await simulated.add(f"{name}-m0", ALL_ROLES, address=f"10.1.{number // 256}.{number % 256}", cluster_name=name)
    for name in (NAME, *others):
        while not await simulated.is_ready(name):
            await asyncio.sleep(SETTLE_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)


async def _idle_seconds() -> float:
    began = time.process_time()
    await asyncio.sleep(ROUND_SECONDS)
    return time.process_time() - began


async def _operate(simulated: SimulatedCluster, kind: str, generation: int) -> float:
    """Return the CPU seconds until the operation has succeeded and the time of a round is over."""
    began = time.process_time()
    await simulated.edit(**{kind: {"generation": generation}})
    await asyncio.sleep(ROUND_SECONDS)
    spent = time.process_time() - began
    run = Run.of(await simulated.control_plane())
    assert run is not None, "the operation has not started"
    assert (run.kind, run.generation, run.phase) == (kind, generation, operations.FINISHED), run
    return spent


async def _other_versions(simulated: SimulatedCluster) -> dict[str, str]:
    """The resource versions of the objects of other clusters, by UID."""
    found: list[Object] = []
    for kind in (CLUSTER, CONTROL_PLANE, MACHINE, PLAN_SECRET):
        found += (await simulated.client.list(kind.resource, namespace=NAMESPACE)).items
    others = [each["metadata"] for each in found if each["metadata"]["name"].startswith("other-")]
    return {metadata["uid"]: metadata["resourceVersion"] for metadata in others}
