"""Clusters come up, change in place and survive faults, with agents that answer as real ones do."""

from __future__ import annotations

import json

import pytest

from herder.api.rke import names
from herder.api.rke.plan_secret import PlanSecret
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from tests.controllers.planner.simulated import SERVER_ROLES, WORKER_ROLES, SimulatedCluster

CONFIG = "/etc/rancher/k3s/config.yaml.d/50-rancher.yaml"


def config_of(plan: PlanSecret) -> dict[str, object]:
    assert plan.plan is not None
    found: dict[str, object] = json.loads(next(file for file in plan.plan.files if file.path == CONFIG).decoded)
    return found


async def one_server_and_one_worker() -> None:
    async with SimulatedCluster() as cluster:
        await cluster.make()
        await cluster.add("server", SERVER_ROLES)
        await cluster.add("worker", WORKER_ROLES)
        await cluster.world.until(cluster.is_ready)
        assert cluster.delivered == ["server", "worker"]
        server, worker = await cluster.plan("server"), await cluster.plan("worker")
        assert server.is_init
        assert config_of(server)["cluster-init"] is True
        assert config_of(worker)["server"] == "https://10.0.0.11:6443" == worker.annotations[names.JOINED_TO]
        control_plane = await cluster.control_plane()
        assert control_plane["spec"]["controlPlaneEndpoint"] == {"host": "10.0.0.11", "port": 6443}
        assert control_plane["status"]["initialization"]["controlPlaneInitialized"] is True
        for name in ("server", "worker"):
            told = {each["type"]: each["status"] for each in (await cluster.machine(name))["status"]["conditions"]}
            assert (told["Reconciled"], told["PlanApplied"]) == ("True", "True")


def test_one_server_and_one_worker_become_a_cluster() -> None:
    loop.run(one_server_and_one_worker())
