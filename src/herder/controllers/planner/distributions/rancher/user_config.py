"""Validate and merge the user's arguments for K3s and RKE2. Unknown arguments are rejected, never dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herder.api.rke.machine_config.rancher import checked_argument
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.runtime import Runtime
from herder.controllers.planner.distributions.selector_config import selector


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
        checked[argument] = checked_argument(runtime.facts, cluster.version, f"{field}.{argument}", argument, value)
    return checked
