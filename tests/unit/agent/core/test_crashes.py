"""Crashes and faults at every action: a finished plan never runs again, and every result is reported eventually."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import pytest

from herder.agent.core.events import Action, Conflict, Event, Persist, Record, RequestFailed, Run, Write
from herder.agent.core.plan import checksum
from tests.unit.agent.core.simulated_node import AgentKilled, SimulatedNode, plan

Identity = tuple[str, str, str]


class ActionRecorder:
    """Observes every action across restarts of the agent."""

    def __init__(self, node: SimulatedNode) -> None:
        self.finished: dict[Identity, Record] = {}
        self.started: Counter[Identity] = Counter()
        self.current: Identity = ("", "", "")
        node.before = self.before
        node.after = self.after

    def before(self, action: Action) -> None:
        if isinstance(action, Run):
            assert self.current not in self.finished, f"{self.current} was run again"
            self.started[self.current] += 1

    def after(self, action: Action) -> None:
        if isinstance(action, Persist):
            record = action.record
            self.current = (record.uid, record.revision, record.checksum)
            if record.result is not None:
                self.finished[self.current] = record


class Killer(ActionRecorder):
    """Kills the agent at its nth action, before or after the action is executed."""

    def __init__(self, node: SimulatedNode, at: int, when: str) -> None:
        super().__init__(node)
        self.remaining, self.when = at, when

    def before(self, action: Action) -> None:
        self._count(self.when == "before")
        super().before(action)

    def after(self, action: Action) -> None:
        super().after(action)
        self._count(self.when == "after")

    def _count(self, counts: bool) -> None:
        self.remaining -= counts
        if counts and self.remaining == 0:
            raise AgentKilled


def restart_until_idle(node: SimulatedNode) -> None:
    """Restart the agent after each kill, as a service manager does."""
    for _ in range(20):
        try:
            node.boot().wait(120)
            return
        except AgentKilled:
            continue
    raise AssertionError("the agent was killed in every run")


@pytest.mark.parametrize("exit_code", [0, 1], ids=["succeeds", "fails"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", range(1, 15))
def test_a_plan_finishes_once_wherever_the_agent_is_killed(point: int, when: str, exit_code: int) -> None:
    node = SimulatedNode({"plan": plan("one", "two"), "plan-state": "pending"}, boot=False)
    node.exit_codes["two"] = exit_code
    recorder = Killer(node, point, when)
    restart_until_idle(node)
    assert node.state == ("failed" if exit_code else "succeeded")
    assert node.value_of("plan-revision") == "1"
    assert node.value_of("failure-count") == ("1" if exit_code else "0")
    assert len(recorder.finished) == 1
    attempts = {attempt for name, attempt in node.ran}
    assert len(node.ran) <= 2 * len(attempts), "no attempt number is used twice"


class Chaos(ActionRecorder):
    """Kills the agent, drops requests, loses responses and causes conflicts, at random."""

    def __init__(self, node: SimulatedNode, rng: random.Random) -> None:
        super().__init__(node)
        self.node, self.rng, self.active = node, rng, True
        self._write = node.write
        node.write = self.write  # type: ignore[method-assign]

    def write(self, action: Write) -> Event:
        if not self.active:
            return self._write(action)
        match self.rng.randrange(6):
            case 0:
                return RequestFailed("connection refused")
            case 1:
                self.node.edit(someone="else" + str(self.rng.random()))
                return Conflict()
            case 2:
                self._write(action)
                return RequestFailed("the response was lost")
        return self._write(action)

    def after(self, action: Action) -> None:
        super().after(action)
        if self.active and self.rng.random() < 0.05:
            raise AgentKilled


def restart_for(node: SimulatedNode, seconds: float) -> None:
    """Run for this long, with at most five restarts."""
    try:
        node.process_events().wait(seconds)
    except AgentKilled:
        for _ in range(5):
            with contextlib.suppress(AgentKilled):
                node.boot().wait(seconds)
                return


@pytest.mark.parametrize("states", [True, False], ids=["states", "checksums"])
@pytest.mark.parametrize("seed", range(100))
def test_the_last_plan_is_applied_once_faults_stop(seed: int, states: bool) -> None:
    rng = random.Random(seed)
    node = SimulatedNode(boot=False)
    chaos = Chaos(node, rng)
    if not states:
        node.before = lambda action: None  # without plan-state, a plan may run again after a restart
    for number in range(5):
        names = [f"{number}-{each}" for each in range(rng.randrange(3))]
        node.exit_codes = {name: 1 for name in names if rng.random() < 0.2}
        requested = plan(*names, probes=tuple("abc"[: rng.randrange(3)]), note=str(number))
        node.edit(plan=requested, probe_statuses=None, plan_state="pending" if states else None)
        restart_for(node, rng.uniform(0, 40))
    chaos.active, node.exit_codes = False, {}
    node.boot().wait(300)
    if node.state == "failed":  # failed during the faults; request a retry
        node.edit(plan_state="pending")
        node.wait(300)
    assert node.value_of("applied-checksum") == checksum(node.value_of("plan").encode())
    assert node.value_of("failure-count") == "0"
    assert node.state == ("succeeded" if states else "")
