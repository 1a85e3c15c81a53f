"""Snapshots and restores of kubeadm servers: configuration and tasks.

A server is stopped by its manifests: the kubelet ends a static pod without one, also after a restart of the machine.
The installer refuses to change a stopped server, so no rollout starts one with the data of before a restore.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec.structs import replace

from herder.api.rke import operations
from herder.api.rke.node.plan import File, Plan, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.kubeadm.paths import CONFIG_DIR, STATE_DIR, addresses
from herder.controllers.planner.distributions.snapshot_program import (
    Place,
    accepted_arguments,
    check_snapshot,
    config_file,
    delete_snapshots,
    node_name,
    program_instruction,
    restore_arguments,
    save_snapshot,
    with_commit,
    with_config,
    without_start,
)
from herder.controllers.planner.distributions.tasks import (
    CheckSnapshot,
    DeleteSnapshots,
    DeleteStaleNodes,
    Rejoin,
    RestoreSnapshot,
    SaveSnapshot,
    StartServices,
    StopServices,
    Task,
    UnsupportedTask,
    delete_nodes,
    script_instruction,
    with_deletion,
)

PLACE = Place("/usr/local/bin/herder-snapshots", f"{CONFIG_DIR}/snapshots.json", f"{STATE_DIR}/snapshots")
KUBECTL = ("/usr/local/bin/kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf")

RESERVED_NAMES = f"{CONFIG_DIR}{operations.RESERVED_NAMES}"
"""Names that `csr_approver.py` issues to no other key. Its own records of them may be newer than the restored data."""

RESTORE_SCRIPT = """set -eu
program=$1 config=$2 state=$3
shift 3
"$program" restore --config "$config" "$@" >&2
[ -e "$state/member" ] || touch "$state/restored"
"""
"""Restores a snapshot. On a new server, the installer starts the cluster with the restored data later; another server
stays stopped until then, too."""


def snapshot_config(cluster: ClusterInputs, machine: MachineInputs) -> File:
    address = addresses(machine)[0]
    peer = f"https://{f'[{address}]' if ':' in address else address}:2380"
    own = {"distribution": "kubeadm", "kubeadm": {"name": node_name(machine), "peerUrl": peer}}
    return config_file(cluster, machine, PLACE, own)


def snapshot_task(cluster: ClusterInputs, machine: MachineInputs, task: Task, plan: Plan) -> Plan:
    """Render a task. `plan`: the plan of the machine, for tasks that replace it."""
    config = snapshot_config(cluster, machine)
    match task:
        case SaveSnapshot():
            return save_snapshot(cluster, task, PLACE, config)
        case DeleteSnapshots():
            return delete_snapshots(task, PLACE, config)
        case CheckSnapshot():
            return check_snapshot(task, PLACE, config)
        case StopServices():
            stop = program_instruction(operations.STOP_SERVICES, task, PLACE, "stop")
            return Plan(files=(config, _reserved(task.nodes)), instructions=(stop,))
        case StartServices():
            start = program_instruction(operations.START_SERVICES, task, PLACE, "start", *accepted_arguments(task))
            return with_config(replace(plan, instructions=(start, *plan.instructions)), config)
        case RestoreSnapshot():
            arguments = (PLACE.program, PLACE.config, STATE_DIR, *restore_arguments(task))
            restore = script_instruction(operations.RESTORE_SNAPSHOT, RESTORE_SCRIPT, task, *arguments)
            installed = tuple(without_start(each, "KUBEADM") for each in plan.instructions)
            files = (*plan.files, _reserved(task.nodes))
            return with_config(Plan(files=files, instructions=(*installed, restore)), config)
        case Rejoin(drop_data=True):
            drop = program_instruction(operations.DROP_DATA, task, PLACE, "drop")
            files = (*plan.files, _reserved(task.nodes))
            return with_config(replace(plan, files=files, instructions=(drop, *plan.instructions)), config)
        case Rejoin() if machine.roles.only_worker:
            return plan
        case Rejoin():
            plan = replace(plan, files=(*plan.files, _reserved(task.nodes)))
            plan = with_deletion(plan, task, *KUBECTL)
            return with_commit(plan, task, PLACE, config) if task.commits else plan
        case DeleteStaleNodes():
            return Plan(instructions=(delete_nodes(task, *KUBECTL),))
    raise UnsupportedTask(f"kubeadm has no task {type(task).__name__}")


def _reserved(nodes: Sequence[str]) -> File:
    return file(RESERVED_NAMES, json.dumps([*nodes]), permissions="0600", dynamic=True, minor=True)
