"""Every benchmark against its peer, in one run on one machine, as ratios.

python -m bench [NAME …]      all by default; results are written to docs/results/bench.md
"""

from __future__ import annotations

import argparse
import datetime
import platform
import shutil
import tempfile
from pathlib import Path

from bench import apiserver

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "bench.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--dry", action="store_true", help="print, but write no results file")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="herder-bench-"))
    try:
        report = apiserver.run(directory, objects=options.objects)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    text = f"# Benchmarks\n\n{today}, {machine()}. Written by `make bench`.\n\n{report}"
    print(text)
    if not options.dry:
        RESULTS.write_text(text)


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
