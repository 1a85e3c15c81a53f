"""What users set for all machines of a cluster, and for those that a selector chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.engine.meta.selectors import label_selector_from_object

Checked = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""Of a field's name and what stands in it: its values, or a ConfigError that names the field."""


def selected(cluster: ClusterInputs, machine: MachineInputs, checked: Checked) -> dict[str, Any]:
    """The later over the earlier, key by key."""
    chosen = checked("machineGlobalConfig", cluster.config)
    for index, each in enumerate(cluster.spec.get("machineSelectorConfig") or ()):
        selector = label_selector_from_object(each.get("machineLabelSelector"))
        if selector is None or selector.matches(machine.labels):
            chosen |= checked(f"machineSelectorConfig[{index}].config", each.get("config") or {})
    return chosen
