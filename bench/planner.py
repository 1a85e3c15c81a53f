"""CPU cost of one machine's change to the planner, by the size of the cluster.

Simulated: the real API server, the planner and its guards in one process on a virtual clock, with agents that apply
plans immediately. The CPU time includes the API server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node import plan_secret
from herder.api.rke.node.plan_secret import encoded
from herder.sim import loop
from tests.unit.controllers.planner.simulated_cluster import NAMESPACE, SERVER_ROLES, WORKER_ROLES, SimulatedCluster

SIZES = (10, 100, 1000)
SERVERS = 3
CHANGES = 20
SETTLED_SECONDS = 30.0  # of virtual time


@dataclass
class Cost:
    machines: int
    up: float  # CPU seconds until all have their plans, for each machine
    report: float  # CPU seconds
    plan: float


def run(directory: Path) -> str:
    costs = [loop.run(measure(size)) for size in SIZES]
    lines = [
        "## One change of one machine",
        "",
        f"{SERVERS} servers and workers. `report`: a probe of one worker fails, or succeeds again. `plan`: one worker",
        "gets another taint: its plan is rendered, accepted by the guards, written, applied and reported.",
        "",
        "| machines | CPU ms per report | CPU ms per plan | CPU ms per machine until all are up |",
        "|---|---|---|---|",
    ]
    for cost in costs:
        numbers = (cost.report * 1000, cost.plan * 1000, cost.up * 1000)
        lines.append("| " + " | ".join((str(cost.machines), *(f"{each:.1f}" for each in numbers))) + " |")
    return "\n".join(lines) + "\n"


async def measure(size: int) -> Cost:
    async with SimulatedCluster(strict=False) as cluster:
        began = time.process_time()
        await cluster.create()
        for number in range(size):
            roles = SERVER_ROLES if number < SERVERS else WORKER_ROLES
            address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
            await cluster.add(f"m{number}", roles, address=address)
        while not await cluster.is_ready():
            await asyncio.sleep(SETTLED_SECONDS)
        up = time.process_time() - began
        plan = await cluster.plan(f"m{SERVERS}")
        assert plan.plan is not None
        probe = next(iter(plan.plan.probes))
        probes = [f'{{"{probe}":{{"healthy":{healthy}}}}}' for healthy in ("false", "true")]
        reports = [{"data": {plan_secret.PROBE_STATUSES: encoded(statuses)}} for statuses in probes]
        taints = [f'[{{"key":"{key}","effect":"NoSchedule"}}]' for key in ("a", "b")]
        taint_changes = [{"metadata": {"annotations": {names.TAINTS: taint}}} for taint in taints]
        idle = await _spent(cluster, [])
        return Cost(size, up / size, await _spent(cluster, reports) - idle, await _spent(cluster, taint_changes) - idle)


async def _spent(cluster: SimulatedCluster, patches: Sequence[Mapping[str, Any]]) -> float:
    """Return the CPU seconds per change, alternating between these patches of a plan Secret."""
    began = time.process_time()
    for number in range(CHANGES):
        if patches:
            name, patch = names.plan_secret(f"m{SERVERS}"), patches[number % len(patches)]
            await cluster.client.patch(PLAN_SECRET.resource, name, dict(patch), namespace=NAMESPACE)
        await asyncio.sleep(SETTLED_SECONDS)
    return (time.process_time() - began) / CHANGES
