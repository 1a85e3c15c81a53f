"""What users set for all machines of a cluster, and for those that a selector chooses, in whatever distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, MachineInputs
from herder.engine.meta.selectors import LabelSelector, label_selector_from_object, validate_label_selector

Checked = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""Of a field's name and what stands in it: its values, or a ConfigError that names the field."""


def selected(cluster: ClusterInputs, machine: MachineInputs, checked: Checked) -> dict[str, Any]:
    """The later over the earlier, key by key."""
    chosen = checked("machineGlobalConfig", cluster.config)
    for index, each in enumerate(cluster.spec.get("machineSelectorConfig") or ()):
        field = f"machineSelectorConfig[{index}]"
        matching = selector(field, each)
        if matching is None or matching.matches(machine.labels):
            chosen |= checked(f"{field}.config", each.get("config") or {})
    return chosen


def selector(field: str, entry: Mapping[str, Any]) -> LabelSelector | None:
    """Of a machineSelectorConfig or machineSelectorFiles; None chooses all machines."""
    chosen = entry.get("machineLabelSelector")
    for wrong in validate_label_selector(chosen, f"{field}.machineLabelSelector"):
        raise ConfigError(str(wrong))
    return label_selector_from_object(chosen)


def install_variables(cluster: ClusterInputs) -> list[Mapping[str, str]]:
    """Of agentEnvVars those that say something: installers see them too."""
    return [each for each in cluster.spec.get("agentEnvVars") or () if each.get("name") and each.get("value")]
