"""Compare the CPU cost of two commits, interleaved, so that both see the same state of the machine.

    python -m bench.compare OLD NEW [--rounds 5]

OLD and NEW are checkouts in which `make setup` has run. Each round runs both, in alternating order. The table shows CPU
seconds of the server or manager per operation: median and spread (min to max), and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import race
from bench.__main__ import RESULTS, machine
from bench.apiserver import CRD, Subject
from tests.support.embedded import Embedded

OBJECTS = 4_000
LISTS = 20
RACE = race.Size(1, 100)

Costs = dict[str, float]
"""CPU milliseconds by operation."""


def api_server(checkout: Path, directory: Path) -> Costs:
    server = Embedded(directory, program=program(checkout))
    subject = Subject("herder", server.start, lambda _server: [])
    subject.server = server.start()
    try:
        subject.kubectl("apply", "-f", "-", text=CRD)
        subject.kubectl("wait", "--for=condition=Established", "crd/things.bench.herder.io", "--timeout=60s")
        subject.kubectl("create", "namespace", "bench")
        subject.load("create", n=200, first=900_000)  # warm-up
        steps: dict[str, tuple[int, Callable[[], object]]] = {
            "create": (OBJECTS, lambda: subject.load("create", n=OBJECTS)),
            "update": (OBJECTS, lambda: subject.load("update", n=OBJECTS)),
            f"list of {OBJECTS:,}": (LISTS, lambda: subject.load("list", rounds=LISTS)),
        }
        return {name: cost(server, count, step) for name, (count, step) in steps.items()}
    finally:
        server.stop()


def cost(server: Embedded, count: int, step: Callable[[], object]) -> float:
    assert server.process is not None
    before = race.cpu_seconds(server.process.pid)
    step()
    return (race.cpu_seconds(server.process.pid) - before) / count * 1000


def cluster_api(checkout: Path, directory: Path) -> Costs:
    async def start(engine: race.Engine, place: Path) -> race.Managers:
        return await race.start_ours(engine, place, program(checkout))

    contestant = race.Contestant(str(checkout), start, race.in_memory)
    result = asyncio.run(race.race(contestant, RACE, directory))
    return {f"Machine created, {RACE}": result.up.cpu * 1000, f"Machine deleted, {RACE}": result.down.cpu * 1000}


PROBE = """
import asyncio, json, sys
from pathlib import Path
from bench import growth, planner, tunnel
growth.IDLE_SECONDS = 5.0
directory = Path(sys.argv[1])
machines = asyncio.run(growth.measure(directory, 100))
plans = planner.loop.run(planner.measure(100))
with tunnel.Tunnel("ours", "ours") as both_ends:
    _, server, client = both_ends.throughput(50)
print(json.dumps({
    "Node of one Machine among 100 fails and recovers": machines.news * 1000,
    "planner, 100 machines: report of one machine": plans.report * 1000,
    "planner, 100 machines: new plan of one machine": plans.plan * 1000,
    "planner, 100 machines: each machine until all are up": plans.up * 1000,
    "tunnel, 1 GB over 50 streams, both ends": (server + client) * 1000,
}))
"""
"""Benchmarks that import the code they measure run in their own checkout: names in the code differ between commits."""


def own_benchmarks(checkout: Path, directory: Path) -> Costs:
    command = (checkout / ".venv" / "bin" / "python", "-c", PROBE, directory)
    finished = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True)
    costs: Costs = json.loads(finished.stdout.splitlines()[-1])
    return costs


def program(checkout: Path) -> Path:
    return checkout / ".venv" / "bin" / "herder"


def measure(old: Path, new: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    costs_by_operation: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        sides: dict[Path, Costs] = {}
        for checkout in (old, new) if number % 2 == 0 else (new, old):
            with tempfile.TemporaryDirectory(prefix="herder-compare-") as directory:
                sides[checkout] = api_server(checkout, Path(directory) / "api")
                sides[checkout] |= cluster_api(checkout, Path(directory) / "race")
                sides[checkout] |= own_benchmarks(checkout, Path(directory) / "growth")
        for name in sides[old]:
            costs_by_operation.setdefault(name, []).append((sides[old][name], sides[new][name]))
        print(f"round {number + 1}: {sides}", flush=True)
    return costs_by_operation


def report(costs_by_operation: dict[str, list[tuple[float, float]]], rounds: int, goal: float) -> str:
    lines = [
        f"CPU milliseconds per operation, {rounds} interleaved rounds.",
        "",
        f"| operation | before: median (min–max) | after: median (min–max) | median ratio | goal ≤ {goal} |",
        "|---|---|---|---|---|",
    ]
    for name, pairs in costs_by_operation.items():
        ratio = statistics.median(after / before for before, after in pairs)
        before, after = (spread([pair[side] for pair in pairs]) for side in (0, 1))
        lines.append(f"| {name} | {before} | {after} | {ratio:.3f} | {'reached' if ratio <= goal else 'not reached'} |")
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--goal", type=float, default=1.05, help="largest median ratio that reaches the goal")
    parser.add_argument("--title", default="Cost of a change")
    parser.add_argument("--write", metavar="FILE", help="file in docs/results to write")
    options = parser.parse_args()
    costs_by_operation = measure(options.old.resolve(), options.new.resolve(), options.rounds)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    text = f"# {options.title}\n\n{today}, {machine()}. Written by `python -m bench.compare`.\n\n"
    text += report(costs_by_operation, options.rounds, options.goal)
    print(text)
    if options.write:
        (RESULTS / options.write).write_text(text)


if __name__ == "__main__":
    main()
