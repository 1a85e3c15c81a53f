"""Stories that part: what came before is lived through once, and what may follow in several ways.

Most of a story's cost is its cluster's birth. Where it may go on in several ways the whole simulation is forked, and
each process takes a way of its own; all that happens by chance follows from the seed and the ways that were taken, so
each story can be lived through alone: `python -m tests.simulation.plans.crossroads 17 --ways 0110`.

python -m tests.simulation.plans.crossroads FIRST [LAST]: the stories of these seeds, a line of JSON for each.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
from dataclasses import asdict, dataclass, field

from herder.sim import loop
from herder.sim.nodes import TROUBLES
from tests.simulation.plans.ranch import Ranch
from tests.simulation.plans.stories import HARSH, changes_of_mind, live

PARTINGS = 6
"""Crossroads at which a story parts in two; it comes to three at least, and to no more than these."""

STRICTLY = 10
"""Of so many seeds one has its decisions checked for being pure, which costs more than they do."""


@dataclass
class Report:
    """Of one story, from where it parted from the last."""

    seed: int
    ways: str
    crashes: int
    events: int
    digest: str  # of all that happened in it, from the beginning
    wrong: str = ""


@dataclass
class Parting:
    """At each crossroads a new process goes to the left, to its story's end; then this one goes to the right."""

    ways: str = ""
    crossroads: int = PARTINGS
    told: tuple[int, int] = (0, 0)  # crashes and events that others report
    ranch: Ranch = field(init=False)

    def __call__(self) -> str:
        if len(self.ways) == self.crossroads:
            return ""
        process = loop.fork()
        if process:
            _, status = os.waitpid(process, 0)
            if status:
                raise RuntimeError(f"the story by {self.ways}0 ended without a report, with status {status}")
        world = self.ranch.sim.world
        self.told = (world.crashes, len(world.log)) if process else self.told
        self.ways += "1" if process else "0"
        return self.ways


def live_all(seed: int) -> None:
    """Every story of a seed; each process that is made on the way reports its own, and ends."""
    first, parting = os.getpid(), Parting()
    parting.ranch = ranch = Ranch(seed, HARSH, TROUBLES, strict=seed % STRICTLY == 0, crossroads=parting)
    wrong = _lived(ranch)
    world, (crashes, events) = ranch.sim.world, parting.told
    report = Report(seed, parting.ways, world.crashes - crashes, len(world.log) - events, world.digest(), wrong)
    os.write(1, f"{json.dumps(asdict(report))}\n".encode())
    if os.getpid() != first:
        os._exit(0)


def live_one(seed: int, ways: str) -> tuple[Ranch, str]:
    """One of them again, and what went wrong in it."""
    taken = (ways[:count] for count in range(1, len(ways) + 1))
    ranch = Ranch(seed, HARSH, TROUBLES, crossroads=lambda: next(taken, ""))
    return ranch, _lived(ranch)


def _lived(ranch: Ranch) -> str:
    """When garbage is found follows from all that a process did before, so it is left: what it holds would then end at
    another moment than in the story that is lived through again."""
    gc.disable()
    try:
        loop.run(live(ranch, changes_of_mind))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:3000]
    finally:
        gc.enable()
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--ways", help="one story of the seed alone")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # faults are the point here; their log lines are not
    if options.ways is not None:
        ranch, wrong = live_one(options.first, options.ways)
        print("\n".join([*ranch.deeds, wrong or "all is well"]))
        return
    gc.freeze()  # what has been imported stays, and is shared with the processes to come
    for seed in range(options.first, (options.last or options.first) + 1):
        live_all(seed)


if __name__ == "__main__":
    main()
