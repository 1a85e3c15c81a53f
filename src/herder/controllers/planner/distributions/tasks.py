"""Tasks: what operations make a machine do besides its plan. The distribution renders the instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from msgspec.structs import replace

from herder.api.rke import operations
from herder.api.rke.node.plan import Instruction, Plan


class Mode(Enum):
    """How a task and the plan of the machine are combined."""

    ADDED = "added"  # the instructions follow those of the plan; everything else stays
    ALONE = "alone"  # the files stay; no other instruction and no probe
    RENDERED = "rendered"  # the distribution renders the whole plan, with the current spec


@dataclass(frozen=True)
class Task:
    """Work on one machine, once. `mark` identifies the attempt and is part of the instructions."""

    mark: str
    mode: ClassVar[Mode] = Mode.ADDED


@dataclass(frozen=True)
class HostTask(Task):
    """A task that is the same on every distribution, because it does not concern Kubernetes."""

    def instruction(self) -> Instruction:
        raise NotImplementedError


@dataclass(frozen=True)
class SaveSnapshot(Task):
    """Save a snapshot of etcd, also to S3 if the cluster has a bucket. Old scheduled snapshots are deleted."""

    scheduled: bool = False


@dataclass(frozen=True)
class RotateCertificates(Task):
    """Issue new certificates, of all services or of the named ones, and restart what uses them."""

    services: Sequence[str] = ()
    reports_authorities: bool = False  # also report which certificate authorities the server has


@dataclass(frozen=True)
class PrepareAuthorities(Task):
    """Create certificate authorities on the server, which the present ones sign too. Nothing uses them yet."""


@dataclass(frozen=True)
class RotateAuthorities(Task):
    """Store the prepared certificate authorities for all servers, restart this one, and check that it has them."""


@dataclass(frozen=True)
class DiscardAuthorities(Task):
    """Delete prepared certificate authorities."""


@dataclass(frozen=True)
class EncryptSecrets(Task):
    """One step of a key rotation, on the leader. It is done already if an interrupted rotation has come further."""

    step: str  # prepare, rotate or reencrypt
    restarts: bool = False  # restart the server first, so that it loads what others have stored


@dataclass(frozen=True)
class RestartServices(Task):
    """Restart Kubernetes on a server, so that it loads its keys."""


@dataclass(frozen=True)
class SnapshotFile:
    """A snapshot to restore."""

    name: str  # of the file
    in_s3: bool = False
    sha256: str = ""  # that the server reported when it had saved it; empty if it is not known


@dataclass(frozen=True)
class DeleteSnapshots(Task):
    """Delete files of snapshots. A file that does not exist is no error."""

    files: Sequence[SnapshotFile]


@dataclass(frozen=True)
class CheckSnapshot(Task):
    """Check that the machine can read the snapshot. Changes nothing."""

    file: SnapshotFile


@dataclass(frozen=True)
class StopServices(Task):
    """Stop Kubernetes and its containers; the data stays."""

    nodes: Sequence[str] = ()
    """Names of the Nodes of all machines. The restored data may lack the records of some."""
    mode = Mode.ALONE


@dataclass(frozen=True)
class StartServices(Task):
    """Apply the plan, and start what `StopServices` stopped: an unchanged plan starts nothing.

    A restore on this machine is undone first, also one that has completed: the cluster continues without it.
    """

    accepted: str = ""
    """ID of an earlier run whose restored data the cluster has. It is not undone."""
    mode = Mode.RENDERED


@dataclass(frozen=True)
class RestoreSnapshot(Task):
    """Replace the data of etcd by a snapshot, as a cluster of one member. On failure the data is as before.

    The server stays stopped, and keeps its old data, until `Rejoin` commits the restore or `StartServices` undoes it.
    """

    file: SnapshotFile
    nodes: Sequence[str] = ()  # as in StopServices
    accepted: str = ""  # as in StartServices
    mode = Mode.RENDERED


@dataclass(frozen=True)
class Rejoin(Task):
    """Start with the plan of the current spec.

    The restored server commits its restore first. Servers that were not restored drop their etcd data.
    """

    drop_data: bool = False
    commits: bool = False
    nodes: Sequence[str] = ()  # as in StopServices
    machines: Sequence[str] = ()  # as in DeleteStaleNodes; empty: Nodes are deleted later
    mode = Mode.RENDERED


@dataclass(frozen=True)
class DeleteStaleNodes(Task):
    """Delete Nodes that a restored snapshot brought back and that belong to none of these Machines."""

    machines: Sequence[str]  # their UIDs


def run_of(task: Task) -> str:
    """ID of the run that the task belongs to."""
    return task.mark.partition("/")[0]


def script_instruction(name: str, script: str, task: Task, *arguments: str) -> Instruction:
    """A fixed script; everything else is an argument. The mark makes the plan of each attempt a new one."""
    return Instruction(
        name=name,
        command="sh",
        args=("-c", script, name, *arguments),
        env=(f"OPERATION={task.mark}",),
        save_output=True,
    )


def file_arguments(task: DeleteSnapshots) -> list[str]:
    """The files of a task as arguments of its script: for each, whether it is in S3, and its name."""
    return [text for each in task.files for text in ("true" if each.in_s3 else "false", each.name)]


DELETE_NODES_SCRIPT = """set -eu
columns='{range .items[*]}{.metadata.name} {.metadata.labels.rke\\.cattle\\.io/machine}{"\\n"}{end}'
live=" $1 "
shift
tries=0
until nodes=$("$@" get nodes -o "jsonpath=$columns"); do
    tries=$((tries + 1))
    [ "$tries" -lt 24 ] || exit 1
    sleep 5
done
printf '%s\n' "$nodes" | while read -r name uid; do
    case $live in *" $uid "*) continue ;; esac
    [ -n "$uid" ] || continue
    "$@" delete node "$name" --ignore-not-found
done
"""
"""The list is read first: the exit code of a pipeline is that of its last command, so an API server that does not
answer would look like a cluster without Nodes."""


def delete_nodes(task: DeleteStaleNodes, *kubectl: str) -> Instruction:
    """`kubectl`: the program and its arguments for the API server of this machine."""
    return script_instruction(operations.DELETE_NODES, DELETE_NODES_SCRIPT, task, " ".join(task.machines), *kubectl)


def with_deletion(plan: Plan, task: Rejoin, *kubectl: str) -> Plan:
    """The plan of the restored server, which deletes Nodes when it has started, if the task says so."""
    if not task.machines:
        return plan
    deletion = delete_nodes(DeleteStaleNodes(task.mark, task.machines), *kubectl)
    return replace(plan, instructions=(*plan.instructions, deletion))


class UnsupportedTask(ValueError):
    """The distribution cannot do this. The message says what to do instead."""


def combined(current: Plan, task: Plan, mode: Mode) -> Plan:
    """The plan with which a machine runs a task. `current`: its plan without tasks."""
    if mode is Mode.RENDERED:
        return task
    files = {each.path: each for each in (*current.files, *task.files)}
    if mode is Mode.ALONE:
        return Plan(files=tuple(files.values()), instructions=task.instructions)
    instructions = (*current.instructions, *task.instructions)
    periodic = {each.name: each for each in (*current.periodic_instructions, *task.periodic_instructions)}
    return replace(
        current,
        files=tuple(files.values()),
        instructions=instructions,
        periodic_instructions=tuple(periodic.values()),
    )
