"""Run benchmarks and write their results to docs/results/.

python -m bench [NAME …]      default: all benchmarks
"""

from __future__ import annotations

import argparse
import datetime
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import (
    abuse,
    agents,
    apiserver,
    growth,
    local_machines,
    machines,
    node_agent,
    operations,
    planner,
    provisioned,
    provisioning,
    race,
    tunnel,
)

RESULTS = Path(__file__).parents[1] / "docs" / "results"
BENCHMARKS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "apiserver": ("bench.md", apiserver.run),
    "race": ("race.md", race.run),
    "growth": ("growth.md", growth.run),
    "machines": ("machines.md", machines.run),
    "provisioning": ("provisioning.md", provisioning.run),
    "agents": ("agents.md", agents.run),
    "node-agent": ("node-agent.md", node_agent.run),
    "planner": ("planner.md", planner.run),
    "operations": ("operations.md", operations.run),
    "provisioned": ("provisioned.md", provisioned.run),
    "local": ("local-machines.md", local_machines.run),
    "tunnel": ("tunnel.md", tunnel.run),
    "abuse": ("abuse.md", abuse.run),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(BENCHMARKS)}")
    parser.add_argument("--dry", action="store_true", help="print the results, but write no file")
    options = parser.parse_args()
    for name in options.names or BENCHMARKS:
        file, run = BENCHMARKS[name]
        directory = Path(tempfile.mkdtemp(prefix="herder-bench-"))
        try:
            report = run(directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        text = f"# Benchmarks\n\n{today}, {machine()}. Written by `make bench`.\n\n{report}"
        print(text)
        if not options.dry:
            (RESULTS / file).write_text(text)


def machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    cores = Path("/proc/cpuinfo").read_text().count("processor\t")
    return f"{cores} × {model}, Linux {platform.release()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
