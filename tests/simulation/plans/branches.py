"""Branching scenarios: the common beginning runs once, and continues in several branches.

Most of the cost of a scenario is the creation of its cluster. At a branching point the whole simulation is forked, and
each process takes its own branch. All random choices follow from the seed and the path of branches, so each scenario
can be run alone: `python -m tests.simulation.plans.branches 17 --path 0110`.

python -m tests.simulation.plans.branches FIRST [LAST]: the scenarios of these seeds, one line of JSON each.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
from dataclasses import asdict, dataclass, field

from herder.sim import loop
from herder.sim.nodes import AGENT_FAULTS
from tests.simulation.plans.provisioning_simulation import ProvisioningSimulation
from tests.simulation.plans.scenarios import HARSH, random_actions, run_scenario

MAX_BRANCHINGS = 6
"""The most points at which a scenario branches in two; there are at least three."""

OTHER_DISTRIBUTIONS = {4: "kubeadm", 9: "embedded"}
"""The distribution of a seed, by its last digit; all others have K3s or RKE2."""

STRICT_EVERY = 10
"""For one of this many seeds, decisions are checked for purity, which costs more than the decisions."""


@dataclass
class Report:
    """The result of one scenario, from its last branching point."""

    seed: int
    path: str
    crashes: int
    events: int
    digest: str  # of all its events, from the beginning
    error: str = ""


@dataclass
class Brancher:
    """At each branching point a new process takes branch 0 to its end; then this process takes branch 1."""

    path: str = ""
    limit: int = MAX_BRANCHINGS
    counted: tuple[int, int] = (0, 0)  # crashes and events that other branches report
    simulation: ProvisioningSimulation = field(init=False)

    def __call__(self) -> str:
        if len(self.path) == self.limit:
            return ""
        process = loop.fork()
        if process:
            _, status = os.waitpid(process, 0)
            if status:
                raise RuntimeError(f"branch {self.path}0 ended without a report, with status {status}")
        world = self.simulation.sim.world
        self.counted = (world.crashes, len(world.log)) if process else self.counted
        self.path += "1" if process else "0"
        return self.path


def run_all(seed: int) -> None:
    """Run every scenario of a seed; each forked process reports its own, and exits."""
    first, brancher = os.getpid(), Brancher()
    brancher.simulation = simulation = ProvisioningSimulation(
        seed,
        HARSH,
        AGENT_FAULTS,
        strict=seed % STRICT_EVERY == 0,
        branch=brancher,
        distribution=OTHER_DISTRIBUTIONS.get(seed % 10, ""),
    )
    error = _run(simulation)
    world, (crashes, events) = simulation.sim.world, brancher.counted
    report = Report(seed, brancher.path, world.crashes - crashes, len(world.log) - events, world.digest(), error)
    os.write(1, f"{json.dumps(asdict(report))}\n".encode())
    if os.getpid() != first:
        os._exit(0)


def run_one(seed: int, path: str) -> tuple[ProvisioningSimulation, str]:
    """Run one scenario again, and return its error."""
    branches = (path[:count] for count in range(1, len(path) + 1))
    simulation = ProvisioningSimulation(
        seed,
        HARSH,
        AGENT_FAULTS,
        branch=lambda: next(branches, ""),
        distribution=OTHER_DISTRIBUTIONS.get(seed % 10, ""),
    )
    return simulation, _run(simulation)


def _run(simulation: ProvisioningSimulation) -> str:
    """Run without garbage collection: its timing depends on all that the process did before, so finalizers would run at
    another moment when the scenario is run alone.
    """
    gc.disable()
    try:
        loop.run(run_scenario(simulation, random_actions))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:3000]
    finally:
        gc.enable()
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--path", help="run only the scenario with this path of branches")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # faults are the point here; their log lines are not
    if options.path is not None:
        simulation, error = run_one(options.first, options.path)
        print("\n".join([*simulation.actions, error or "no violation"]))
        return
    gc.freeze()  # imported modules stay, and are shared with forked processes
    for seed in range(options.first, (options.last or options.first) + 1):
        run_all(seed)


if __name__ == "__main__":
    main()
