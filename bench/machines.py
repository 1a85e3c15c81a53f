"""Cost of `process` machines: concurrent creation and removal, and one more machine beside few or many.

The benchmark calls the daemon directly, without Jobs. CPU time includes the daemon and the processes it starts.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.unit.machine.host.hosts import Host

SIZES = (10, 100, 200)
MORE = 10


@dataclass
class MachinesResult:
    machines: int
    up: float  # seconds until all run
    more: float  # CPU seconds for one more
    machine_mb: float  # proportional set size of a machine's processes
    daemon_mb: float
    removed: float  # seconds until all are removed
    leftovers_count: int  # processes, directories, addresses


def run(directory: Path) -> str:
    results = [measure(directory / str(size), size) for size in SIZES]
    lines = [
        "## Process machines",
        "",
        "All created at once, then one more at a time, then all removed at once; each runs a bootstrap script.",
        "",
        "| machines | s until all run | CPU for one more, ms | MB each | MB daemon | s until all removed | left over |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        cells = [
            str(result.machines),
            f"{result.up:.1f}",
            f"{result.more * 1000:.0f}",
            f"{result.machine_mb:.2f}",
            f"{result.daemon_mb:.0f}",
            f"{result.removed:.1f}",
            str(result.leftovers_count),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def measure(directory: Path, size: int) -> MachinesResult:
    with Host(directory) as host, ThreadPoolExecutor(size) as pool:
        host.start()
        names = [f"m{number}" for number in range(size)]
        began = time.monotonic()
        list(pool.map(lambda name: host.create(name, "#!/bin/sh\ntrue\n"), names))
        up = time.monotonic() - began
        machine_processes = host.machine_processes()
        machine_mb = sum(map(_own_mb, machine_processes)) / size
        before = _cpu_seconds(host.pid)
        for number in range(MORE):
            host.create(f"more{number}")
        more = (_cpu_seconds(host.pid) - before) / MORE
        daemon_mb = _own_mb(host.pid)
        names += [f"more{number}" for number in range(MORE)]
        began = time.monotonic()
        list(pool.map(lambda name: host.machine(name).remove(), names))
        removed = time.monotonic() - began
        return MachinesResult(size, up, more, machine_mb, daemon_mb, removed, len(host.leftovers()))


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, including its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _own_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0  # the process has ended
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) / 1024
