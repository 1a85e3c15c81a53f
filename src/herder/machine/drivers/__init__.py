"""Native drivers by name; each is imported on use, because some need large libraries."""

from __future__ import annotations

import importlib

from herder.api.machines.drivers.flags import Flag
from herder.machine.driver import Driver

NATIVE = {
    "amazonec2": "herder.machine.drivers.amazonec2:AmazonEC2",
    "generic": "herder.machine.drivers.generic:Generic",
    "local": "herder.machine.drivers.local:Local",
    "process": "herder.machine.drivers.process:Process",
}


def driver_class(name: str) -> type[Driver] | None:
    """Return the class of a native driver; None for other drivers."""
    if name not in NATIVE:
        return None
    module, _, attribute = NATIVE[name].partition(":")
    found: type[Driver] = getattr(importlib.import_module(module), attribute)
    return found


def create_flags(name: str) -> tuple[Flag, ...] | None:
    driver = driver_class(name)
    return driver.flags if driver is not None else None
