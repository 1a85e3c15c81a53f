"""Snapshots of distributions whose servers have the program `herder-snapshots`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from herder.api.rke import operations
from herder.api.rke.encryption import SNAPSHOT_METADATA
from herder.api.rke.names import CLUSTER_SPEC
from herder.api.rke.node.plan import Plan, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.tasks import SaveSnapshot, script_instruction

SAVE_SCRIPT = """set -eu
program=$1 config=$2
"$program" save --config "$config" --name on-demand >&2
exec "$program" list --config "$config"
"""
"""Saves a snapshot, and prints all."""


class Place(NamedTuple):
    """Where a server has the program, and a directory for its configuration and the snapshots."""

    program: str
    directory: str


def save_snapshot(
    cluster: ClusterInputs, machine: MachineInputs, task: SaveSnapshot, place: Place, config: Mapping[str, Any]
) -> Plan:
    """`config`: the parts of the program's configuration that depend on the distribution."""
    path = f"{place.directory}{operations.SNAPSHOT_CONFIG}"
    metadata = {"kubernetesVersion": cluster.version}
    if encoded := cluster.annotations.get(CLUSTER_SPEC):
        metadata["provisioning-cluster-spec"] = encoded
    if cluster.encryption is not None:
        metadata[SNAPSHOT_METADATA] = ",".join(map(str, cluster.encryption.loaded))
    own = {"directory": f"{place.directory}/snapshots", "node": node_name(machine), "retention": 0}
    content = {**own, "metadata": metadata, **config}
    name = operations.SAVE_SNAPSHOT
    instruction = script_instruction(name, SAVE_SCRIPT, task, place.program, path)
    written = file(path, json.dumps(content, indent=2, sort_keys=True), dynamic=True, minor=True)
    return Plan(files=(written,), instructions=(instruction,))


def node_name(machine: MachineInputs) -> str:
    return machine.node_name or machine.name
