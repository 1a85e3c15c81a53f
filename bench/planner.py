"""What one machine's news costs the planner of a small cluster and of a large one.

Simulated: the real API server, the planner and its guards in one process on a virtual clock, with agents that answer
plans at once. What is measured is CPU time, the API server's included.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from herder.api.rke import names, plan_secret
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.plan_secret import encoded
from herder.sim import loop
from tests.controllers.planner.simulated import NAMESPACE, SERVER_ROLES, WORKER_ROLES, SimulatedCluster

SIZES = (10, 100, 1000)
SERVERS = 3
NEWS = 20
SETTLED_SECONDS = 30.0  # of virtual time


@dataclass
class Cost:
    machines: int
    up: float  # CPU seconds until all have their plans, for each machine
    news: float  # CPU seconds
    idle: float  # of the same virtual time without news


def run(directory: Path) -> str:
    costs = [loop.run(measure(size)) for size in SIZES]
    lines = [
        "## One machine's news",
        "",
        f"{SERVERS} servers and workers. `news`: a probe of one worker fails, or succeeds again.",
        "",
        "| machines | CPU ms per news | CPU ms per machine until all are up |",
        "|---|---|---|",
    ]
    for cost in costs:
        news = (cost.news - cost.idle) * 1000
        lines.append(f"| {cost.machines} | {news:.1f} | {cost.up * 1000:.1f} |")
    return "\n".join(lines) + "\n"


async def measure(size: int) -> Cost:
    async with SimulatedCluster() as cluster:
        began = time.process_time()
        await cluster.make()
        for number in range(size):
            roles = SERVER_ROLES if number < SERVERS else WORKER_ROLES
            address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
            await cluster.add(f"m{number}", roles, address=address)
        while not await cluster.is_ready():
            await asyncio.sleep(SETTLED_SECONDS)
        up = time.process_time() - began
        idle = await _spent(cluster, news=False)
        return Cost(size, up / size, await _spent(cluster, news=True), idle)


async def _spent(cluster: SimulatedCluster, *, news: bool) -> float:
    """CPU seconds, for one of several such moments."""
    plan = await cluster.plan(f"m{SERVERS}")
    assert plan.plan is not None
    probe = next(iter(plan.plan.probes))
    began = time.process_time()
    for number in range(NEWS):
        if news:
            statuses = f'{{"{probe}":{{"healthy":{"true" if number % 2 else "false"}}}}}'
            patch = {"data": {plan_secret.PROBE_STATUSES: encoded(statuses)}}
            name = names.plan_secret(f"m{SERVERS}")
            await cluster.client.patch(PLAN_SECRET.resource, name, patch, namespace=NAMESPACE)
        await asyncio.sleep(SETTLED_SECONDS)
    return (time.process_time() - began) / NEWS
