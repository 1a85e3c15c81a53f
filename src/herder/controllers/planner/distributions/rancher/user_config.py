"""Validate and merge the user's arguments for K3s and RKE2. Unknown arguments are rejected, never dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, MachineInputs
from herder.controllers.planner.distributions.rancher.arguments import ValueType
from herder.controllers.planner.distributions.rancher.runtime import Runtime
from herder.controllers.planner.distributions.selector_config import selector

_ALTERNATIVES = {
    "data-dir": "set rkeConfig.dataDirectories.k8sDistro",
    "private-registry": "set rkeConfig.registries",
    "node-label": "set labels of the machine pool, or register the machine with --label",
    "node-taint": "set taints of the machine pool, or register the machine with --taints",
    "node-name": "register the machine with --node-name",
    "node-ip": "register the machine with --internal-address",
    "node-external-ip": "register the machine with --address",
    "advertise-address": "it follows from the machine's addresses",
    "server": "the planner sets it",
    "cluster-init": "the planner sets it for the init node",
    "token": "the manager creates tokens",
    "agent-token": "the manager creates tokens",
    "etcd-disable-snapshots": "set rkeConfig.etcd.disableSnapshots",
    "etcd-snapshot-schedule-cron": "set rkeConfig.etcd.snapshotScheduleCron",
    "etcd-snapshot-retention": "set rkeConfig.etcd.snapshotRetention",
}


def user_config(cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime) -> dict[str, Any]:
    """Merge defaults, machineGlobalConfig and the machineSelectorConfig entries that match, in this order."""
    config: dict[str, Any] = {"cni": "calico"} if runtime.name == "rke2" else {}
    config |= _checked_config("machineGlobalConfig", cluster.config, cluster, runtime)
    for index, each in enumerate(cluster.spec.get("machineSelectorConfig") or ()):
        field = f"machineSelectorConfig[{index}]"
        values = _checked_config(f"{field}.config", each.get("config") or {}, cluster, runtime)
        label_selector = selector(field, each)
        if label_selector is None or label_selector.matches(machine.labels):
            config |= values
    return {key: value for key, value in config.items() if _applies_to(key, machine, runtime)}


def _applies_to(argument: str, machine: MachineInputs, runtime: Runtime) -> bool:
    """Whether the machine gets the argument: server arguments are left out for agents, so one config fits all."""
    return argument in runtime.arguments.agent or machine.roles.is_server


def _checked_config(field: str, config: Mapping[str, Any], cluster: ClusterInputs, runtime: Runtime) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for argument, value in config.items():
        if value is None:
            continue
        checked[argument] = _checked_value(f"{field}.{argument}", argument, value, cluster, runtime)
    return checked


def _checked_value(field: str, argument: str, value: Any, cluster: ClusterInputs, runtime: Runtime) -> Any:
    value_type = runtime.arguments.value_type(argument)
    if value_type is None or argument in _ALTERNATIVES:
        advice = _ALTERNATIVES.get(argument, "look for a misspelling, or remove it")
        raise ConfigError(f"{field}: {runtime.name} takes no such argument from a cluster's configuration; {advice}")
    if not runtime.arguments.supports(argument, cluster.version):
        since = ".".join(map(str, runtime.arguments.since[argument]))
        raise ConfigError(f"{field}: {runtime.name} supports it since {since}; this cluster has {cluster.version}")
    if value_type is ValueType.BOOLEAN:
        return _boolean(field, value)
    if isinstance(value, list):
        if value_type is not ValueType.LIST or not all(_is_scalar(each) for each in value):
            raise ConfigError(f"{field}: must be {value_type.value}")
        return list(value)
    if not _is_scalar(value):
        raise ConfigError(f"{field}: must be {value_type.value}")
    return value


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bool, int, float))


def _boolean(field: str, value: Any) -> bool:
    parsed = {"true": True, "false": False}.get(str(value).lower())
    if parsed is None or isinstance(value, (list, dict)):
        raise ConfigError(f"{field}: must be true or false")
    return parsed
