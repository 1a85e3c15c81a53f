"""Snapshots of distributions whose servers have the program `herder-snapshots`: its configuration, and its commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from herder.api.rke import operations
from herder.api.rke.etcd import encryption
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import CLUSTER_SPEC
from herder.api.rke.node.plan import File, Instruction, Plan, file
from herder.controllers.planner.distributions import s3
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.tasks import (
    CheckSnapshot,
    DeleteSnapshots,
    Rejoin,
    RestoreSnapshot,
    SaveSnapshot,
    SnapshotFile,
    StartServices,
    Task,
    file_arguments,
    run_of,
    script_instruction,
)

DEFAULT_RETENTION = 5  # as in K3s
SAVE_SCRIPT = """set -eu
program=$1 config=$2 metadata=$3 name=$4
"$program" save --config "$config" --name "$name" --metadata "$metadata" >&2
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
"""First part of the names of snapshots, as in K3s; the retention counts each separately."""


class Place(NamedTuple):
    """Where a server has the program, its configuration, and the snapshots."""

    program: str
    config: str
    snapshots: str

    @property
    def journal(self) -> str:
        """Exists until a restore is finished, committed or undone."""
        return f"{self.snapshots}/.restore/journal.json"

    @property
    def metadata(self) -> str:
        return f"{self.config.rpartition('/')[0]}{operations.SNAPSHOT_METADATA}"


def config_file(cluster: ClusterInputs, machine: MachineInputs, place: Place, own: Mapping[str, Any]) -> File:
    """The configuration of the program. Nothing restarts when it changes. `own`: what depends on the distribution."""
    etcd: Mapping[str, Any] = cluster.spec.get("etcd") or {}
    config: dict[str, Any] = {
        "directory": place.snapshots,
        "node": node_name(machine),
        "retention": int(etcd.get("snapshotRetention") or DEFAULT_RETENTION),
        **own,
    }
    if etcd.get("disableSnapshots"):
        config["disabled"] = True
    if storage := _storage(cluster):
        config["s3"] = storage
    content = json.dumps(config, indent=2, sort_keys=True)
    return file(place.config, content, permissions="0600", dynamic=True, minor=True)


def with_config(plan: Plan, config: File) -> Plan:
    """The plan with the configuration of the program, which not every plan has."""
    return replace(plan, files=(*(each for each in plan.files if each.path != config.path), config))


def config_files(cluster: ClusterInputs, config: File) -> tuple[File, ...]:
    """Those of a plan without a task. Only credentials of S3 must follow the spec at once.

    Without S3 the tasks bring the file, so that the plans of clusters that never save a snapshot stay as they are.
    """
    return (config,) if s3.storage_of(cluster) is not None else ()


def _storage(cluster: ClusterInputs) -> dict[str, Any]:
    found = s3.storage_of(cluster)
    if found is None:
        return {}
    if not found.bucket:
        raise ConfigError(f"{s3.FIELD}.bucket: not set; set it, or defaultBucket in the cloud credential")
    if not found.access_key or not found.secret_key:
        raise ConfigError(f"{s3.FIELD}.cloudCredentialName: must name a Secret with accessKey and secretKey")
    values = {
        "endpoint": found.endpoint,
        "endpointCA": found.endpoint_ca,
        "skipSSLVerify": found.skip_ssl_verify,
        "bucket": found.bucket,
        "region": found.region,
        "folder": found.folder,
        "accessKey": found.access_key,
        "secretKey": found.secret_key,
        "retention": found.retention,
    }
    return {name: value for name, value in values.items() if value}


# --- commands ---------------------------------------------------------------------------------------------------------


def save_snapshot(cluster: ClusterInputs, task: SaveSnapshot, place: Place, config: File) -> Plan:
    """Save a snapshot with the current configuration: the rollout of a change waits for the operation."""
    metadata = {"kubernetesVersion": cluster.version}
    if encoded := cluster.annotations.get(CLUSTER_SPEC):
        metadata["provisioning-cluster-spec"] = encoded
    if cluster.encryption is not None:
        metadata[encryption.SNAPSHOT_METADATA] = ",".join(map(str, cluster.encryption.loaded))
    described = file(place.metadata, json.dumps(metadata, sort_keys=True), dynamic=True, minor=True)
    name = SCHEDULED if task.scheduled else ON_DEMAND
    arguments = (place.program, place.config, place.metadata, name)
    instruction = script_instruction(operations.SAVE_SNAPSHOT, SAVE_SCRIPT, task, *arguments)
    return Plan(files=(config, described), instructions=(instruction,))


def delete_snapshots(task: DeleteSnapshots, place: Place, config: File) -> Plan:
    files = file_arguments(task)
    name = operations.DELETE_SNAPSHOTS
    instruction = script_instruction(name, DELETE_SCRIPT, task, place.program, place.config, *files)
    return Plan(files=(config,), instructions=(instruction,))


def check_snapshot(task: CheckSnapshot, place: Place, config: File) -> Plan:
    instruction = program_instruction(operations.CHECK_SNAPSHOT, task, place, "check", *snapshot_arguments(task.file))
    return Plan(files=(config,), instructions=(instruction,))


def program_instruction(name: str, task: Task, place: Place, command: str, *arguments: str) -> Instruction:
    return Instruction(
        name=name,
        command=place.program,
        args=(command, "--config", place.config, *arguments),
        env=(f"OPERATION={task.mark}",),
        save_output=True,
    )


def snapshot_arguments(snapshot: SnapshotFile) -> tuple[str, ...]:
    """The hash that the manager has recorded: the bucket could return another one with another file."""
    expected = (f"--sha256={snapshot.sha256}",) if snapshot.sha256 else ()
    return (snapshot.name, *expected, *(("--s3",) if snapshot.in_s3 else ()))


def restore_arguments(task: RestoreSnapshot) -> tuple[str, ...]:
    return (f"--run={run_of(task)}", *accepted_arguments(task), *snapshot_arguments(task.file))


def accepted_arguments(task: StartServices | RestoreSnapshot) -> tuple[str, ...]:
    return (f"--accepted={task.accepted}",) if task.accepted else ()


def with_commit(plan: Plan, task: Rejoin, place: Place, config: File) -> Plan:
    """The plan of the restored server, which commits the restore before it starts."""
    commit = program_instruction(operations.COMMIT_RESTORE, task, place, "commit", f"--run={run_of(task)}")
    return with_config(replace(plan, instructions=(commit, *plan.instructions)), config)


def without_start(instruction: Instruction, runtime: str) -> Instruction:
    """The installation alone: without a stamp, it neither starts nor restarts anything."""
    environment = (each for each in instruction.env if not each.startswith("RESTART_STAMP="))
    return replace(instruction, env=(*environment, f"INSTALL_{runtime}_SKIP_START=true"))


def node_name(machine: MachineInputs) -> str:
    return machine.node_name or machine.name
