"""What `process` machines cost: a herd that comes and goes at once, and one more beside a small and a large one.

The daemon is asked directly, without Jobs. CPU time is that of the daemon and of all it starts to make a machine.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.unit.machine.host.hosts import Host

HERDS = (10, 100, 200)
MORE = 10


@dataclass
class Herd:
    machines: int
    up: float  # seconds until all run
    more: float  # CPU seconds for one more
    machine_mb: float  # of a machine's own processes, shared pages divided among those who share them
    daemon_mb: float
    gone: float  # seconds until all are removed
    left: int  # processes, directories, addresses


def run(directory: Path) -> str:
    herds = [measure(directory / str(size), size) for size in HERDS]
    lines = [
        "## Process machines",
        "",
        "All asked for at once, then one more at a time, then all removed at once; each runs a bootstrap script.",
        "",
        "| machines | s until all run | CPU for one more, ms | MB each | MB daemon | s until all gone | left over |",
        "|---|---|---|---|---|---|---|",
    ]
    for herd in herds:
        cells = [
            str(herd.machines),
            f"{herd.up:.1f}",
            f"{herd.more * 1000:.0f}",
            f"{herd.machine_mb:.2f}",
            f"{herd.daemon_mb:.0f}",
            f"{herd.gone:.1f}",
            str(herd.left),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def measure(directory: Path, size: int) -> Herd:
    with Host(directory) as host, ThreadPoolExecutor(size) as pool:
        host.start()
        names = [f"m{number}" for number in range(size)]
        began = time.monotonic()
        list(pool.map(lambda name: host.create(name, "#!/bin/sh\ntrue\n"), names))
        up = time.monotonic() - began
        inhabitants = host.inhabitants()
        machine_mb = sum(map(_own_mb, inhabitants)) / size
        before = _cpu_seconds(host.pid)
        for number in range(MORE):
            host.create(f"more{number}")
        more = (_cpu_seconds(host.pid) - before) / MORE
        daemon_mb = _own_mb(host.pid)
        names += [f"more{number}" for number in range(MORE)]
        began = time.monotonic()
        list(pool.map(lambda name: host.machine(name).remove(), names))
        gone = time.monotonic() - began
        return Herd(size, up, more, machine_mb, daemon_mb, gone, len(host.leftovers()))


def _cpu_seconds(pid: int) -> float:
    """With that of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _own_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0  # it has ended
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) / 1024
