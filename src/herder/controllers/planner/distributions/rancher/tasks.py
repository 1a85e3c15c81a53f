"""Tasks of K3s and RKE2, by their own commands."""

from __future__ import annotations

from herder.api.rke import operations
from herder.api.rke.node.plan import Instruction
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.runtime import Runtime
from herder.controllers.planner.distributions.tasks import RotateCertificates, SaveSnapshot, Task, UnsupportedTask

SAVE_SCRIPT = """set -u
output=$("$@" 2>&1)
code=$?
printf '%s\\n' "$output"
[ "$code" = 0 ] || exit "$code"
case $output in
    *"Snapshot "*" saved."*) ;;
    *) echo "no snapshot was saved; the log of the service has the cause" >&2; exit 1 ;;
esac
"""
"""Runs the command. It exits with 0 even if it cannot write the file: only its message shows that it has."""

ROTATE_SCRIPT = """set -eu
unit=$1 data=$2
shift 2
systemctl stop "$unit"
"$@"
for name in kube-controller-manager kube-scheduler; do
    rm -f "$data/server/tls/$name/$name.crt" "$data/server/tls/$name/$name.key"
    rm -f "$data/agent/pod-manifests/$name.yaml"
done
systemctl reset-failed "$unit" 2> /dev/null || true
systemctl start "$unit"
"""
"""Runs the command while the service is stopped. Both components create the removed certificates when they start."""

RESTART_SCRIPT = """set -eu
systemctl restart "$1"
"""


def task_instructions(
    cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime, task: Task
) -> tuple[Instruction, ...]:
    if machine.windows and isinstance(task, RotateCertificates):
        return ()
    match task:
        case SaveSnapshot():
            return (_script(operations.SAVE_SNAPSHOT, SAVE_SCRIPT, task, runtime.name, "etcd-snapshot", "save"),)
        case RotateCertificates() if machine.roles.only_worker:
            return (_script(operations.RESTART_SERVICES, RESTART_SCRIPT, task, runtime.agent_unit),)
        case RotateCertificates():
            services = [part for service in task.services for part in ("-s", service)]
            command = (runtime.server_unit, runtime.data(cluster), runtime.name, "certificate", "rotate", *services)
            return (_script(operations.ROTATE_CERTIFICATES, ROTATE_SCRIPT, task, *command),)
    raise UnsupportedTask(f"{runtime.name} has no task {type(task).__name__}")


def _script(name: str, script: str, task: Task, *arguments: str) -> Instruction:
    """A fixed script; everything else is an argument. The mark makes the plan of each attempt a new one."""
    environment = (f"OPERATION={task.mark}",)
    return Instruction(
        name=name, command="sh", args=("-c", script, name, *arguments), env=environment, save_output=True
    )
