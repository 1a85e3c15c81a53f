"""Snapshots of distributions whose servers have the program `herder-snapshots`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from herder.api.rke import operations
from herder.api.rke.names import CLUSTER_SPEC
from herder.api.rke.node.plan import Plan, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.tasks import (
    DeleteSnapshots,
    SaveSnapshot,
    Task,
    file_arguments,
    script_instruction,
)

SAVE_SCRIPT = """set -eu
program=$1 config=$2 name=$3
"$program" save --config "$config" --name "$name" >&2
exec "$program" list --config "$config"
"""
"""Saves a snapshot, and prints all."""

DELETE_SCRIPT = """set -eu
program=$1 config=$2
shift 2
while [ "$#" -ge 2 ]; do
    case $1 in
        true) "$program" delete --config "$config" "$2" --s3 >&2 ;;
        *) "$program" delete --config "$config" "$2" >&2 ;;
    esac
    shift 2
done
"""
"""Deletes files, which follow as pairs: whether it is in S3, and its name."""

ON_DEMAND, SCHEDULED = "on-demand", "etcd-snapshot"
"""First part of the names of snapshots, as in K3s."""
DEFAULT_RETENTION = 5


class Place(NamedTuple):
    """Where a server has the program, and a directory for its configuration and the snapshots."""

    program: str
    directory: str


def program_task(
    cluster: ClusterInputs, machine: MachineInputs, task: Task, place: Place, config: Mapping[str, Any]
) -> Plan | None:
    """The plan of a task that the program carries out; None for other tasks.

    `config` has the parts of the program's configuration that depend on the distribution.
    """
    path = f"{place.directory}{operations.SNAPSHOT_CONFIG}"
    match task:
        case SaveSnapshot():
            name, arguments = operations.SAVE_SNAPSHOT, (SCHEDULED if task.scheduled else ON_DEMAND,)
            instruction = script_instruction(name, SAVE_SCRIPT, task, place.program, path, *arguments)
        case DeleteSnapshots():
            name, files = operations.DELETE_SNAPSHOTS, file_arguments(task)
            instruction = script_instruction(name, DELETE_SCRIPT, task, place.program, path, *files)
        case _:
            return None
    content = {**_config(cluster, machine, task, place), **config}
    written = file(path, json.dumps(content, indent=2, sort_keys=True), dynamic=True, minor=True)
    return Plan(files=(written,), instructions=(instruction,))


def _config(cluster: ClusterInputs, machine: MachineInputs, task: Task, place: Place) -> dict[str, Any]:
    """Snapshots on demand are kept until they are deleted: a schedule must not delete what a user has saved."""
    metadata = {"kubernetesVersion": cluster.version}
    if encoded := cluster.annotations.get(CLUSTER_SPEC):
        metadata["provisioning-cluster-spec"] = encoded
    retention = 0
    if isinstance(task, SaveSnapshot) and task.scheduled:
        retention = (cluster.spec.get("etcd") or {}).get("snapshotRetention") or DEFAULT_RETENTION
    directory = f"{place.directory}/snapshots"
    return {"directory": directory, "node": node_name(machine), "retention": retention, "metadata": metadata}


def node_name(machine: MachineInputs) -> str:
    return machine.node_name or machine.name
