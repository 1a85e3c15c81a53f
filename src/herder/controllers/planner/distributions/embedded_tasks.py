"""Tasks of embedded servers: snapshots and restores. The server is a service, with or without systemd."""

from __future__ import annotations

from msgspec.structs import replace

from herder.api.rke import operations
from herder.api.rke.node.plan import File, Instruction, Plan
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.snapshot_program import (
    Place,
    accepted_arguments,
    check_snapshot,
    config_file,
    delete_snapshots,
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
    script_instruction,
)

CONFIG = "/etc/rancher/herder/snapshots.json"
SERVICE, BOOT = "herder-server", "/etc/herder/boot.d/60-herder-server"

STOP_SCRIPT = """set -eu
service=$1
if [ -d /run/systemd/system ]; then
    systemctl stop "$service" || ! systemctl is-active -q "$service"
elif pid=$(cat "/run/$service.pid" 2> /dev/null) && kill "$pid" 2> /dev/null; then
    while kill -0 "$pid" 2> /dev/null; do sleep 0.1; done
fi
"""
START_SCRIPT = """set -eu
service=$1 boot=$2
if [ -d /run/systemd/system ]; then
    systemctl start "$service"
elif ! pid=$(cat "/run/$service.pid" 2> /dev/null) || ! kill -0 "$pid" 2> /dev/null; then
    setsid "$boot" > /dev/null 2>&1 < /dev/null &
fi
"""
RESTORE_SCRIPT = f"""{STOP_SCRIPT}shift
exec "$@"
"""
UNDO_SCRIPT = f"""[ -e "$2" ] || exit 0
{STOP_SCRIPT}shift 2
exec "$@"
"""
"""Does nothing if there is no restore to undo: the service may run."""
"""Runs the restore while the service is stopped: the machine may have restarted since."""


def place_of(data: str) -> Place:
    return Place(f"{data}/bin/herder-snapshots", CONFIG, f"{data}/server/db/snapshots")


def snapshot_config(cluster: ClusterInputs, machine: MachineInputs, data: str) -> File:
    """`data`: the data directory of the distribution."""
    own = {"distribution": "embedded", "embedded": {"store": f"{data}/server/db/store"}}
    return config_file(cluster, machine, place_of(data), own)


def snapshot_task(cluster: ClusterInputs, machine: MachineInputs, task: Task, plan: Plan, data: str) -> Plan:
    """Render a task. `plan`: the plan of the machine, for tasks that replace it."""
    place, config = place_of(data), snapshot_config(cluster, machine, data)
    match task:
        case SaveSnapshot():
            return save_snapshot(cluster, task, place, config)
        case DeleteSnapshots():
            return delete_snapshots(task, place, config)
        case CheckSnapshot():
            check = check_snapshot(task, place, config)
            return replace(check, files=(*plan.files, *check.files))
        case StopServices():
            return Plan(instructions=(script_instruction(operations.STOP_SERVICES, STOP_SCRIPT, task, SERVICE),))
        case StartServices():
            command = (place.program, "undo", "--config", place.config, *accepted_arguments(task))
            undo = script_instruction(operations.UNDO_RESTORE, UNDO_SCRIPT, task, SERVICE, place.journal, *command)
            start = script_instruction(operations.START_SERVICES, START_SCRIPT, task, SERVICE, BOOT)
            return with_config(replace(plan, instructions=(undo, *plan.instructions, start)), config)
        case RestoreSnapshot():
            installed = tuple(without_start(each, "HERDER") for each in plan.instructions)
            return with_config(Plan(files=plan.files, instructions=(*installed, _restore(task, place))), config)
        case Rejoin():
            return with_commit(plan, task, place, config) if task.commits else plan
        case DeleteStaleNodes():
            return Plan(instructions=(_delete_nodes(task, data),))
    raise UnsupportedTask(f"the embedded distribution has no task {type(task).__name__}")


def _restore(task: RestoreSnapshot, place: Place) -> Instruction:
    command = (place.program, "restore", "--config", place.config, *restore_arguments(task))
    return script_instruction(operations.RESTORE_SNAPSHOT, RESTORE_SCRIPT, task, SERVICE, *command)


def _delete_nodes(task: DeleteStaleNodes, data: str) -> Instruction:
    return Instruction(
        name=operations.DELETE_NODES,
        command=f"{data}/bin/herder-stale-nodes",
        args=tuple(task.machines),
        env=(f"OPERATION={task.mark}",),
        save_output=True,
    )
