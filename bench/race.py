"""Herder compared with upstream Cluster API: from manifests to running Machines on kube-apiserver and etcd (fsync on).

Contestants run in sequence, each on a fresh API server, so that none inherits another's objects or caches. Simulated
delays are zero, so that only the cost of the managers is measured.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.inmemory.manifest import in_memory_cluster
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from tests.support.api import Api
from tests.support.capi import webhook_flags
from tests.support.embedded import HERDER
from tests.support.engines import Engine
from tests.support.kube import RealKube
from tests.support.processes import terminate
from tests.support.upstream import (
    CORE,
    DEV,
    KUBEADM_BOOTSTRAP,
    KUBEADM_CONTROL_PLANE,
    PROVIDERS,
    Program,
    UpstreamManager,
    dev_cluster,
)

NAMESPACE = "race"
TICKS = os.sysconf("SC_CLK_TCK")
CONTROLLERS = ("garbage-collector-controller", "namespace-controller", "serviceaccount-controller")
IGNORED = frozenset({"leases", "events", "subjectaccessreviews", "tokenreviews"})
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE", "APPLY"})
LONGEST_SECONDS = 600.0


@dataclass(frozen=True)
class Size:
    clusters: int
    workers: int  # beside one control plane machine

    @property
    def machines(self) -> int:
        return self.clusters * (self.workers + 1)

    def __str__(self) -> str:
        return f"{self.clusters} × (1+{self.workers})"


SIZES = (Size(1, 200), Size(25, 3))


@dataclass
class Managers:
    """The processes of a contestant, and those of them that are the core."""

    processes: list[subprocess.Popen[bytes]]
    core: list[subprocess.Popen[bytes]]
    stop: Callable[[], None]


@dataclass(frozen=True)
class Contestant:
    name: str
    start: Callable[[Engine, Path], Awaitable[Managers]]
    objects: Callable[[str, int], list[tuple[GroupVersionResource, Object]]]


@dataclass
class Phase:
    """Costs of one phase: creation or deletion."""

    seconds: float = 0.0
    writes: float = 0.0  # each per Machine
    conflicts: float = 0.0
    cpu: float = 0.0
    core_cpu: float = 0.0
    server_cpu: float = 0.0
    by_resource: dict[str, float] = field(default_factory=dict)


@dataclass
class Result:
    contestant: str
    size: Size
    up: Phase
    down: Phase
    peak_mb: float
    core_peak_mb: float
    surplus: int  # Machines created in excess of those requested


# --- contestants ----------------------------------------------------------------------------------------------------


async def start_upstream(
    engine: Engine, directory: Path, programs: tuple[Program, ...], flags: Mapping[Program, Sequence[str]]
) -> Managers:
    api = Api(engine.connection)
    managers = []
    for program in programs:
        place = directory / program.peer
        place.mkdir(parents=True)
        managers.append(UpstreamManager(program, engine, place, flags.get(program, ())))
        await managers[-1].install(api)
    for manager in managers:
        await manager.start()
    await api.close()
    processes = [manager.process for manager in managers if manager.process]

    def stop() -> None:
        for manager in managers:
            manager.stop()

    return Managers(processes, processes[:1] if CORE in programs else [], stop)


def herder_run(
    engine: Engine, directory: Path, name: str, *flags: str, program: Path = HERDER
) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [program, "run", "--kubeconfig", engine.kubeconfig, "--data-dir", directory / name, *flags],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def own_core(engine: Engine, directory: Path, *flags: str, program: Path = HERDER) -> subprocess.Popen[bytes]:
    own = ("--capi-core=own", "--no-machines", *webhook_flags())
    return herder_run(engine, directory, "core", *own, *flags, program=program)


def in_memory_provider(engine: Engine, directory: Path) -> subprocess.Popen[bytes]:
    return herder_run(
        engine, directory, "provider", "--capi-core=external", "--no-machines", "--in-memory", "--namespace=provider"
    )


def stop_all(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        terminate(process)


async def start_ours(engine: Engine, directory: Path, program: Path = HERDER) -> Managers:
    """Run everything in one process, as users do."""
    whole = own_core(engine, directory, "--in-memory", program=program)
    await wait_until_served(engine, "inmemorymachines.inmemory.cluster.x-k8s.io")
    return Managers([whole], [whole], lambda: stop_all(whole))


async def start_our_core(engine: Engine, directory: Path) -> Managers:
    core = own_core(engine, directory)
    await wait_until_served(engine, "machines.cluster.x-k8s.io")
    provider = in_memory_provider(engine, directory)
    await wait_until_served(engine, "inmemorymachines.inmemory.cluster.x-k8s.io")
    return Managers([core, provider], [core], lambda: stop_all(core, provider))


async def start_upstream_core(engine: Engine, directory: Path) -> Managers:
    managers = await start_upstream(engine, directory, (CORE,), {})
    provider = in_memory_provider(engine, directory)
    await wait_until_served(engine, "inmemorymachines.inmemory.cluster.x-k8s.io")

    def stop() -> None:
        stop_all(provider)
        managers.stop()

    return Managers([*managers.processes, provider], managers.core, stop)


async def start_upstream_stack(engine: Engine, directory: Path) -> Managers:
    return await start_upstream(engine, directory, (CORE, *PROVIDERS), {})


async def start_tuned_upstream_stack(engine: Engine, directory: Path) -> Managers:
    """Use ten workers per controller, which suits two cores better than the defaults."""
    names = {
        CORE: ("cluster-", "machine-", "machineset-", "machinedeployment-", "clustercache-"),
        KUBEADM_BOOTSTRAP: ("kubeadmconfig-", "clustercache-"),
        KUBEADM_CONTROL_PLANE: ("kubeadmcontrolplane-", "clustercache-"),
        DEV: ("", "clustercache-"),
    }
    flags = {program: [f"--{name}concurrency=10" for name in controllers] for program, controllers in names.items()}
    return await start_upstream(engine, directory, (CORE, *PROVIDERS), flags)


def in_memory(name: str, workers: int) -> list[tuple[GroupVersionResource, Object]]:
    return [(kind.resource, obj) for kind, obj in in_memory_cluster(name, workers=workers)]


def dev(name: str, workers: int) -> list[tuple[GroupVersionResource, Object]]:
    found = []
    for obj in dev_cluster(name, workers=workers):
        group, _, version = obj["apiVersion"].rpartition("/")
        found.append((GroupVersionResource(group, version, obj["kind"].lower() + "s"), obj))
    return found


CONTESTANTS = (
    Contestant("our core, our provider", start_our_core, in_memory),
    Contestant("upstream's core, our provider", start_upstream_core, in_memory),
    Contestant("our whole stack", start_ours, in_memory),
    Contestant("upstream's whole stack", start_upstream_stack, dev),
    Contestant("upstream's whole stack, concurrency 10", start_tuned_upstream_stack, dev),
)


# --- one race -------------------------------------------------------------------------------------------------------


async def race(contestant: Contestant, size: Size, directory: Path) -> Result:
    (directory / "kube").mkdir(parents=True)
    kube = RealKube(directory / "kube", controller_manager=True, controllers=CONTROLLERS, fsync=True)
    with kube:
        engine = Engine("real", kube.kubeconfig)
        managers = await contestant.start(engine, directory)
        client = engine.client()
        try:
            await asyncio.sleep(3)  # leases, caches, first probes
            await client.create(
                GroupVersionResource("", "v1", "namespaces"),
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            )
            meter = Meter(client, managers, [process.pid for process in kube.processes.values()], size)
            await meter.begin()
            await create_clusters(client, contestant, size)
            created = await wait_until_running(client, size, managers)
            up = await meter.read()
            await wait_until_quiet(client, meter)
            await meter.begin()
            for number in range(size.clusters):
                await client.delete(CLUSTER.resource, f"c{number}", namespace=NAMESPACE)
            await wait_until_deleted(client)
            down = await meter.read()
            peak = sum(high_water(process.pid) for process in managers.processes)
            core_peak = sum(high_water(process.pid) for process in managers.core)
        finally:
            managers.stop()
            await client.close()
    return Result(contestant.name, size, up, down, peak, core_peak, created - size.machines)


async def create_clusters(client: Client, contestant: Contestant, size: Size) -> None:
    for number in range(size.clusters):
        for resource, obj in contestant.objects(f"c{number}", size.workers):
            obj["metadata"]["namespace"] = NAMESPACE
            await client.create(resource, obj, namespace=NAMESPACE)


async def wait_until_running(client: Client, size: Size, managers: Managers) -> int:
    """Wait until all requested Machines run; return the number of Machines that ever existed."""
    phases: dict[str, str] = {}
    async with asyncio.timeout(LONGEST_SECONDS), require_all_alive(managers):
        while True:
            try:
                if await all_run(client, size, phases):
                    return len(phases)
            except StatusError:  # under this load, the server may end watches or reject new ones
                await asyncio.sleep(0.5)


async def all_run(client: Client, size: Size, phases: dict[str, str]) -> bool:
    async with aclosing(client.watch(MACHINE.resource, namespace=NAMESPACE, initial_events=True)) as events:
        async for event in events:
            if event.type == "BOOKMARK":
                continue
            phases[event.object["metadata"]["uid"]] = (event.object.get("status") or {}).get("phase", "")
            if sum(phase == "Running" for phase in phases.values()) >= size.machines:
                return True
    return False


@asynccontextmanager
async def require_all_alive(managers: Managers) -> AsyncIterator[None]:
    """Cancel the current task if a manager ends, instead of waiting for its work forever."""
    working = asyncio.current_task()
    assert working is not None

    async def watch_processes() -> None:
        while all(process.poll() is None for process in managers.processes):
            await asyncio.sleep(0.5)
        working.cancel("a manager has ended")

    watcher = asyncio.ensure_future(watch_processes())
    try:
        yield
    finally:
        watcher.cancel()


async def wait_until_quiet(client: Client, meter: Meter) -> None:
    """Wait until writes stop, so that late writes of the creation do not count towards the deletion."""
    before = -1.0
    for _ in range(60):
        now = await meter.total_writes()
        if now == before:
            return
        before = now
        await asyncio.sleep(2)


async def wait_until_deleted(client: Client) -> None:
    async with asyncio.timeout(LONGEST_SECONDS):
        while (await client.list(CLUSTER.resource, namespace=NAMESPACE, limit=1)).items:
            await asyncio.sleep(0.1)


async def wait_until_served(engine: Engine, definition: str) -> None:
    client = engine.client()
    crds = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    found = await client.get(crds, definition)
                    conditions = (found.get("status") or {}).get("conditions") or []
                    if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                        return
                except NotFound:
                    pass
                await asyncio.sleep(0.1)
    finally:
        await client.close()


# --- measurement ----------------------------------------------------------------------------------------------------


class Meter:
    def __init__(self, client: Client, managers: Managers, server_pids: list[int], size: Size) -> None:
        self._client = client
        self._managers = managers
        self._server_pids = server_pids
        self._size = size

    async def begin(self) -> None:
        self._before = await self._reading()
        self._began = time.perf_counter()

    async def read(self) -> Phase:
        seconds = time.perf_counter() - self._began
        after = await self._reading()
        each = {name: (after[name] - self._before.get(name, 0.0)) / self._size.machines for name in after}
        by_resource = {name[6:]: round(n, 2) for name, n in each.items() if name.startswith("write:") and n > 0.005}
        return Phase(
            seconds,
            sum(n for name, n in each.items() if name.startswith("write:")),
            each.get("conflicts", 0.0),
            each["cpu"],
            each["core cpu"],
            each["server cpu"],
            by_resource,
        )

    async def total_writes(self) -> float:
        return sum(n for name, n in (await self._reading()).items() if name.startswith("write:"))

    async def _reading(self) -> dict[str, float]:
        text = (await self._client.raw("GET", "/metrics")).content().decode()
        reading: dict[str, float] = {"conflicts": 0.0}
        for labels, count in re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", text, re.MULTILINE):
            values = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if values["verb"] not in WRITES or values["resource"] in IGNORED or values.get("dry_run"):
                continue
            resource = f"{values['verb'].lower()} {values['resource']}" + (
                f"/{values['subresource']}" if values["subresource"] else ""
            )
            reading[f"write:{resource}"] = reading.get(f"write:{resource}", 0.0) + float(count)
            if values["code"] == "409":
                reading["conflicts"] += float(count)
        reading["cpu"] = sum(cpu_seconds(process.pid) for process in self._managers.processes)
        reading["core cpu"] = sum(cpu_seconds(process.pid) for process in self._managers.core)
        reading["server cpu"] = sum(cpu_seconds(pid) for pid in self._server_pids)
        return reading


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def high_water(pid: int) -> float:
    """Return the peak resident memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


