"""Merge machineGlobalConfig and machineSelectorConfig for one machine, in any distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from herder.api.rke.machine_config.errors import ConfigError
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.engine.meta.selectors import LabelSelector, label_selector_from_object, validate_label_selector

Validate = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""Validate the values of a field and return them, or raise a ConfigError that names the field."""


def merge_config(cluster: ClusterInputs, machine: MachineInputs, validate: Validate) -> dict[str, Any]:
    """The machine's configuration; later entries override earlier ones, key by key."""
    config = validate("machineGlobalConfig", cluster.config)
    for index, each in enumerate(cluster.spec.get("machineSelectorConfig") or ()):
        field = f"machineSelectorConfig[{index}]"
        label_selector = selector(field, each)
        if label_selector is None or label_selector.matches(machine.labels):
            config |= validate(f"{field}.config", each.get("config") or {})
    return config


def selector(field: str, entry: Mapping[str, Any]) -> LabelSelector | None:
    """The selector of a machineSelectorConfig or machineSelectorFiles entry; None selects all machines."""
    config = entry.get("machineLabelSelector")
    for wrong in validate_label_selector(config, f"{field}.machineLabelSelector"):
        raise ConfigError(str(wrong))
    return label_selector_from_object(config)


def install_variables(cluster: ClusterInputs) -> list[Mapping[str, str]]:
    """The agentEnvVars with a name and a value, which installers get too."""
    return [each for each in cluster.spec.get("agentEnvVars") or () if each.get("name") and each.get("value")]
