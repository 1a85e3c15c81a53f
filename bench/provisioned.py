"""A cluster of many machines, from one Cluster object to Ready.

Simulated: the real API server, all controllers of a manager and the agents' own core in one process on a virtual clock;
machines are simulated and run nothing. The benchmark measures the time of that process and the writes to the manager's
API.
"""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from herder.api.capi.conditions import is_true
from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.kinds import CONTROL_PLANE
from herder.app.admission.kinds import install_admission, install_cluster_admission
from herder.app.manager import core_controllers, provisioning_controllers
from herder.controllers.provisioning import cluster_registration_token
from herder.controllers.provisioning.cluster import controller as provisioning_cluster
from herder.controllers.provisioning.management_cluster import controller as management_cluster
from herder.engine.apiserver.build import ApiServer
from herder.engine.runtime.controller import Controller
from herder.sim import loop
from herder.sim.faults import Faults
from herder.sim.provisioned import Provisioned, pool

SIZES = (10, 100, 1000)
SERVERS = 3
VERSION = "v1.34.1+k3s1"
TIMEOUT_SECONDS = 7200.0  # of virtual time


@dataclass
class ProvisioningResult:
    machines: int
    wall: float
    cpu: float
    virtual: float
    manager_writes: int
    agents_writes: int
    peak_mb: float


def run(_directory: Path) -> str:
    results = [loop.run(measure(size)) for size in SIZES]
    lines = [
        "## From one object to Ready",
        "",
        f"{SERVERS} servers, the rest workers, of one Cluster object. Writes: requests that change the manager's API,",
        "by the manager, without its machine provider, and by the machines' agents.",
        "",
        "| machines | wall s | CPU ms per machine | writes per machine: manager | agents | peak MB | virtual s |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        cells = [
            str(result.machines),
            f"{result.wall:.1f}",
            f"{result.cpu * 1000 / result.machines:.1f}",
            f"{result.manager_writes / result.machines:.1f}",
            f"{result.agents_writes / result.machines:.1f}",
            f"{result.peak_mb:.0f}",
            f"{result.virtual:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


async def measure(size: int) -> ProvisioningResult:
    async with Provisioned(
        1, _controllers(), faults=Faults(delay=0.001), prepare=_install_admission, strict=False
    ) as sim:
        wall, cpu = time.perf_counter(), time.process_time()
        workers = pool("workers", size - SERVERS, "worker")
        await sim.ask_for(VERSION, pool("servers", SERVERS, "etcd", "controlPlane"), workers)
        await _wait_until_ready(sim, size)
        return ProvisioningResult(
            machines=size,
            wall=time.perf_counter() - wall,
            cpu=time.process_time() - cpu,
            virtual=asyncio.get_running_loop().time(),
            manager_writes=sim.world.writes,
            agents_writes=sim.agents_writes,
            peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


async def _wait_until_ready(sim: Provisioned, size: int) -> None:
    """Poll rarely, since polling counts towards the measured time."""
    for _ in range(int(TIMEOUT_SECONDS / 10)):
        sim.check()
        planes, clusters = await sim.all(CONTROL_PLANE), await sim.all(PROVISIONING_CLUSTER)
        if all(is_true(each, "Ready") for each in (*planes, *clusters)) and planes:
            machines = await sim.all(MACHINE)
            if sum((machine.get("status") or {}).get("phase") == "Running" for machine in machines) == size:
                return
        await asyncio.sleep(10)
    raise TimeoutError(f"{size} machines are not Ready within {TIMEOUT_SECONDS} s of virtual time")


def _controllers() -> list[Controller]:
    managed = (management_cluster, provisioning_cluster, cluster_registration_token)
    return [*core_controllers(), *(module.CONTROLLER for module in managed), *provisioning_controllers()]


def _install_admission(server: ApiServer) -> None:
    install_admission(server)
    install_cluster_admission(server)
