"""Inputs of plans of K3s and RKE2, and parts of the rendered plans."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from herder.api.management.manifest import Agent
from herder.api.rke import names
from herder.api.rke.node.plan import Plan
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs, Roles

VERSION = "v1.33.4+rke2r1"
DATA = "/var/lib/rancher/rke2"
CONFIG = "/etc/rancher/rke2/config.yaml.d/50-rancher.yaml"
SERVER = Roles(etcd=True, control_plane=True)
WORKER = Roles(worker=True)


def cluster(version: str = VERSION, **spec: Any) -> ClusterInputs:
    return ClusterInputs(
        namespace="fleet-default",
        name="demo",
        management_name="c-m-abcdefgh",
        version=version,
        spec=spec,
        server_token="SERVER",
        agent_token="AGENT",
        installer_image="rancher/system-agent-installer-",
    )


def worker(**changes: Any) -> MachineInputs:
    inputs: dict[str, Any] = {
        "name": "demo-w1",
        "uid": "33333333-3333-4333-8333-333333333333",
        "roles": WORKER,
        "join_url": "https://10.0.0.11:9345",
        "internal_addresses": ("10.0.0.21",),
    }
    return MachineInputs(**(inputs | changes))


def server(**changes: Any) -> MachineInputs:
    inputs: dict[str, Any] = {
        "name": "demo-s1",
        "uid": "11111111-1111-4111-8111-111111111111",
        "roles": SERVER,
        "is_init": True,
        "internal_addresses": ("10.0.0.11",),
    }
    return MachineInputs(**(inputs | changes))


def config_of(plan: Plan, path: str = CONFIG) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(file for file in plan.files if file.path == path).decoded)
    return found


def variables(plan: Plan) -> dict[str, str]:
    return dict(each.split("=", 1) for each in plan.instructions[0].env)


def with_agent(inputs: ClusterInputs) -> ClusterInputs:
    agent = Agent(server_url="https://herder.example", token="t" * 54, ca_checksum="c", image="agent:1")
    return replace(inputs, agent=agent, annotations={names.CLUSTER_SPEC: "H4sI"})
