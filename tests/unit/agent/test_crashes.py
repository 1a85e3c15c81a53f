"""Killed at any moment, and whatever else goes wrong: what was finished is never run again, and all is told at last."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import pytest

from herder.agent.core.events import Action, Conflict, Event, Persist, Record, RequestFailed, Run, Write
from herder.agent.core.plan import checksum
from tests.unit.agent.world import Died, World, plan

Identity = tuple[str, str, str]


class Witness:
    """Sees every action of every life of the daemon."""

    def __init__(self, world: World) -> None:
        self.finished: dict[Identity, Record] = {}
        self.begun: Counter[Identity] = Counter()
        self.current: Identity = ("", "", "")
        world.before = self.before
        world.after = self.after

    def before(self, action: Action) -> None:
        if isinstance(action, Run):
            assert self.current not in self.finished, f"{self.current} was run again"
            self.begun[self.current] += 1

    def after(self, action: Action) -> None:
        if isinstance(action, Persist):
            record = action.record
            self.current = (record.uid, record.revision, record.checksum)
            if record.result is not None:
                self.finished[self.current] = record


class Killer(Witness):
    """Ends the daemon at its nth action, before or after it is carried out."""

    def __init__(self, world: World, at: int, when: str) -> None:
        super().__init__(world)
        self.left, self.when = at, when

    def before(self, action: Action) -> None:
        self._count(self.when == "before")
        super().before(action)

    def after(self, action: Action) -> None:
        super().after(action)
        self._count(self.when == "after")

    def _count(self, counts: bool) -> None:
        self.left -= counts
        if counts and self.left == 0:
            raise Died


def live_on(world: World) -> None:
    """The service manager starts it again."""
    for _ in range(20):
        try:
            world.boot().wait(120)
            return
        except Died:
            continue
    raise AssertionError("it dies all the time")


@pytest.mark.parametrize("exit_code", [0, 1], ids=["succeeds", "fails"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", range(1, 15))
def test_killed_at_any_action_a_plan_is_finished_once_and_told(point: int, when: str, exit_code: int) -> None:
    world = World({"plan": plan("one", "two"), "plan-state": "pending"}, boot=False)
    world.exit_codes["two"] = exit_code
    witness = Killer(world, point, when)
    live_on(world)
    assert world.state == ("failed" if exit_code else "succeeded")
    assert world.said("plan-revision") == "1"
    assert world.said("failure-count") == ("1" if exit_code else "0")
    assert len(witness.finished) == 1
    attempts = {attempt for name, attempt in world.ran}
    assert len(world.ran) <= 2 * len(attempts), "no attempt number is used twice"


class Chaos(Witness):
    """Kills, cuts the line, loses answers and lets others write, by the dice."""

    def __init__(self, world: World, dice: random.Random) -> None:
        super().__init__(world)
        self.world, self.dice, self.active = world, dice, True
        self._write = world.write
        world.write = self.write  # type: ignore[method-assign]

    def write(self, action: Write) -> Event:
        if not self.active:
            return self._write(action)
        match self.dice.randrange(6):
            case 0:
                return RequestFailed("nobody there")
            case 1:
                self.world.edit(someone="else" + str(self.dice.random()))
                return Conflict()
            case 2:
                self._write(action)
                return RequestFailed("the answer was lost")
        return self._write(action)

    def after(self, action: Action) -> None:
        super().after(action)
        if self.active and self.dice.random() < 0.05:
            raise Died


def live_through(world: World, seconds: float) -> None:
    """However often it dies."""
    try:
        world.settle().wait(seconds)
    except Died:
        for _ in range(5):
            with contextlib.suppress(Died):
                world.boot().wait(seconds)
                return


@pytest.mark.parametrize("states", [True, False], ids=["states", "checksums"])
@pytest.mark.parametrize("seed", range(100))
def test_whatever_goes_wrong_the_last_plan_is_applied_when_it_stops(seed: int, states: bool) -> None:
    dice = random.Random(seed)
    world = World(boot=False)
    chaos = Chaos(world, dice)
    if not states:
        world.before = lambda action: None  # a plan may run again after a restart there
    for number in range(5):
        names = [f"{number}-{each}" for each in range(dice.randrange(3))]
        world.exit_codes = {name: 1 for name in names if dice.random() < 0.2}
        ordered = plan(*names, probes=tuple("abc"[: dice.randrange(3)]), note=str(number))
        world.edit(plan=ordered, probe_statuses=None, plan_state="pending" if states else None)
        live_through(world, dice.uniform(0, 40))
    chaos.active, world.exit_codes = False, {}
    world.boot().wait(300)
    if world.state == "failed":  # while things went wrong, and was told now at the latest
        world.edit(plan_state="pending")
        world.wait(300)
    assert world.said("applied-checksum") == checksum(world.said("plan").encode())
    assert world.said("failure-count") == "0"
    assert world.state == ("succeeded" if states else "")
