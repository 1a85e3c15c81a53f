"""Embedded distribution (`+herderN`): Herder's own API server on one server, with nodes that run no Pods.

Its programs are in `herder.embedded`; machines install them from the gateway, which is also an image registry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from herder.api.management.manifest import as_yaml, manifest
from herder.api.rke.distributions import EMBEDDED
from herder.api.rke.machine_config.embedded import checked_option, checked_taint
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.names import MACHINE_UID, TAINTS
from herder.api.rke.node.join_token import node_token
from herder.api.rke.node.plan import File, HttpGet, Instruction, Plan, Probe, file
from herder.api.rke.roles import unsupported_roles
from herder.controllers.planner.distributions import s3, selected_files
from herder.controllers.planner.distributions.certificate_report import embedded_expiry
from herder.controllers.planner.distributions.embedded_rotation import key_files, rotation_task
from herder.controllers.planner.distributions.embedded_tasks import snapshot_config, snapshot_task
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs, Reference, Roles
from herder.controllers.planner.distributions.selector_config import install_variables, merge_config
from herder.controllers.planner.distributions.snapshot_program import config_files
from herder.controllers.planner.distributions.tasks import CheckSnapshot, Mode, Task

REPOSITORY = "herder/system-agent-installer-herder"
API_PORT, NODE_PORT = 6443, 10248
CONFIG = "/etc/rancher/herder/config.yaml.d/50-rancher.yaml"
REGISTRIES, MANAGER_AUTHORITY = "/etc/rancher/agent/registries.yaml", "/etc/rancher/agent/manager-ca.crt"
DATA = "/var/lib/rancher/herder"
JOIN_PROTOCOL = "node-tokens-2"
"""Part of the restart stamp: servers must support per-machine tokens before workers present them."""


class Embedded:
    """Renders plans of the embedded distribution."""

    name = EMBEDDED.name
    revision = 5
    supervisor_port = API_PORT
    api_port = API_PORT
    names_servers = False
    runs_agent_pod = False
    schedules_snapshots = False
    authorities: Sequence[str] = ("ca",)
    manages_keys = True

    def refusal(self, cluster: ClusterInputs, roles: Roles) -> str:
        return unsupported_roles(EMBEDDED.build, etcd=roles.etcd, control_plane=roles.control_plane)

    def references(self, spec: Mapping[str, Any], namespace: str) -> Sequence[Reference]:
        return [*s3.references(spec, namespace), *selected_files.references(spec, namespace)]

    def task(self, cluster: ClusterInputs, machine: MachineInputs, task: Task) -> Plan:
        directory = _data_directory(cluster)
        rotation = rotation_task(cluster, machine, task, directory)
        if rotation is not None:
            return rotation
        plan = self.render(cluster, machine) if task.mode is Mode.RENDERED else Plan()
        if isinstance(task, CheckSnapshot):  # needs the keys of the snapshot; the server does not read them again
            plan = Plan(files=tuple(key_files(cluster, directory)))
        return snapshot_task(cluster, machine, task, plan, directory)

    def keys_problem(self, spec: Mapping[str, Any]) -> str:
        return ""

    def unit(self, roles: Roles) -> str:
        return "herder-server" if roles.is_server else "herder-node"

    def owns_file(self, cluster: ClusterInputs, path: str) -> bool:
        return path in (REGISTRIES, MANAGER_AUTHORITY)

    def member_removal(self) -> str:
        return EMBEDDED.member_removal

    def drain_hash(self, plan: Plan) -> str:
        return next(
            (_environment_value(each.env, "DRAIN_HASH") for each in plan.instructions if each.name == "install"), ""
        )

    def render(self, cluster: ClusterInputs, machine: MachineInputs) -> Plan:
        if machine.windows:
            raise ConfigError("machinePools: the embedded distribution has no Windows nodes")
        if machine.roles.is_server and not machine.is_init:
            raise ConfigError(
                "machinePools: the embedded distribution supports a single server; keep one machine with etcdRole and "
                "controlPlaneRole"
            )
        if not (machine.internal_addresses or machine.external_addresses):
            raise ConfigError(
                f"machine {machine.name}: has no address; delete it and register it again with --internal-address"
            )
        files = (*_files(cluster, machine), *selected_files.selected_files(cluster, machine))
        return Plan(
            files=files,
            instructions=(_install(cluster, machine, files),),
            periodic_instructions=(embedded_expiry(_data_directory(cluster), is_server=machine.roles.is_server),),
            probes=_probes(cluster, machine),
        )


# --- files ------------------------------------------------------------------------------------------------------------


def _files(cluster: ClusterInputs, machine: MachineInputs) -> Iterator[File]:
    if cluster.server_certificates:
        registries = {
            # The scheme is explicit because agents use plain HTTP for registries on loopback.
            "mirrors": {_manager_host(cluster): {"endpoint": [f"https://{_manager_host(cluster)}"]}},
            "configs": {_manager_host(cluster): {"tls": {"ca_file": MANAGER_AUTHORITY}}},
        }
        yield file(MANAGER_AUTHORITY, cluster.server_certificates, dynamic=True)
        yield file(REGISTRIES, json.dumps(registries), dynamic=True)
    yield file(CONFIG, json.dumps(_config(cluster, machine), indent=2, sort_keys=True))
    authority, directory = cluster.authorities["ca"], _data_directory(cluster)
    if machine.roles.is_server:
        yield file(f"{directory}/server/tls/ca.crt", authority.certificate)
        yield file(f"{directory}/server/tls/ca.key", authority.key)
        yield from key_files(cluster, directory)
        if cluster.agent is not None:
            objects = as_yaml(manifest(cluster.agent, scheduled=False))
            yield file(f"{directory}/server/manifests/rancher/cluster-agent.yaml", objects, dynamic=True, minor=True)
        addons = "" if cluster.is_pre_bootstrap else cluster.spec.get("additionalManifest") or ""
        yield file(f"{directory}/server/manifests/rancher/addons.yaml", addons, dynamic=True)
        yield from config_files(cluster, snapshot_config(cluster, machine, directory))
    else:
        yield file(f"{directory}/agent/server-ca.crt", authority.certificate)


def _config(cluster: ClusterInputs, machine: MachineInputs) -> dict[str, Any]:
    config = merge_config(cluster, machine, _checked_config)
    labels = [f"{key}={value}" for key, value in sorted({**machine.node_labels, MACHINE_UID: machine.uid}.items())]
    taints = [_taint(machine.name, each) for each in machine.node_taints]
    config["node-label"] = [*config.get("node-label", ()), *labels]
    config["node-taint"] = [*config.get("node-taint", ()), *taints]
    config["node-ip"] = list(machine.internal_addresses or machine.external_addresses)
    config["node-external-ip"] = list(machine.external_addresses) if machine.internal_addresses else []
    config["node-name"] = machine.node_name
    config["data-dir"] = _data_directory(cluster)
    if machine.roles.is_server:
        config["token"], config["agent-token"] = cluster.server_token, cluster.agent_token
    else:
        config["token"], config["server"] = node_token(cluster.server_token, machine.uid), machine.join_url
    return {key: value for key, value in config.items() if value}


def _checked_config(field: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: checked_option(f"{field}.{key}", key, given) for key, given in config.items() if given is not None}


def _taint(machine: str, taint: Mapping[str, str]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    written = f"{taint.get('key', '')}{value}:{taint.get('effect', '')}"
    return checked_taint(f"machine {machine}, annotation {TAINTS}", written)


# --- instruction and probes -------------------------------------------------------------------------------------------


def _install(cluster: ClusterInputs, machine: MachineInputs, files: Sequence[File]) -> Instruction:
    image = f"{_manager_host(cluster)}/{REPOSITORY}:{cluster.version.replace('+', '-')}"
    stamp = _stamp(cluster, image, files)
    environment = [
        f"RESTART_STAMP={stamp}",
        f"DRAIN_HASH={stamp}",
        *(f"{each['name']}={each['value']}" for each in install_variables(cluster)),
        f"HERDER_DATA_DIR={_data_directory(cluster)}",
        *(() if machine.roles.is_server else ("INSTALL_HERDER_EXEC=agent",)),
    ]
    return Instruction(name="install", image=image, command="sh", args=("-c", "run.sh"), env=tuple(environment))


def _stamp(cluster: ClusterInputs, image: str, files: Sequence[File]) -> str:
    content = "".join(each.path + each.content for each in files if not each.dynamic)
    generation = cluster.spec.get("provisionGeneration") or 0
    return hashlib.sha256(
        f"{JOIN_PROTOCOL}{generation}{image}{content}{cluster.config_generation}".encode()
    ).hexdigest()


def _probes(cluster: ClusterInputs, machine: MachineInputs) -> dict[str, Probe]:
    """Probe the machine's own address: machines on one host may share its loopback."""
    address = _bracketed((machine.internal_addresses or machine.external_addresses)[0])
    probes = {"kubelet": _probe(HttpGet(url=f"http://{address}:{NODE_PORT}/healthz"))}
    if machine.roles.is_server:
        authority = f"{_data_directory(cluster)}/server/tls/ca.crt"
        probes["kube-apiserver"] = _probe(HttpGet(url=f"https://{address}:{API_PORT}/readyz", ca_cert=authority))
    return probes


def _probe(get: HttpGet) -> Probe:
    return Probe(initial_delay_seconds=1, timeout_seconds=5, success_threshold=1, failure_threshold=2, http_get=get)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _manager_host(cluster: ClusterInputs) -> str:
    if cluster.agent is None or not cluster.agent.server_url:
        raise ConfigError("setting server-url: not set, so machines cannot install; set it to the URL of this server")
    return urlsplit(cluster.agent.server_url).netloc


def _data_directory(cluster: ClusterInputs) -> str:
    return str((cluster.spec.get("dataDirectories") or {}).get("k8sDistro") or DATA)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _environment_value(environment: Sequence[str], name: str) -> str:
    return next((each.partition("=")[2] for each in environment if each.startswith(f"{name}=")), "")
