"""The instruction that installs the distribution, and the stamps by which it knows whether to restart it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from herder.api.rke.plan import File, Instruction, PeriodicInstruction
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.config import NOT_FOR_DRAINS
from herder.controllers.planner.distributions.rancher.runtime import Runtime, registry
from herder.controllers.planner.distributions.rancher.text import indented
from herder.controllers.planner.distributions.selected import install_variables

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
    undisturbing = {key: value for key, value in config.items() if key not in NOT_FOR_DRAINS}
    drain = _stamp(cluster, image, files, instead={runtime.config_file: indented(undisturbing)})
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


def installer_image(cluster: ClusterInputs, runtime: Runtime) -> str:
    image = f"{cluster.installer_image}{runtime.name}:{cluster.version.replace('+', '-')}"
    host = registry(cluster)
    if not host or image.startswith(host):
        return image
    return f"{host.rstrip('/')}/{image if '/' in image else f'rancher/{image}'}"


def find_address(cluster: ClusterInputs, runtime: Runtime) -> tuple[PeriodicInstruction, ...]:
    """Of a machine that runs etcd alone: no Node comes of it, so it says itself under which address it is joined. The
    pattern makes the command fail while there is no answer yet."""
    data = runtime.data(cluster)
    asked = (
        f"curl -f --retry 100 --retry-delay 5 --cacert {data}/server/tls/server-ca.crt "
        f"https://localhost:{runtime.supervisor_port}/db/info | grep 'clientURLs'"
    )
    named = f"cat {data}/server/db/etcd/name"
    return (
        PeriodicInstruction(name=CAPTURE_ADDRESS, command="sh", args=("-c", asked), period_seconds=600),
        PeriodicInstruction(name=ETCD_NAME, command="sh", args=("-c", named), period_seconds=600),
    )


def _stamp(cluster: ClusterInputs, image: str, files: Sequence[File], instead: Mapping[str, str] | None = None) -> str:
    """Of all that a restart follows from. `instead`: what some files count as, by their path."""
    replaced = instead or {}
    digest = hashlib.sha256(f"{cluster.spec.get('provisionGeneration') or 0}{image}".encode())
    for each in files:
        if not each.dynamic:
            digest.update(f"{each.path}{replaced.get(each.path, each.content)}".encode())
    digest.update(str(cluster.config_generation).encode())
    return digest.hexdigest()


def _variable(variable: Mapping[str, str], machine: MachineInputs) -> str:
    name, value = variable["name"], variable["value"]
    if machine.windows:  # some write them as PowerShell does
        name, value = name.removeprefix("$env:"), value.strip('"')
    return f"{name}={value}"
