"""What users set for the distribution, for all machines or for some. Nothing of it is dropped without a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, MachineInputs
from herder.controllers.planner.distributions.rancher.arguments import Form
from herder.controllers.planner.distributions.rancher.runtime import Runtime
from herder.controllers.planner.distributions.selected import selector

_INSTEAD = {
    "data-dir": "set rkeConfig.dataDirectories.k8sDistro",
    "private-registry": "set rkeConfig.registries",
    "node-label": "set labels of the machine pool, or register the machine with --label",
    "node-taint": "set taints of the machine pool, or register the machine with --taints",
    "node-name": "register the machine with --node-name",
    "node-ip": "register the machine with --internal-address",
    "node-external-ip": "register the machine with --address",
    "advertise-address": "it follows from the machine's addresses",
    "server": "it follows from who can be joined",
    "cluster-init": "it follows from who begins the cluster",
    "token": "tokens are made by the manager",
    "agent-token": "tokens are made by the manager",
    "etcd-disable-snapshots": "set rkeConfig.etcd.disableSnapshots",
    "etcd-snapshot-schedule-cron": "set rkeConfig.etcd.snapshotScheduleCron",
    "etcd-snapshot-retention": "set rkeConfig.etcd.snapshotRetention",
}


def chosen(cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime) -> dict[str, Any]:
    """Defaults, then what holds for all machines, then what holds for those that a selector chooses."""
    config: dict[str, Any] = {"cni": "calico"} if runtime.name == "rke2" else {}
    config |= _checked("machineGlobalConfig", cluster.config, cluster, runtime)
    for index, each in enumerate(cluster.spec.get("machineSelectorConfig") or ()):
        field = f"machineSelectorConfig[{index}]"
        values = _checked(f"{field}.config", each.get("config") or {}, cluster, runtime)
        matching = selector(field, each)
        if matching is None or matching.matches(machine.labels):
            config |= values
    return {key: value for key, value in config.items() if _belongs(key, machine, runtime)}


def _belongs(argument: str, machine: MachineInputs, runtime: Runtime) -> bool:
    """What is for servers alone is not told to agents: that is how one config serves all."""
    return argument in runtime.arguments.agent or machine.roles.is_server


def _checked(field: str, config: Mapping[str, Any], cluster: ClusterInputs, runtime: Runtime) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for argument, value in config.items():
        if value is None:
            continue
        checked[argument] = _value(f"{field}.{argument}", argument, value, cluster, runtime)
    return checked


def _value(field: str, argument: str, value: Any, cluster: ClusterInputs, runtime: Runtime) -> Any:
    form = runtime.arguments.form(argument)
    if form is None or argument in _INSTEAD:
        advice = _INSTEAD.get(argument, "look for a misspelling, or remove it")
        raise ConfigError(f"{field}: {runtime.name} takes no such argument from a cluster's configuration; {advice}")
    if not runtime.arguments.knows(argument, cluster.version):
        since = ".".join(map(str, runtime.arguments.since[argument]))
        raise ConfigError(f"{field}: {runtime.name} knows it from {since} on, and this cluster has {cluster.version}")
    if form is Form.BOOLEAN:
        return _boolean(field, value)
    if isinstance(value, list):
        if form is not Form.LIST or not all(_is_scalar(each) for each in value):
            raise ConfigError(f"{field}: must be {form.value}")
        return list(value)
    if not _is_scalar(value):
        raise ConfigError(f"{field}: must be {form.value}")
    return value


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bool, int, float))


def _boolean(field: str, value: Any) -> bool:
    said = {"true": True, "false": False}.get(str(value).lower())
    if said is None or isinstance(value, (list, dict)):
        raise ConfigError(f"{field}: must be true or false")
    return said
