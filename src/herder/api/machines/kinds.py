"""Kinds of the generic machine provider, and the naming of a driver's kinds."""

from __future__ import annotations

from dataclasses import dataclass

from herder.engine.meta.kinds import Kind

MANAGEMENT_GROUP = "management.cattle.io"
NODE_DRIVER = Kind(MANAGEMENT_GROUP, "v3", "NodeDriver", "nodedrivers", namespaced=False)
DYNAMIC_SCHEMA = Kind(MANAGEMENT_GROUP, "v3", "DynamicSchema", "dynamicschemas", namespaced=False)

MACHINE_GROUP = "rke-machine.cattle.io"
CONFIG_GROUP = "rke-machine-config.cattle.io"
VERSION = "v1"


@dataclass(frozen=True, slots=True)
class DriverKinds:
    """The three kinds of a driver."""

    config: Kind
    template: Kind
    machine: Kind

    @property
    def all(self) -> tuple[Kind, ...]:
        return self.machine, self.template, self.config


def kinds_of(driver: str) -> DriverKinds:
    """`amazonec2` → Amazonec2Config, Amazonec2MachineTemplate, Amazonec2Machine."""
    prefix, plural = driver[:1].upper() + driver[1:], driver.lower()
    return DriverKinds(
        config=Kind(CONFIG_GROUP, VERSION, f"{prefix}Config", f"{plural}configs"),
        template=Kind(MACHINE_GROUP, VERSION, f"{prefix}MachineTemplate", f"{plural}machinetemplates"),
        machine=Kind(MACHINE_GROUP, VERSION, f"{prefix}Machine", f"{plural}machines"),
    )


def driver_of(kind: str) -> str:
    """Return the driver of a kind: `Amazonec2Machine` → `amazonec2`."""
    name = kind.removesuffix("MachineTemplate").removesuffix("Machine").removesuffix("Config")
    return name[:1].lower() + name[1:]
