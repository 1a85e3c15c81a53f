"""CPU cost of one status change, and of an idle cluster, by the number of Machines.

Everything runs in one `herder up` process with the in-memory provider. The CPU time is that of this process, including
the API server.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from bench.race import cpu_seconds, high_water
from herder.api.capi.kinds import MACHINE
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE
from herder.api.inmemory.manifest import in_memory_cluster
from herder.api.inmemory.names import NODE_READY
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from tests.support.embedded import Embedded
from tests.support.engines import Engine

SIZES = (10, 1000, 5000)
CHANGES = 40
IDLE_SECONDS = 20.0
QUIET_SECONDS = 5.0  # until debounced writes are done
FLAGS = ("--capi-core=own", "--no-machines", "--in-memory", "--no-runner", "--log-level=warning")


@dataclass
class GrowthResult:
    machines: int
    seconds: float  # until all run
    idle: float  # CPU seconds per second
    # CPU seconds for one Machine's Node to fail and recover. bench.compare reads this name in older checkouts.
    news: float
    peak_mb: float


def run(directory: Path) -> str:
    results = [asyncio.run(measure(directory / str(size), size)) for size in SIZES]
    lines = [
        "## One Machine among many",
        "",
        "One process: API server, core, provider and the workload cluster's API. `change`: one Node becomes NotReady",
        "and Ready again, through Machine, MachineSet, MachineDeployment and Cluster.",
        "",
        "| Machines | s until all run | CPU per change, ms | CPU while idle, % of a core | peak MB |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        cells = [
            str(result.machines),
            f"{result.seconds:.1f}",
            f"{result.news * 1000:.1f}",
            f"{result.idle * 100:.2f}",
            f"{result.peak_mb:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


async def measure(directory: Path, size: int) -> GrowthResult:
    with Embedded(directory, flags=FLAGS) as server:
        assert server.process is not None
        pid = server.process.pid
        client = Engine("embedded", server.kubeconfig).client()
        try:
            started = time.perf_counter()
            await create_cluster(client, size)
            await wait_until_running(client, size + 1)
            seconds = time.perf_counter() - started
            await asyncio.sleep(QUIET_SECONDS)
            before = cpu_seconds(pid)
            await asyncio.sleep(IDLE_SECONDS)
            idle = (cpu_seconds(pid) - before) / IDLE_SECONDS
            news = await cost_per_change(client, pid, idle)
            return GrowthResult(size + 1, seconds, idle, news, high_water(pid))
        finally:
            await client.close()


async def create_cluster(client: Client, size: int) -> None:
    for kind, obj in in_memory_cluster("c", workers=size):
        obj["metadata"]["namespace"] = "default"
        while True:
            try:
                await client.create(kind.resource, obj, namespace="default")
                break
            except NotFound:  # the CRDs may not be installed yet
                await asyncio.sleep(0.1)


async def wait_until_running(client: Client, machines: int) -> None:
    running: set[str] = set()
    async for event in client.watch(MACHINE.resource, namespace="default", initial_events=True):
        if event.type != "BOOKMARK" and (event.object.get("status") or {}).get("phase") == "Running":
            running.add(event.object["metadata"]["uid"])
        if len(running) == machines:
            return


async def cost_per_change(client: Client, pid: int, idle: float) -> float:
    page = await client.list(IN_MEMORY_MACHINE.resource, namespace="default", limit=CHANGES)
    names = [obj["metadata"]["name"] for obj in page.items]
    before, began = cpu_seconds(pid), time.perf_counter()
    for status in ("False", None):
        for name in names:
            patch = {"metadata": {"annotations": {NODE_READY: status}}}
            await client.patch(IN_MEMORY_MACHINE.resource, name, patch, namespace="default")
            await asyncio.sleep(0.05)  # spaced out, not as a burst
        await asyncio.sleep(QUIET_SECONDS)
    spent = cpu_seconds(pid) - before - idle * (time.perf_counter() - began)
    return spent / len(names)
