"""The rollout planner as tables: replicas of MachineSets, and the replicas they get in the next step.

A set is written "desired/existing/available". Short forms omit equal numbers: "3" is "3/3/3", "3/2" is "3/2/2".
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from herder.api.capi.rollout import (
    Limits,
    Plan,
    SetScale,
    limits_of,
    plan_on_delete,
    plan_resize,
    plan_rolling_update,
    scaled,
)

# --- numbers and percentages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "total", "up", "down"),
    [
        (None, 10, 0, 0),
        (0, 10, 0, 0),
        (7, 3, 7, 7),
        ("0%", 10, 0, 0),
        ("25%", 10, 3, 2),
        ("39%", 10, 4, 3),
        ("100%", 7, 7, 7),
        ("150%", 4, 6, 6),
        ("1%", 1, 1, 0),
    ],
)
def test_numbers_and_percentages_are_scaled(value: int | str | None, total: int, up: int, down: int) -> None:
    assert scaled(value, total, round_up=True) == up
    assert scaled(value, total, round_up=False) == down


@pytest.mark.parametrize("value", ["", "five", "5", "-1%", "5 %", "1.5%"])
def test_other_text_is_rejected_with_the_name_of_the_field(value: str) -> None:
    with pytest.raises(ValueError, match=r"spec\.x: .* is neither a number nor a percentage"):
        scaled(value, 10, round_up=True, field="spec.x")


@pytest.mark.parametrize(
    ("replicas", "rolling", "expected"),
    [
        (3, {}, (1, 0)),
        (3, {"maxSurge": 0, "maxUnavailable": 0}, (0, 1)),
        (3, {"maxSurge": 0, "maxUnavailable": "10%"}, (0, 1)),  # rounds to zero, but the rollout must make progress
        (10, {"maxSurge": "39%", "maxUnavailable": "39%"}, (4, 3)),
        (2, {"maxSurge": 0, "maxUnavailable": 5}, (0, 2)),
        (0, {"maxSurge": 2, "maxUnavailable": 1}, (2, 0)),
    ],
)
def test_limits_of_a_rolling_update(replicas: int, rolling: dict[str, Any], expected: tuple[int, int]) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    limits = limits_of({"replicas": replicas, "rollout": {"strategy": strategy}})
    assert (limits.surge, limits.unavailable) == expected


def test_on_delete_has_neither_surge_nor_slack() -> None:
    limits = limits_of({"replicas": 3, "rollout": {"strategy": {"type": "OnDelete"}}})
    assert (limits.ceiling, limits.minimum) == (3, 3)


# --- rolling update -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "new", "old", "expected"),
    [
        # The new set grows up to the ceiling.
        ("2+2", "0", "", {"new": 2}),
        ("3", "0", "", {"new": 3}),
        ("3+2", "1/0", "3", {"new": 2}),
        ("3+1", "0", "3", {"new": 1}),
        ("1", "0", "0/1", {}),  # a Machine that is being deleted counts
        ("0+2", "2", "", {"new": 0}),
        ("2", "5", "", {"new": 2}),
        # Nothing to do.
        ("10+1", "10", "0", {}),
        ("3", "3", "", {}),
        # Old sets keep the minimum of available Machines.
        ("3+1", "1", "2", {"new": 2}),
        ("3+1", "1", "2/2/1", {"new": 2}),
        ("3+1", "1", "2/3", {}),
        ("6+3-1", "3/0", "2/3 3", {}),
        ("3+1", "1/1/0", "3/3/0", {}),
        ("3-1", "1/1/0", "2/2/0", {}),
        ("3+1", "1/1/0", "3", {}),
        ("3+1", "1", "3", {"old1": 2}),
        ("3+1", "2", "3/4", {"old1": 2}),
        # Broken Machines are removed first, with replicas that were never created.
        ("3+1", "1", "2 1/1/0 2/2/0", {"old2": 0, "old3": 0}),
        ("3+1", "1", "3 1/1/0 2/2/0", {"old1": 2, "old2": 0, "old3": 0}),
        ("3+1", "1", "4/3 2/1/0 5/2/0", {"old1": 2, "old2": 0, "old3": 0}),
        ("3+1", "1", "1 1/1/0 2/2/1", {"old2": 0}),
        ("3+1", "1", "2/1 3/1/0 3/2/1", {"old1": 1, "old2": 0, "old3": 2}),
        # All at once, where the limits allow it.
        ("4-4", "0", "4", {"old1": 0}),
        ("4+4", "0", "4", {"new": 4}),
        ("4+4", "4", "4", {"old1": 0}),
        # Scaled down in the middle: the new set first.
        ("3+1", "5", "1", {"new": 3, "old1": 0}),
        # It was shrinking to one, and two are desired now: they exist, so the ceiling does not apply.
        ("2+1", "1/3", "", {"new": 2}),
        ("2+1", "1/3/1", "", {}),
    ],
)
def test_rolling_update(limits: str, new: str, old: str, expected: dict[str, int]) -> None:
    assert _numbers(plan_rolling_update(_limits(limits), *_scales(new, old))) == expected


@pytest.mark.parametrize(
    ("limits", "new", "old", "expected"),
    [
        ("10+1", "10", "0", {}),  # complete
        ("10", "5", "5/5/4", {"old1": 4}),
        ("10", "5", "5/5/3", {"old1": 4}),
        ("10", "5/5/3", "5/5/4", {}),  # the new ones must become available first: they may be the fault
        ("10", "5", "4/5/4", {}),  # a Machine is still being deleted
        ("10", "4", "3 3/3/2", {"old2": 2}),
    ],
)
def test_a_rollout_that_broken_old_machines_block_continues(
    limits: str, new: str, old: str, expected: dict[str, int]
) -> None:
    assert _numbers(plan_rolling_update(_limits(limits), *_scales(new, old))) == expected


# --- on delete ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "new", "old", "expected"),
    [
        ("4", "0", "3 1", {}),  # no Machine was deleted
        ("4", "0", "3/2 1/0", {"old1": 2, "old2": 0}),  # which makes room for the new set in the next step
        ("4", "0", "2 0", {"new": 2}),
        ("2", "1", "1 2", {"old1": 0, "old2": 1}),
        ("3", "3", "0", {}),
        ("2", "3", "1", {"new": 2, "old1": 0}),
        ("3", "0", "5/3", {"old1": 3}),
        ("2", "0", "5/3", {"old1": 2}),  # first replicas that do not exist, then one more
    ],
)
def test_on_delete(limits: str, new: str, old: str, expected: dict[str, int]) -> None:
    assert _numbers(plan_on_delete(_limits(limits), *_scales(new, old))) == expected


# --- scaling in proportion ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "before", "new", "old", "expected"),
    [
        # One set has all.
        ("5", 3, "3", "", {"new": 5}),
        ("5", 3, "0", "3", {"old1": 5}),
        ("5", 3, "0", "", {"new": 5}),
        ("0", 3, "0", "3", {"old1": 0}),
        ("3", 3, "3", "", {}),
        # Several sets share the difference.
        ("20", 10, "5", "5", {"new": 10, "old1": 10}),
        ("5", 10, "5", "5", {"new": 3, "old1": 2}),
        ("20", 10, "2", "8", {"new": 4, "old1": 16}),
        ("12", 10, "2", "8", {"old1": 10}),
        ("0", 10, "5", "5", {"new": 0, "old1": 0}),
        ("10", 10, "5", "5", {}),
        ("15+3", 12, "6", "6", {"new": 9, "old1": 9}),
        # Machines that are being deleted still count.
        ("12", 10, "5", "5/9", {}),
        # Without a recorded size, the set's current part of the whole counts.
        ("20", None, "2", "8", {"new": 4, "old1": 16}),
    ],
)
def test_scaling_keeps_proportions(
    limits: str, before: int | None, new: str, old: str, expected: dict[str, int]
) -> None:
    current, others = _scales(new, old, before)
    plan = plan_resize(_limits(limits), current, others, rolling=True, saturated=False)
    assert _numbers(plan) == expected


def test_of_equally_large_sets_the_newest_grows_and_the_oldest_shrinks() -> None:
    new, old = _scales("3", "3 3", 9)
    assert _numbers(plan_resize(Limits(10), new, old, rolling=True, saturated=False)) == {"new": 4}
    assert _numbers(plan_resize(Limits(8), new, old, rolling=True, saturated=False)) == {"old1": 2}


def test_a_saturated_new_set_needs_no_old_ones() -> None:
    new, old = _scales("3", "2 1")
    plan = plan_resize(Limits(3), new, old, rolling=True, saturated=True)
    assert _numbers(plan) == {"old1": 0, "old2": 0}


def test_without_a_new_set_the_latest_old_one_is_scaled() -> None:
    _, old = _scales("0", "0 0")
    assert _numbers(plan_resize(Limits(2), None, old, rolling=True, saturated=False)) == {"old2": 2}


def test_on_delete_is_not_scaled_in_proportion() -> None:
    new, old = _scales("3", "3")
    assert not plan_resize(Limits(9), new, old, rolling=False, saturated=False)


# --- limits hold, whatever happens ----------------------------------------------------------------------------------


class _Simulation:
    """Machines that start late or never, break, and are deleted slowly. MachineSets delete any of them."""

    def __init__(self, rng: random.Random, limits: Limits, old_sets: int) -> None:
        self.rng = rng
        self.limits = limits
        self.spec = {"new": 0} | {f"old{number}": 0 for number in range(old_sets)}
        self.machines: dict[str, list[str]] = {name: [] for name in self.spec}  # starting, available, broken, deleting
        for number in range(limits.replicas):
            name = f"old{number % old_sets}"
            self.spec[name] += 1
            self.machines[name].append("available")

    def count(self, *states: str) -> int:
        return sum(state in states for machines in self.machines.values() for state in machines)

    @property
    def total(self) -> int:
        return self.count("starting", "available", "broken", "deleting")

    @property
    def done(self) -> bool:
        return self.machines["new"] == ["available"] * self.limits.replicas and self.total == self.limits.replicas

    def scale(self, name: str) -> SetScale:
        machines = self.machines[name]
        return SetScale(name, self.spec[name], len(machines), machines.count("available"), name)

    def advance(self, breaks: float) -> None:
        for machines in self.machines.values():
            for index, state in enumerate(machines):
                if state == "starting" and self.rng.random() < 0.5:
                    machines[index] = "available"
                elif state in ("starting", "available") and self.rng.random() < breaks:
                    machines[index] = "broken"
                elif state == "broken" and machines is self.machines["new"] and self.rng.random() < 0.3:
                    machines[index] = "starting"  # remediated
                elif state == "deleting" and self.rng.random() < 0.5:
                    machines[index] = "deleted"
            machines[:] = [state for state in machines if state != "deleted"]

    def apply(self, plan: Plan) -> None:
        for name, change in plan.items():
            self.spec[name] = change.replicas
        for name, machines in self.machines.items():
            machines += ["starting"] * (self.spec[name] - len(machines))
            for _ in range(len(machines) - machines.count("deleting") - self.spec[name]):
                self.delete(machines, broken_first="block" in (plan[name].reason if name in plan else ""))

    def delete(self, machines: list[str], *, broken_first: bool) -> None:
        remaining = [index for index, state in enumerate(machines) if state != "deleting"]
        broken = [index for index in remaining if machines[index] != "available"]
        index = self.rng.choice(broken if broken_first and broken else remaining)
        if machines[index] == "available":
            assert self.count("available") - 1 >= self.limits.minimum, "a Machine that was needed was deleted"
        machines[index] = "deleting"


@pytest.mark.parametrize("seed", range(300))
def test_a_rollout_stays_within_its_limits_and_completes(seed: int) -> None:
    rng = random.Random(seed)
    replicas = rng.randint(1, 12)
    surge, unavailable = rng.randint(0, 4), rng.randint(0, min(4, replicas))
    limits = Limits(replicas, surge, unavailable if surge or unavailable else 1)
    simulation = _Simulation(rng, limits, old_sets=rng.randint(1, 3))
    breaks = rng.choice([0.0, 0.0, 0.05, 0.1])
    for step in range(2000):
        new, *old = (simulation.scale(name) for name in simulation.spec)
        simulation.apply(plan_rolling_update(limits, new, old))
        assert simulation.total <= limits.ceiling
        if simulation.done:
            return
        simulation.advance(breaks if step < 200 else 0.0)
    raise AssertionError(f"the rollout does not end: {simulation.spec} {simulation.machines}")


@pytest.mark.parametrize("seed", range(50))
def test_on_delete_stays_within_its_limits_and_replaces_deleted_machines(seed: int) -> None:
    rng = random.Random(seed)
    limits = Limits(rng.randint(1, 8))
    simulation = _Simulation(rng, limits, old_sets=rng.randint(1, 3))
    for _ in range(1000):
        new, *old = (simulation.scale(name) for name in simulation.spec)
        for name, change in plan_on_delete(limits, new, old).items():
            simulation.spec[name] = change.replicas
        machines = simulation.machines["new"]
        machines += ["starting"] * (simulation.spec["new"] - len(machines))  # old sets create none
        assert simulation.total <= limits.ceiling
        if simulation.done:
            return
        victims = [name for name in simulation.spec if name != "new" and "available" in simulation.machines[name]]
        if victims and rng.random() < 0.3:
            chosen = simulation.machines[rng.choice(victims)]
            chosen[chosen.index("available")] = "deleting"
        simulation.advance(0.0)
    raise AssertionError("the rollout does not end")


# --- notation -------------------------------------------------------------------------------------------------------


def _limits(text: str) -> Limits:
    """ "10+2-1": ten desired replicas, at most two more, at most one fewer."""
    rest, _, unavailable = text.partition("-")
    replicas, _, surge = rest.partition("+")
    return Limits(int(replicas), int(surge or 0), int(unavailable or 0))


def _scales(new: str, old: str, before: int | None = None) -> tuple[SetScale, list[SetScale]]:
    others = [_scale(f"old{number}", text, before) for number, text in enumerate(old.split(), start=1)]
    return _scale("new", text=new, before=before, created="9"), others


def _scale(name: str, text: str, before: int | None, created: str = "") -> SetScale:
    desired, *rest = [int(part) for part in text.split("/")]
    existing, *rest = rest or [desired]
    available = rest[0] if rest else existing
    return SetScale(name, desired, existing, available, created or name[-1], before)


def _numbers(plan: Plan) -> dict[str, int]:
    return {name: change.replicas for name, change in plan.items()}
