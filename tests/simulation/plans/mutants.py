"""Planners that are wrong, one small change each, in simulated deployments.

Whatever they compute, no violation may reach a machine: what does is a hole in the guards.

python -m tests.simulation.plans.mutants [--count 300] [--seed 1] [--only MODULE …]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import signal
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
from herder.sim.nodes import TROUBLES
from tests.simulation.plans.judge import Violation
from tests.simulation.plans.ranch import Ranch
from tests.simulation.plans.stories import HARSH, Story, changes_of_mind, live, ordeal
from tools.mutants import Mutant, install, mutants_of

PLANNER = "herder.controllers.planner"
SOURCES = Path(__file__).parents[3] / "src"
ELSEWHERE = ("embedded", "kubeadm", "arguments")  # other distributions than the simulated ones, and tables
TABLES = Path(__file__).parents[2] / "unit" / "controllers" / "planner"
LIVES: tuple[tuple[int, Story], ...] = ((2, ordeal), (3, changes_of_mind), (8, changes_of_mind))
PATIENCE = 600.0
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
    return [name for name in names if name.rpartition(".")[2] not in ELSEWHERE]


# --- one planner ----------------------------------------------------------------------------------------------------


def lived(refusals: list[str]) -> Object:
    """What became of a cluster under the planner that is imported now."""
    for seed, story in LIVES:
        guards = [_telling(guard, refusals) for guard in GUARDS]
        ranch = Ranch(seed, HARSH, TROUBLES, guards, PATIENCE, stubborn=True, strict=False)
        try:
            loop.run(live(ranch, story))
        except Violation as broken:
            return {"verdict": VIOLATION, "told": f"{story.__name__} {seed}: {broken}"}
        except Exception as error:  # whatever it is, somebody would have noticed
            return {"verdict": NOTICED, "told": f"{story.__name__} {seed}: {type(error).__name__}: {error}"[:300]}
        if ranch.disappointments:
            return {"verdict": NOTICED, "told": f"{story.__name__} {seed}: {ranch.disappointments[0]}"[:300]}
    return {"verdict": ALIVE, "told": ""}


def _telling(guard: Guard, refusals: list[str]) -> Guard:
    if guard not in KERNEL:
        return guard

    def asked(act: Action, view: View, before: Sequence[Action]) -> Refusal | None:
        refusal = guard(act, view, before)
        if refusal is not None:
            refusals.append(refusal.guard)
        return refusal

    return asked


def judged(mutant: Mutant | None, ordinary: frozenset[str] = frozenset()) -> Object:
    """In a process of its own. `ordinary`: what guards refuse even of the planner that is right."""

    def live_here() -> Object:
        refusals: list[str] = []
        if mutant is not None:
            install(mutant)
        found = lived(refusals)
        refused = sorted(set(refusals) - ordinary)
        if refused and found["verdict"] != VIOLATION and mutant is not None:
            found = {"verdict": REFUSED, "told": f"{', '.join(refused)}; {found['told']}"}
        return {**found, "refusals": sorted(set(refusals))}

    found = in_a_process_of_its_own(live_here)
    if mutant is not None and found["verdict"] == ALIVE:
        found = in_a_process_of_its_own(lambda: tabled(mutant))
    return found


def tabled(mutant: Mutant) -> Object:
    """Whether the planner's own tests see what the stories do not."""
    import pytest

    install(mutant)
    quiet = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--ignore", str(TABLES / "test_simulated.py")]
    failed = pytest.main([*quiet, str(TABLES)]) != 0
    return {"verdict": KILLED if failed else ALIVE, "told": ""}


def in_a_process_of_its_own(work: Callable[[], Object]) -> Object:
    """Forked, so that all but the planner is in memory already. One that never ends is noticed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_the_child(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    found: Object = json.loads(told) if told else {"verdict": NOTICED, "told": "it never ends", "refusals": []}
    return found


def _in_the_child(work: Callable[[], Object], writing: int) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        found = work()
    except BaseException as error:
        found = {"verdict": NOTICED, "told": f"{type(error).__name__}: {error}"[:300], "refusals": []}
    os.write(writing, json.dumps(found).encode())
    os._exit(0)


# --- many -----------------------------------------------------------------------------------------------------------


def chosen(count: int, seed: int, only: Sequence[str] = ()) -> list[Mutant]:
    wanted = [name for name in modules() if not only or name.rpartition(".")[2] in only]
    everything = [mutant for name in wanted for mutant in mutants_of(name)]
    return Random(seed).sample(everything, min(count, len(everything)))


def run(
    count: int, seed: int, *, only: Sequence[str] = (), at_once: int = 1, report_status: Callable[[str], Any] = print
) -> str:
    right = judged(None)
    if right["verdict"] != ALIVE:
        raise RuntimeError(f"the planner as it is: {right}")
    ordinary = frozenset(right["refusals"])
    mutants = chosen(count, seed, only)
    verdicts: Counter[str] = Counter()
    holes: list[str] = []
    with ThreadPoolExecutor(at_once) as workers:
        for mutant, found in zip(mutants, workers.map(lambda each: judged(each, ordinary), mutants), strict=True):
            verdicts[found["verdict"]] += 1
            report_status(f"  {found['verdict']}: {mutant}: {found['told']}")
            if found["verdict"] == VIOLATION:
                holes.append(f"{mutant}: {found['told']}")
    if holes:
        raise RuntimeError("violations reached machines:\n" + "\n".join(holes))
    told = ", ".join(f"{verdicts[verdict]} {word}" for verdict, word in _WORDS.items())
    return f"seed {seed}: {len(mutants)} mutants of the planner, no violation reached a machine: {told}"


_WORDS = {
    REFUSED: "refused by guards",
    NOTICED: "noticed since clusters do not become what was asked for",
    KILLED: "killed by the planner's tables",
    ALIVE: "equal to the planner in all that was looked at",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="last words of module names")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    print(
        run(options.count, options.seed, only=options.only, report_status=lambda line: print(line, flush=True)),
        flush=True,
    )


if __name__ == "__main__":
    main()
