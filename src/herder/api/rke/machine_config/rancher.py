"""Validation of the arguments of K3s and RKE2."""

from __future__ import annotations

from typing import Any

from herder.api.rke.distributions import K3S, RKE2, Facts
from herder.api.rke.machine_config.arguments import K3S_ARGUMENTS, RKE2_ARGUMENTS, ValueType
from herder.api.rke.machine_config.errors import OptionError

ARGUMENTS = {K3S.name: K3S_ARGUMENTS, RKE2.name: RKE2_ARGUMENTS}

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


def checked_argument(facts: Facts, version: str, field: str, argument: str, value: Any) -> Any:
    arguments = ARGUMENTS[facts.name]
    value_type = arguments.value_type(argument)
    if value_type is None or argument in _ALTERNATIVES:
        advice = _ALTERNATIVES.get(argument, "look for a misspelling, or remove it")
        raise OptionError(field, f"{facts.name} takes no such argument from a cluster's configuration; {advice}")
    if not arguments.supports(argument, version):
        since = ".".join(map(str, arguments.since[argument]))
        raise OptionError(field, f"{facts.name} supports it since {since}; this cluster has {version}")
    if value_type is ValueType.BOOLEAN:
        return _boolean(field, value)
    if isinstance(value, list):
        if value_type is not ValueType.LIST or not all(_is_scalar(each) for each in value):
            raise OptionError(field, f"must be {value_type.value}")
        return list(value)
    if not _is_scalar(value):
        raise OptionError(field, f"must be {value_type.value}")
    return value


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bool, int, float))


def _boolean(field: str, value: Any) -> bool:
    parsed = {"true": True, "false": False}.get(str(value).lower())
    if parsed is None or isinstance(value, (list, dict)):
        raise OptionError(field, "must be true or false")
    return parsed
