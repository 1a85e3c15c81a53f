"""Render the configuration of one machine (`50-rancher.yaml`) and the files that it refers to.

The user's configuration comes first; values that the planner sets override it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.rke import names
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.node.plan import File, file
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs, Reference
from herder.controllers.planner.distributions.rancher.addresses import add_addresses, as_list
from herder.controllers.planner.distributions.rancher.components import CONTROLLER_MANAGER, SCHEDULER, add_arguments
from herder.controllers.planner.distributions.rancher.manifests import authentication_file, has_authentication
from herder.controllers.planner.distributions.rancher.runtime import Runtime, registry
from herder.controllers.planner.distributions.rancher.snapshots import add_snapshots
from herder.controllers.planner.distributions.rancher.user_config import user_config

_FILE_ARGUMENTS = ("audit-policy-file", "cloud-provider-config", "private-registry", "flannel-conf")
"""Arguments whose value is written to a file; the configuration gets the file's path instead."""

_AUTHORIZED_SECRET = "v2prov-secret-authorized-for-cluster"
_SECRET_SCHEME = "secret://"
NOT_DISRUPTIVE = ("server", "cluster-init")
"""Arguments whose change needs no drain: the joined server does not affect workloads."""


@dataclass(frozen=True)
class Config:
    """Rendered arguments and the files that they refer to."""

    values: Mapping[str, Any]
    files: tuple[File, ...]  # their order is part of the stamps; without the configuration file itself


def config_of(cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime, registries: str) -> Config:
    values = user_config(cluster, machine, runtime)
    if directory := (cluster.spec.get("dataDirectories") or {}).get("k8sDistro"):
        values["data-dir"] = directory
    authorities = add_snapshots(values, cluster, machine, runtime)
    _add_role(values, cluster, machine, runtime)
    _add_prime(values, cluster, machine, runtime)
    if has_authentication(cluster, machine):
        webhook = f"authentication-token-webhook-config-file={authentication_file(cluster, runtime)}"
        values["kube-apiserver-arg"] = [*as_list(values.get("kube-apiserver-arg")), webhook]
    _add_tokens(values, cluster, machine)
    add_addresses(values, machine)
    values["node-label"] = _labels(cluster, machine)
    values["node-taint"] = _taints(machine, runtime)
    argument_files = list(_argument_files(values, cluster, runtime, registries))
    kept = {key: value for key, value in values.items() if value is not None and value != "" and value != []}
    return Config(kept, (*authorities, *argument_files))


def references(spec: Mapping[str, Any]) -> list[Reference]:
    configs = [spec.get("machineGlobalConfig") or {}]
    configs += [each.get("config") or {} for each in spec.get("machineSelectorConfig") or ()]
    values = [str(config.get("cloud-provider-config") or "") for config in configs]
    return [found for value in values if (found := _named_secret(value)) is not None]


# --- values that the planner sets -------------------------------------------------------------------------------------


def _add_role(values: dict[str, Any], cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime) -> None:
    roles = machine.roles
    if machine.is_init and runtime.name == "k3s":
        values["cluster-init"] = True
    if not machine.is_init and machine.join_url:
        values["server"] = machine.join_url
    if roles.only_etcd:
        values |= {f"disable-{part}": True for part in ("scheduler", "apiserver", "controller-manager")}
    elif roles.only_control_plane:
        values["disable-etcd"] = True
    if roles.is_server and (default := registry(cluster)):
        values["system-default-registry"] = default
    if roles.control_plane:
        for component in (CONTROLLER_MANAGER, SCHEDULER):
            add_arguments(values, component, cluster, runtime)
    if machine.node_name:
        values["node-name"] = machine.node_name


def _add_prime(values: dict[str, Any], cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime) -> None:
    """Enable Prime. Precedence: user configuration, annotation of the cluster, setting."""
    annotation = cluster.annotations.get(names.RKE2_PRIME)
    wanted = annotation.lower() == "true" if annotation else cluster.prime
    possible = runtime.name == "rke2" and machine.roles.is_server and "prime" not in values
    if possible and wanted and runtime.arguments.supports("prime", cluster.version):
        values["prime"] = True


def _add_tokens(values: dict[str, Any], cluster: ClusterInputs, machine: MachineInputs) -> None:
    if not cluster.server_token:
        return
    if machine.roles.only_worker:
        values["token"] = cluster.agent_token
    else:
        values["token"], values["agent-token"] = cluster.server_token, cluster.agent_token


def _labels(cluster: ClusterInputs, machine: MachineInputs) -> list[str]:
    own = {
        names.MACHINE_UID: machine.uid,
        names.PLAN_CLUSTER_GROUP: CLUSTER.group,
        names.PLAN_CLUSTER_KIND: CLUSTER.kind,
        names.PLAN_CLUSTER_NAME: cluster.name,
        names.PLAN_MACHINE_GROUP: MACHINE.group,
        names.PLAN_MACHINE_KIND: MACHINE.kind,
        names.PLAN_MACHINE_NAME: machine.name,
    }
    return sorted(f"{key}={value}" for key, value in {**machine.node_labels, **own}.items())


def _taints(machine: MachineInputs, runtime: Runtime) -> list[str]:
    """Taint servers without the worker role. K3s charts do not tolerate both taints, so it gets only one."""
    taints = [_taint(each) for each in machine.node_taints if each.get("key")]
    roles = machine.roles
    if not roles.worker and roles.etcd and not (runtime.name == "k3s" and roles.control_plane):
        taints.append("node-role.kubernetes.io/etcd:NoExecute")
    if not roles.worker and roles.control_plane:
        taints.append("node-role.kubernetes.io/control-plane:NoSchedule")
    return sorted(taints)


def _taint(taint: Mapping[str, str]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    effect = f":{taint['effect']}" if taint.get("effect") else ""
    return f"{taint['key']}{value}{effect}"


# --- files of arguments -----------------------------------------------------------------------------------------------


def _argument_files(
    values: dict[str, Any], cluster: ClusterInputs, runtime: Runtime, registries: str
) -> Iterator[File]:
    values["private-registry"] = registries
    for argument in _FILE_ARGUMENTS:
        if argument not in values:
            continue
        content = values[argument]
        secret = _named_secret(str(content)) if argument == "cloud-provider-config" else None
        raw = _secret_content(cluster, secret) if secret else str(content).encode()
        own = argument == "private-registry"
        values[argument] = runtime.registries_file if own else f"{runtime.data(cluster)}/etc/config-files/{argument}"
        yield file(values[argument], raw)


def _named_secret(value: str) -> Reference | None:
    if not value.startswith(_SECRET_SCHEME):
        return None
    namespace, _, name = value.removeprefix(_SECRET_SCHEME).partition(":")
    if not namespace or not name or ":" in name:
        raise ConfigError(f"cloud-provider-config: must look like {_SECRET_SCHEME}namespace:name")
    return Reference("Secret", namespace, name)


def _secret_content(cluster: ClusterInputs, secret: Reference) -> bytes:
    found = cluster.referenced.get(secret)
    if found is None:
        raise ConfigError(f"cloud-provider-config: {secret} does not exist")
    if cluster.name not in found.annotations.get(_AUTHORIZED_SECRET, "").split(","):
        raise ConfigError(
            f"cloud-provider-config: {secret} does not belong to cluster {cluster.name}; its annotation "
            f"{_AUTHORIZED_SECRET} must name it"
        )
    if "credential" not in found.data:
        raise ConfigError(f"cloud-provider-config: {secret} has no key credential")
    return found.data["credential"]
