"""`local` machines: time until SSH responds, cost while idle, and twenty concurrent ones."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from herder.machine.host.local import image
from tests.unit.machine.local.host import Booted, Host

ROUNDS = 5
AT_ONCE = 20
SETTLING_SECONDS = 10.0
SCRIPT = b"#!/bin/sh\ntrue\n"
MEGABYTE = 1_000_000


def run(directory: Path) -> str:
    image.make("", lambda _percent, _text: None)
    with Host(directory) as host:
        host.create("warm-up").hosted.remove()
        without_cloud_init = [boot(host, f"seeded-{number}") for number in range(ROUNDS)]
        with_cloud_init = [boot(host, f"clouded-{number}", cloud_init=True) for number in range(ROUNDS)]
        script_finished = [
            boot(host, f"run-{number}", "cloud-init status --wait", cloud_init=True) for number in range(ROUNDS)
        ]
        concurrent = measure_concurrently(host)
    return REPORT.format(
        without_cloud_init=_median_and_worst(without_cloud_init),
        with_cloud_init=_median_and_worst(with_cloud_init),
        script_finished=_median_and_worst(script_finished),
        at_once=AT_ONCE,
        all_up=concurrent["up"],
        slowest=concurrent["slowest"],
        memory=concurrent["memory"],
        supervisor=concurrent["supervisor"],
        idle=concurrent["idle"],
        all_gone=concurrent["removed"],
    )


REPORT = """\
## Local machines: Debian with systemd, own address, sshd

| | goal | median | worst of five |
|---|---|---|---|
| create until SSH responds, s (script seeded) | 2 | {without_cloud_init} |
| create until SSH responds, s (cloud-init) | 4 | {with_cloud_init} |
| create until the script has run, s (cloud-init) | | {script_finished} |

{at_once} at once: all respond after {all_up:.1f} s, the slowest creation took {slowest:.1f} s; all are removed in
{all_gone:.1f} s. An idle machine has {memory:.1f} MB in its control group (goal: 40), its supervisor has
{supervisor:.1f} MB in addition, and it uses {idle:.2f} % of a core.
"""


def boot(host: Host, name: str, command: str = "", **options: object) -> float:
    """Return the seconds from the request to the banner of the machine's sshd, or to the end of a command by SSH."""
    started = time.monotonic()
    machine = host.create(name, script=SCRIPT, **options)
    if command:
        machine.ssh(command)
    took = time.monotonic() - started
    machine.hosted.remove()
    return took


def measure_concurrently(host: Host) -> dict[str, float]:
    """Create all machines concurrently, measure them while idle, and remove them concurrently."""

    def create(number: int) -> tuple[Booted, float]:
        started = time.monotonic()
        return host.create(f"concurrent-{number}", script=SCRIPT), time.monotonic() - started

    with ThreadPoolExecutor(AT_ONCE) as threads:
        started = time.monotonic()
        created = list(threads.map(create, range(AT_ONCE)))
        up = time.monotonic() - started
        time.sleep(SETTLING_SECONDS)
        machines = [machine for machine, _ in created]
        memory = statistics.mean(memory_of(machine) for machine in machines) / MEGABYTE
        supervisor = statistics.mean(private_memory(machine.supervisor) for machine in machines) / MEGABYTE
        idle = idle_share(machines)
        started = time.monotonic()
        list(threads.map(lambda machine: machine.hosted.remove(), machines))
        removed = time.monotonic() - started
    slowest = max(took for _, took in created)
    return {"up": up, "slowest": slowest, "removed": removed, "memory": memory, "supervisor": supervisor, "idle": idle}


def memory_of(machine: Booted) -> int:
    """Return the bytes charged to the machine's control group, including the page cache."""
    return _first_number(machine, "memory.usage_in_bytes", "memory.current")


def idle_share(machines: list[Booted], seconds: float = 10.0) -> float:
    """Return the average CPU usage of a machine, in percent of a core."""
    before = sum(cpu_seconds(machine) for machine in machines)
    time.sleep(seconds)
    return 100 * (sum(cpu_seconds(machine) for machine in machines) - before) / seconds / len(machines)


def cpu_seconds(machine: Booted) -> float:
    for group in machine.groups():
        if (group / "cpuacct.usage").exists():
            return int((group / "cpuacct.usage").read_text()) / 1e9
        if (group / "cpu.stat").exists() and "usage_usec" in (text := (group / "cpu.stat").read_text()):
            return int(text.split()[1]) / 1e6
    return 0.0


def private_memory(pid: int) -> int:
    """Return the proportional set size of a process, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _first_number(machine: Booted, *files: str) -> int:
    found = [group / file for group in machine.groups() for file in files if (group / file).exists()]
    return int(found[0].read_text())


def _median_and_worst(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} | {max(seconds):.2f}"
