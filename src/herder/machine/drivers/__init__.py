"""The drivers of our own, by name. Each is loaded when it is needed, for some bring a large library along."""

from __future__ import annotations

import importlib

from herder.api.machines.flags import Flag
from herder.machine.driver import Driver

NATIVE = {
    "amazonec2": "herder.machine.drivers.amazonec2:AmazonEC2",
    "generic": "herder.machine.drivers.generic:Generic",
    "local": "herder.machine.drivers.local:Local",
    "process": "herder.machine.drivers.process:Process",
}


def driver_class(name: str) -> type[Driver] | None:
    """None for a driver that is not ours."""
    if name not in NATIVE:
        return None
    module, _, attribute = NATIVE[name].partition(":")
    found: type[Driver] = getattr(importlib.import_module(module), attribute)
    return found


def create_flags(name: str) -> tuple[Flag, ...] | None:
    driver = driver_class(name)
    return driver.flags if driver is not None else None
