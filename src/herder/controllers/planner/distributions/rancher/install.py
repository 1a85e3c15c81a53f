"""Install instruction of K3s and RKE2, with the stamps that decide about restart and drain.

RESTART_STAMP and DRAIN_HASH must stay byte-compatible with Rancher's: another value restarts or drains every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from herder.api.rke.node.plan import File, Instruction, PeriodicInstruction
from herder.controllers.planner.distributions.agent_status import status_instruction
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.config import NOT_DISRUPTIVE
from herder.controllers.planner.distributions.rancher.runtime import RKE2, Runtime, registry
from herder.controllers.planner.distributions.rancher.text import indented
from herder.controllers.planner.distributions.selector_config import install_variables

CAPTURE_ADDRESS, ETCD_NAME = "capture-address", "etcd-name"


def install(
    cluster: ClusterInputs,
    machine: MachineInputs,
    runtime: Runtime,
    files: Sequence[File],
    config: Mapping[str, Any],
) -> Instruction:
    image = installer_image(cluster, runtime)
    restart = _stamp(cluster, image, files)
    drain_config = {key: value for key, value in config.items() if key not in NOT_DISRUPTIVE}
    drain = _stamp(cluster, image, files, replacements={runtime.config_file: indented(drain_config)})
    prefix = "WINS_" if machine.windows else ""
    environment = [f"{prefix}RESTART_STAMP={restart}", f"{prefix}DRAIN_HASH={drain}"]
    environment += [_variable(each, machine) for each in install_variables(cluster)]
    environment.append(f"{runtime.variable}_DATA_DIR={'c:' if machine.windows else ''}{runtime.data(cluster)}")
    if machine.windows:
        environment.append(f"INSTALL_RKE2_VERSION={cluster.version}")
    if machine.roles.only_worker:
        environment.append(f"INSTALL_{runtime.variable}_EXEC=agent")
    command = ("powershell.exe", ("-File", "run.ps1")) if machine.windows else ("sh", ("-c", "run.sh"))
    return Instruction(name="install", image=image, env=tuple(environment), command=command[0], args=command[1])


def without_start(instruction: Instruction, runtime: Runtime) -> Instruction:
    """The installation alone: without a stamp, it neither starts nor restarts the service."""
    environment = (each for each in instruction.env if not each.startswith("RESTART_STAMP="))
    return replace(instruction, env=(*environment, f"INSTALL_{runtime.variable}_SKIP_START=true"))


def installer_image(cluster: ClusterInputs, runtime: Runtime) -> str:
    image = f"{cluster.installer_image}{runtime.name}:{cluster.version.replace('+', '-')}"
    host = registry(cluster)
    if not host or image.startswith(host):
        return image
    return f"{host.rstrip('/')}/{image if '/' in image else f'rancher/{image}'}"


def address_instructions(cluster: ClusterInputs, runtime: Runtime) -> tuple[PeriodicInstruction, ...]:
    """Periodic instructions by which an etcd-only machine, which registers no Node, reports its address.

    `grep` makes the command fail until there is an answer.
    """
    data = runtime.data(cluster)
    query = (
        f"curl -f --retry 100 --retry-delay 5 --cacert {data}/server/tls/server-ca.crt "
        f"https://localhost:{runtime.supervisor_port}/db/info | grep 'clientURLs'"
    )
    read_name = f"cat {data}/server/db/etcd/name"
    return (
        PeriodicInstruction(name=CAPTURE_ADDRESS, command="sh", args=("-c", query), period_seconds=600),
        PeriodicInstruction(name=ETCD_NAME, command="sh", args=("-c", read_name), period_seconds=600),
    )


def agent_status_instruction(cluster: ClusterInputs, runtime: Runtime) -> PeriodicInstruction:
    """The kubeconfig is the server's own: users may write the other one elsewhere, or not at all."""
    data = runtime.data(cluster)
    arguments = (f"--kubeconfig={data}/server/cred/admin.kubeconfig",)
    if runtime.name == RKE2.name:
        return status_instruction(f"{data}/bin/kubectl", *arguments)
    return status_instruction("k3s", "kubectl", *arguments, env=(f"{runtime.variable}_DATA_DIR={data}",))


def _stamp(
    cluster: ClusterInputs, image: str, files: Sequence[File], replacements: Mapping[str, str] | None = None
) -> str:
    """Hash of everything that requires a restart. `replacements`: content that counts instead of a file's, by path."""
    contents = replacements or {}
    digest = hashlib.sha256(f"{cluster.spec.get('provisionGeneration') or 0}{image}".encode())
    for each in files:
        if not each.dynamic:
            digest.update(f"{each.path}{contents.get(each.path, each.content)}".encode())
    digest.update(str(cluster.config_generation).encode())
    return digest.hexdigest()


def _variable(variable: Mapping[str, str], machine: MachineInputs) -> str:
    name, value = variable["name"], variable["value"]
    if machine.windows:  # users may write them in PowerShell syntax
        name, value = name.removeprefix("$env:"), value.strip('"')
    return f"{name}={value}"
