"""Machines from objects, through Jobs: how long a herd takes to come up and go, and what one more costs beside it.

Each is a MachineDeployment's: a Machine, its bootstrap data, the infrastructure's object, a Job that runs the machine
program, a machine of this host. CPU time is that of everything on the machine that the benchmark runs on, which is
to be quiet: API server, controllers, runner, Jobs, daemon.
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
from tests.support.machines import Provider, all_created, create_cluster, create_machines, embedded

HERDS = (10, 100, 200)
MORE = 5
NAMESPACE = "bench"
MACHINE = kinds_of("process").machine
JOBS = GroupVersionResource("batch", "v1", "jobs")


@dataclass
class Herd:
    machines: int
    up: float  # seconds until all are created
    each: float  # CPU seconds for each of them
    more: float  # CPU seconds for one more, when they are there
    gone: float  # seconds until all are gone
    left: int


def run(directory: Path) -> str:
    herds = asyncio.run(_measure(directory))
    lines = [
        "## Machines of driver `process` from objects",
        "",
        "| machines | s until all are created | CPU each, ms | CPU for one more, ms | s until all gone | left over |",
        "|---|---|---|---|---|---|",
    ]
    for herd in herds:
        told = (herd.machines, f"{herd.up:.1f}", f"{herd.each * 1000:.0f}", f"{herd.more * 1000:.0f}")
        lines.append("| " + " | ".join(map(str, (*told, f"{herd.gone:.1f}", herd.left))) + " |")
    return "\n".join(lines) + "\n"


async def _measure(directory: Path) -> list[Herd]:
    with embedded(directory) as provider:
        client = provider.engine.client()
        try:
            await create_cluster(client, NAMESPACE, "process")
            name = await create_machines(client, NAMESPACE, "process", {}, count=0)
            return [await _herd(provider, client, name, size) for size in HERDS]
        finally:
            await client.close()


async def _herd(provider: Provider, client: Client, name: str, size: int) -> Herd:
    up, spent = await _timed(lambda: _scaled(client, name, size))
    await _quiet(client)
    _, more = await _timed(lambda: _scaled(client, name, size + MORE))
    await _quiet(client)
    gone, _ = await _timed(lambda: _scaled(client, name, 0))
    left = HostClient.of(provider.host_state).machines()
    secrets = (await client.list_all(capi.SECRET.resource, namespace=NAMESPACE)).items
    states = [one for one in secrets if one["type"] == "rke.cattle.io/machine-state"]
    return Herd(size, up, spent / size, more / MORE, gone, len(left) + len(states))


async def _scaled(client: Client, name: str, count: int) -> None:
    await client.patch(capi.MACHINE_DEPLOYMENT.resource, name, {"spec": {"replicas": count}}, namespace=NAMESPACE)
    await wait_until(client, MACHINE, NAMESPACE, all_created(count) if count else none_left, seconds=600)


async def _quiet(client: Client) -> None:
    """Until what served the Jobs is tidied away."""
    while (await client.list_all(JOBS, namespace=NAMESPACE)).items:
        await asyncio.sleep(0.2)
    await asyncio.sleep(1)


async def _timed(act: Callable[[], object]) -> tuple[float, float]:
    began, before = time.monotonic(), _busy_seconds()
    await act()  # type: ignore[misc]
    return time.monotonic() - began, _busy_seconds() - before


def _busy_seconds() -> float:
    """Of all processors, but idling and waiting for the disk."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
