"""Provisioned clusters in simulation: edits, lost machines, partitions, agents and managers that crash at any moment.

After the faults stop, each cluster reaches its desired state, and no event violated an invariant. The long runs
(`make soak`) simulate ten thousand seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from herder.sim import loop
from herder.sim.faults import NONE
from herder.sim.nodes import AGENT_FAULTS
from tests.simulation.plans.branches import run_one
from tests.simulation.plans.provisioning_simulation import ProvisioningSimulation
from tests.simulation.plans.scenarios import HARSH, every_action, run_scenario, simulate

SEEDS = range(1, 7)


def test_scenarios_succeed_without_faults() -> None:
    assert loop.run(simulate(2, NONE)).crashes == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_clusters_reach_the_desired_state_without_violations(seed: int) -> None:
    loop.run(simulate(seed, HARSH))


@pytest.mark.parametrize("distribution", ["kubeadm", "embedded"])
def test_other_distributions_reach_the_desired_state_without_violations(distribution: str) -> None:
    loop.run(simulate(6, HARSH, strict=False, distribution=distribution))


def test_every_action_one_after_the_other() -> None:
    loop.run(run_scenario(ProvisioningSimulation(2, HARSH, AGENT_FAULTS), every_action))


def test_the_same_seed_gives_the_same_event_log() -> None:
    first, second = (loop.run(simulate(11, HARSH)) for _ in range(2))
    assert first.log == second.log


def test_a_branch_can_be_run_alone() -> None:
    output = subprocess.check_output([sys.executable, "-m", "tests.simulation.plans.branches", "10"])
    reports = {report["path"]: report for report in map(json.loads, output.splitlines())}
    assert len(reports) == 2 ** len(next(iter(reports)))
    assert len({report["digest"] for report in reports.values()}) == len(reports), "no two are the same"
    path = list(reports)[5]
    simulation, error = run_one(10, path)
    assert (simulation.sim.world.digest(), error) == (reports[path]["digest"], reports[path]["error"])
