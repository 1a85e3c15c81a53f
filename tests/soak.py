"""All long-running tests; results go to docs/results/soak.md with date, machine and seeds.

python -m tests.soak [--only NAME …] [--scale 0.1]
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.__main__ import machine
from herder.sim import loop
from herder.sim.faults import ROUGH, Faults
from herder.sim.world import World
from tests.results import run as run_tests

SAMPLED_CELLS = 400
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "soak.md"


def command(*arguments: str, **environment: str) -> str:
    """Run a program that prints a summary; return its last unindented lines."""
    variables = os.environ | environment
    completed = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, check=False, env=variables
    )
    if completed.returncode:
        raise RuntimeError(f"{arguments[0]} failed:\n{completed.stdout[-2000:]}\n{completed.stderr[-2000:]}")
    return "; ".join([line for line in completed.stdout.splitlines() if line[:1].strip()][-4:])


def kills(scale: float) -> str:
    return command("tests.durability", "--kills", str(int(1000 * scale)), "--power-losses", str(int(1000 * scale)))


def server_kills(scale: float) -> str:
    from tests.durability import server_kills as harness

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(harness.run(int(100 * scale), 1, Path(directory) / "data"))


def simulations(scale: float) -> str:
    from tests.simulation.test_flock import run_scenario

    return simulated(run_scenario, scale)


def rollouts(scenario: str) -> Callable[[float], str]:
    def run(scale: float) -> str:
        from tests.simulation.capi.scenarios import SCENARIOS

        return simulated(SCENARIOS[scenario], scale)

    return run


def simulated(scenario: Callable[[int, Faults], Coroutine[Any, Any, World]], scale: float) -> str:
    count, crashes, events = int(1000 * scale), 0, 0
    for seed in range(1, count + 1):
        try:
            world = loop.run(scenario(seed, ROUGH))
        except Exception as error:
            raise RuntimeError(f"seed {seed}: {error}") from error
        crashes += world.crashes
        events += len(world.log)
    return f"seeds 1–{count}: {crashes} crashes, {events} events, every invariant held"


def plans(scale: float) -> str:
    """Ten times as many runs: more can go wrong between a manager, agents and machines."""
    wanted, scenarios, crashes, events, seed = int(10_000 * scale), 0, 0, 0, 0
    with ThreadPoolExecutor(2) as cores:
        while scenarios < wanted:
            batches = [(first, first + 9) for first in range(seed + 1, seed + 41, 10)]
            seed = batches[-1][1]
            for reports in cores.map(lambda batch: run_branches(*batch), batches):
                scenarios, crashes = scenarios + len(reports), crashes + sum(report["crashes"] for report in reports)
                events += sum(report["events"] for report in reports)
    return f"{scenarios} scenarios of seeds 1–{seed}: {crashes} crashes, {events} events, every invariant held"


def run_branches(first: int, last: int) -> list[dict[str, Any]]:
    """Branching scenarios, in their own process: only a process without other threads can be forked safely."""
    arguments = [sys.executable, "-m", "tests.simulation.plans.branches", str(first), str(last)]
    output = subprocess.run(arguments, stdout=subprocess.PIPE, check=True).stdout
    reports: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    for report in reports:
        if report["error"]:
            raise RuntimeError(f"seed {report['seed']}, path {report['path']}: {report['error']}")
    return reports


def planner_mutants(scale: float) -> str:
    from tests.simulation.plans.mutants.planner_mutants import run

    return run(max(int(300 * scale), 5), 1, report=lambda _line: None)


def crash_matrix(scale: float) -> str:
    """All cells, of which the run with seed 1 writes the page; at a smaller scale, a sample of them."""
    module = "tests.simulation.plans.crash_matrix"
    if scale < 1:
        return command(module, "--sample", str(max(int(SAMPLED_CELLS * scale), 1)))
    return "; ".join(command(module, "--seed", str(seed), *(["--dry-run"] if seed > 1 else [])) for seed in (1, 2, 3))


def guard_mutants(scale: float) -> str:
    sample = () if scale == 1.0 else ("--sample", str(max(int(350 * scale), 5)))
    recorded = ("--record",) if scale == 1.0 else ()
    return command("tests.unit.api.guards.mutants", *sample, *recorded).rpartition("; ")[2]


def operation_mutants(scale: float) -> str:
    recorded = ("--record",) if scale == 1.0 else ()
    count = str(max(int(200 * scale), 5))
    return command("tests.simulation.plans.mutants.operation_mutants", "--count", count, *recorded).rpartition("; ")[2]


def machine_kills(scale: float) -> str:
    seeds = max(int(20 * scale), 1)
    command("pytest", "-q", "tests/interop/machines/test_machines_survive.py", HERDER_SEEDS=str(seeds))
    return f"seeds 1–{seeds}, of each: no instance leaked, none created twice, no machine lost, nothing left behind"


def simulated_operations(_scale: float) -> str:
    folder = "tests/simulation/plans/operations"
    status, cases = run_tests("-q", folder, output=sys.stderr)
    if status:
        raise RuntimeError(f"failed: {[case.name for case in cases if case.outcome != 'passed']}")
    return f"{len(cases)} cases passed, of which `make test` runs a sample"


def operation_scenarios(_scale: float) -> str:
    return passed("tests/provisioning/operations")


def operation_crashes(_scale: float) -> str:
    return passed("tests/interop/clusters/test_operation_crashes.py")


def kubeadm_operation_crashes(_scale: float) -> str:
    return passed("tests/interop/clusters/test_kubeadm_operation_crashes.py")


def passed(path: str) -> str:
    """Run the tests of the soak in a file or a folder. They may skip, and must not fail."""
    status, cases = run_tests("-q", path, "-m", "soak", output=sys.stderr)
    if status:
        raise RuntimeError(f"failed: {[case.name for case in cases if case.outcome not in ('passed', 'skipped')]}")
    seconds = [f"{case.label} {case.seconds:.0f} s" for case in cases if case.outcome == "passed"]
    return f"{len(seconds)} passed, {len(cases) - len(seconds)} skipped: {', '.join(seconds)}"


def manager_upgrade(_scale: float) -> str:
    command("pytest", "-q", "tests/interop/clusters/test_upgrade_kubeadm.py")
    return "a running kubeadm cluster is taken over from the previous release: same plans, same processes"


def tunnels(scale: float) -> str:
    mebibytes, reconnects = max(int(1024 * scale), 64), max(int(1000 * scale), 100)
    variables = {
        "HERDER_TUNNEL_MIB": str(mebibytes),
        "HERDER_TUNNEL_RECONNECTS": str(reconnects),
        "HERDER_TUNNEL_STORM": str(reconnects),
        "HERDER_TUNNEL_QUIET": "130",
    }
    command("pytest", "-q", "tests/interop/gateway/test_remotedialer.py", **variables)
    summary = (
        f"{mebibytes} MiB in each transfer, {reconnects} reconnects in each role one by one and {reconnects} at once"
    )
    return f"{summary}, two lists of streams exchanged"


def fuzzing(scale: float) -> str:
    return command("tests.fuzz", "--inputs", str(int(100_000 * scale)), "--seed", "1")


def invalid_clusters(scale: float) -> str:
    return command(
        "tests.unit.controllers.provisioning.invalid_clusters", "--clusters", str(max(int(20_000 * scale), 100))
    )


def conformance(scale: float) -> str:
    return command("tests.interop.conformance").rpartition("; ")[2]


RUNS: dict[str, tuple[str, Callable[[float], str]]] = {  # the longest first
    "plans": ("Provisioned clusters: edits, lost machines, partitions, agents and managers that die", plans),
    "crash-matrix": ("Each actor crashed in each phase of each operation, on each distribution", crash_matrix),
    "planner-mutants": ("Planners that are wrong, against the guards", planner_mutants),
    "operation-mutants": ("Operations that are wrong, against the guards", operation_mutants),
    "guard-mutants": ("Guards that are wrong, against their unit tests", guard_mutants),
    "changes-of-mind": ("Scaled, paused and edited in mid-rollout", rollouts("changes of mind")),
    "storms": ("Nodes that break, alone and many at once, under a health check", rollouts("storm")),
    "on-delete": ("OnDelete rollouts, the user deleting Machines", rollouts("on delete")),
    "rolling-updates": ("Rolling updates through conflicts, losses and crashes", rollouts("rolling update")),
    "machine-kills": ("Managers, machine programs and host daemons killed while machines come and go", machine_kills),
    "simulated-operations": ("Operations of simulated clusters, on every distribution", simulated_operations),
    "operations": ("Operation scenarios of the upstream suite, on real clusters", operation_scenarios),
    "operation-crashes": ("Actors killed in operations of an embedded cluster, on real processes", operation_crashes),
    "kubeadm-operation-crashes": ("Actors killed in operations of a kubeadm cluster", kubeadm_operation_crashes),
    "manager-upgrade": ("Upgrade of the manager with a running kubeadm cluster", manager_upgrade),
    "conformance": ("API-machinery conformance specs of e2e.test that start no pod", conformance),
    "kills": ("The store killed and its disk cut off, at any moment", kills),
    "fuzzing": ("Bad input of every kind, compared with the real server", fuzzing),
    "invalid-clusters": ("Clusters that are almost right, written, reconciled and planned for", invalid_clusters),
    "server-kills": ("The whole server killed under HTTP traffic", server_kills),
    "tunnels": ("Tunnels with Go's remotedialer at the other end, in both roles", tunnels),
    "simulations": ("The example controller through conflicts, losses and crashes", simulations),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--here", action="store_true", help="in this process, printing nothing but the result")
    options = parser.parse_args()
    if options.here:
        logging.disable(logging.ERROR)  # faults are the point here; their log lines are not
        print(RUNS[options.only[0]][1](options.scale))
        return
    with ThreadPoolExecutor(2) as cores:
        rows = list(cores.map(lambda name: row(name, options.scale), options.only))
    if options.scale == 1.0:
        record(rows)


def record(rows: list[str]) -> None:
    """Replace earlier rows of the same runs."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    by_title = {line.split("|")[1]: line for line in [*lines, *rows] if line.startswith("| ")}
    kept = [by_title[f" {title} "] for title, _ in RUNS.values() if f" {title} " in by_title]
    head = [f"# Soak\n\n{machine()}. Written by `make soak`.\n", "| run | result | time | date |", "|---|---|---|---|"]
    RESULTS.write_text("\n".join([*head, *kept]) + "\n")


def row(name: str, scale: float) -> str:
    """Execute one run in its own process."""
    started = time.monotonic()
    result = command("tests.soak", "--here", "--only", name, "--scale", str(scale))
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    line = f"| {RUNS[name][0]} | {result} | {time.monotonic() - started:.0f} s | {today} |"
    print(line, flush=True)
    return line


if __name__ == "__main__":
    main()
