"""Mutants of the planner, with one small change each, in simulated deployments.

Whatever they compute, no violation may reach a machine; one that does reveals a gap in the guards.

python -m tests.simulation.plans.mutants.planner_mutants [--count 300] [--seed 1] [--only MODULE …]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from herder.api.guards import GUARDS
from herder.api.guards.members import (
    deny_release_of_join_server,
    keep_etcd_quorum,
    require_etcd_member_removal,
)
from herder.api.guards.plans import check_plan_write
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Refusal
from herder.engine.runtime.executor import Action, Guard
from herder.engine.runtime.view import View
from herder.sim import loop
from herder.sim.nodes import AGENT_FAULTS
from tests.simulation.plans.invariants import Violation
from tests.simulation.plans.provisioning_simulation import ProvisioningSimulation
from tests.simulation.plans.scenarios import HARSH, Scenario, every_action, random_actions, run_scenario
from tools.mutants import Mutant, forget, install, mutants_of

PLANNER = "herder.controllers.planner"
SOURCES = Path(__file__).parents[4] / "src"
EXCLUDED = ("embedded", "kubeadm", "arguments")  # distributions that these runs do not have, and tables
UNIT_TESTS = Path(__file__).parents[3] / "unit" / "controllers" / "planner"
RUNS: tuple[tuple[int, Scenario], ...] = ((2, every_action), (3, random_actions), (8, random_actions))
TIMEOUT = 600.0
CPU_SECONDS = 120

VIOLATION, REFUSED, NOTICED, KILLED, ALIVE = "violation", "refused by guards", "noticed", "killed by tests", "alive"
KERNEL: tuple[Guard, ...] = (
    check_plan_write,
    keep_etcd_quorum,
    deny_release_of_join_server,
    require_etcd_member_removal,
)


def modules() -> list[str]:
    found = sorted((SOURCES / PLANNER.replace(".", "/")).rglob("*.py"))
    names = [".".join(path.relative_to(SOURCES).with_suffix("").parts) for path in found if path.name != "__init__.py"]
    return [name for name in names if name.rpartition(".")[2] not in EXCLUDED]


# --- one mutant -------------------------------------------------------------------------------------------------------


def simulate(refusals: list[str]) -> Object:
    """Simulate clusters with the imported planner, and return the verdict."""
    for seed, scenario in RUNS:
        guards = [recording(guard, refusals) for guard in GUARDS]
        simulation = ProvisioningSimulation(seed, HARSH, AGENT_FAULTS, guards, TIMEOUT, keep_going=True, strict=False)
        try:
            loop.run(run_scenario(simulation, scenario))
        except Violation as violation:
            return {"verdict": VIOLATION, "details": f"{scenario.__name__} {seed}: {violation}"}
        except Exception as error:  # any failure would be noticed
            return {"verdict": NOTICED, "details": f"{scenario.__name__} {seed}: {type(error).__name__}: {error}"[:300]}
        if simulation.failures:
            return {"verdict": NOTICED, "details": f"{scenario.__name__} {seed}: {simulation.failures[0]}"[:300]}
    return {"verdict": ALIVE, "details": ""}


def recording(guard: Guard, refusals: list[str]) -> Guard:
    if guard not in KERNEL:
        return guard

    def recording(action: Action, view: View, before: Sequence[Action]) -> Refusal | None:
        refusal = guard(action, view, before)
        if refusal is not None:
            refusals.append(refusal.guard)
        return refusal

    return recording


def evaluate(mutant: Mutant | None, expected_refusals: frozenset[str] = frozenset()) -> Object:
    """The verdict on a mutant, in its own process. `expected_refusals`: guards that also refuse the correct planner."""

    def simulate_here() -> Object:
        refusals: list[str] = []
        if mutant is not None:
            import_mutated(mutant)
        found = simulate(refusals)
        refused = sorted(set(refusals) - expected_refusals)
        if refused and found["verdict"] != VIOLATION and mutant is not None:
            found = {"verdict": REFUSED, "details": f"{', '.join(refused)}; {found['details']}"}
        return {**found, "refusals": sorted(set(refusals))}

    found = in_own_process(simulate_here)
    if mutant is not None and found["verdict"] == ALIVE:
        found = in_own_process(lambda: run_unit_tests(mutant))
    return found


def import_mutated(mutant: Mutant | None) -> None:
    """Import the planner again, with the mutated module. Simulated machines know the scripts of the original."""
    forget([each for each in sys.modules if each.startswith(f"{PLANNER}.") or each == PLANNER])
    if mutant is not None:
        install(mutant)


def run_unit_tests(mutant: Mutant) -> Object:
    """Whether the planner's unit tests detect what the simulation does not."""
    import pytest

    import_mutated(mutant)
    quiet = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--ignore", str(UNIT_TESTS / "test_simulated.py")]
    failed = pytest.main([*quiet, str(UNIT_TESTS)]) != 0
    return {"verdict": KILLED if failed else ALIVE, "details": ""}


def in_own_process(work: Callable[[], Object]) -> Object:
    """Run in a forked process, which has all modules but the planner in memory. An endless one is noticed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_child(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        output = stream.read()
    os.waitpid(child, 0)
    found: Object = json.loads(output) if output else {"verdict": NOTICED, "details": "it never ends", "refusals": []}
    return found


def _run_child(work: Callable[[], Object], writing: int) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        found = work()
    except BaseException as error:
        found = {"verdict": NOTICED, "details": f"{type(error).__name__}: {error}"[:300], "refusals": []}
    os.write(writing, json.dumps(found).encode())
    os._exit(0)


# --- many mutants -----------------------------------------------------------------------------------------------------


def sample_mutants(count: int, seed: int, only: Sequence[str] = ()) -> list[Mutant]:
    wanted = [name for name in modules() if not only or name.rpartition(".")[2] in only]
    everything = [mutant for name in wanted for mutant in mutants_of(name)]
    return Random(seed).sample(everything, min(count, len(everything)))


def run(
    count: int, seed: int, *, only: Sequence[str] = (), workers: int = 1, report: Callable[[str], Any] = print
) -> str:
    baseline = evaluate(None)
    if baseline["verdict"] != ALIVE:
        raise RuntimeError(f"the unmodified planner: {baseline}")
    expected_refusals = frozenset(baseline["refusals"])
    mutants = sample_mutants(count, seed, only)
    verdicts: Counter[str] = Counter()
    gaps: list[str] = []
    with ThreadPoolExecutor(workers) as pool:
        for mutant, found in zip(
            mutants, pool.map(lambda each: evaluate(each, expected_refusals), mutants), strict=True
        ):
            verdicts[found["verdict"]] += 1
            report(f"  {found['verdict']}: {mutant}: {found['details']}")
            if found["verdict"] == VIOLATION:
                gaps.append(f"{mutant}: {found['details']}")
    if gaps:
        raise RuntimeError("violations reached machines:\n" + "\n".join(gaps))
    summary = ", ".join(f"{verdicts[verdict]} {description}" for verdict, description in _DESCRIPTIONS.items())
    return f"seed {seed}: {len(mutants)} mutants of the planner, no violation reached a machine: {summary}"


_DESCRIPTIONS = {
    REFUSED: "refused by guards",
    NOTICED: "noticed because clusters do not reach the desired state",
    KILLED: "killed by the planner's unit tests",
    ALIVE: "equivalent to the planner in all checks",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="last parts of module names")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    print(
        run(options.count, options.seed, only=options.only, report=lambda line: print(line, flush=True)),
        flush=True,
    )


if __name__ == "__main__":
    main()
