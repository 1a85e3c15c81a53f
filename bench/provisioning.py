"""Machines created by Jobs from a MachineDeployment: time to create and delete them, and the cost of one more.

Each consists of a Machine, its bootstrap data, its infrastructure machine, a Job that runs the machine program, and a
machine on this host. CPU time is that of the whole host, which must be idle otherwise: API server, controllers, runner,
Jobs and daemon.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from herder.api.capi import kinds as capi
from herder.api.machines.kinds import kinds_of
from herder.engine.client.client import Client
from herder.engine.meta.kinds import GroupVersionResource
from herder.machine.host.client import HostClient
from tests.support.capi import none_left, wait_until
from tests.support.manager.machines import Provider, all_created, create_cluster, create_machines, embedded

SIZES = (10, 100, 200)
MORE = 5
NAMESPACE = "bench"
MACHINE = kinds_of("process").machine
JOBS = GroupVersionResource("batch", "v1", "jobs")


@dataclass
class MachinesResult:
    machines: int
    up: float  # seconds until all are created
    each: float  # CPU seconds for each of them
    more: float  # CPU seconds for one more after all are created
    removed: float  # seconds until all are removed
    leftovers: int


def run(directory: Path) -> str:
    results = asyncio.run(_measure(directory))
    lines = [
        "## Machines of driver `process` from objects",
        "",
        "| machines | s until all created | CPU each, ms | CPU for one more, ms | s until all removed | left over |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        cells = (result.machines, f"{result.up:.1f}", f"{result.each * 1000:.0f}", f"{result.more * 1000:.0f}")
        lines.append("| " + " | ".join(map(str, (*cells, f"{result.removed:.1f}", result.leftovers))) + " |")
    return "\n".join(lines) + "\n"


async def _measure(directory: Path) -> list[MachinesResult]:
    with embedded(directory) as provider:
        client = provider.engine.client()
        try:
            await create_cluster(client, NAMESPACE, "process")
            name = await create_machines(client, NAMESPACE, "process", {}, count=0)
            return [await _measure_size(provider, client, name, size) for size in SIZES]
        finally:
            await client.close()


async def _measure_size(provider: Provider, client: Client, name: str, size: int) -> MachinesResult:
    up, spent = await _timed(lambda: _scale(client, name, size))
    await _wait_until_quiet(client)
    _, more = await _timed(lambda: _scale(client, name, size + MORE))
    await _wait_until_quiet(client)
    removed, _ = await _timed(lambda: _scale(client, name, 0))
    leftovers = HostClient.of(provider.host_state).machines()
    secrets = (await client.list_all(capi.SECRET.resource, namespace=NAMESPACE)).items
    states = [secret for secret in secrets if secret["type"] == "rke.cattle.io/machine-state"]
    return MachinesResult(size, up, spent / size, more / MORE, removed, len(leftovers) + len(states))


async def _scale(client: Client, name: str, count: int) -> None:
    await client.patch(capi.MACHINE_DEPLOYMENT.resource, name, {"spec": {"replicas": count}}, namespace=NAMESPACE)
    await wait_until(client, MACHINE, NAMESPACE, all_created(count) if count else none_left, seconds=600)


async def _wait_until_quiet(client: Client) -> None:
    """Wait until the finished Jobs are deleted."""
    while (await client.list_all(JOBS, namespace=NAMESPACE)).items:
        await asyncio.sleep(0.2)
    await asyncio.sleep(1)


async def _timed(operation: Callable[[], object]) -> tuple[float, float]:
    began, before = time.monotonic(), _busy_seconds()
    await operation()  # type: ignore[misc]
    return time.monotonic() - began, _busy_seconds() - before


def _busy_seconds() -> float:
    """Return the CPU seconds of all processors, without idle time and I/O wait."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