# --- report ---------------------------------------------------------------------------------------------------------


def run(directory: Path, only: Callable[[Contestant, Size], bool] = lambda _contestant, _size: True) -> str:
    results: list[Result] = []
    for size in SIZES:
        for number, contestant in enumerate(CONTESTANTS):
            if only(contestant, size):
                results.append(asyncio.run(race(contestant, size, directory / f"{size.clusters}-{number}")))
                print(results[-1], flush=True)
    return report(results)


def report(results: list[Result]) -> str:
    lines = [
        "## From a manifest to running Machines",
        "",
        "On a real kube-apiserver with etcd (fsync on), webhooks on, simulated delays zero. Writes, conflicts and CPU",
        "seconds are per Machine; `core` is the core manager alone if it is a separate process.",
        "",
        "| size | contestant | s to Running | writes (409) | CPU s: managers / core / server | peak MB: all / core "
        "| s to delete | writes to delete | surplus |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        lines.append(_row(one))
    return "\n".join([*lines, "", *_detail(results)]) + "\n"


def _row(one: Result) -> str:
    up, down = one.up, one.down
    cells: list[Any] = [
        one.size,
        one.contestant,
        f"{up.seconds:.1f}",
        f"{up.writes:.1f} ({up.conflicts:.1f})",
        f"{up.cpu:.3f} / {up.core_cpu:.3f} / {up.server_cpu:.3f}",
        f"{one.peak_mb:.0f} / {one.core_peak_mb:.0f}",
        f"{down.seconds:.1f}",
        f"{down.writes:.1f} ({down.conflicts:.1f})",
        one.surplus,
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _detail(results: list[Result]) -> list[str]:
    lines = ["Writes by kind, per Machine:", ""]
    for one in results:
        counts = ", ".join(
            f"{name} {n}" for name, n in sorted(one.up.by_resource.items(), key=lambda item: -item[1])[:12]
        )
        lines.append(f"- {one.size}, {one.contestant}: {counts}")
    return lines
