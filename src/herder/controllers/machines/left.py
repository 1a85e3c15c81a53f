"""What objects there are of a driver's kinds, by their names alone."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.kinds import CONFIG_GROUP, MACHINE_GROUP, driver_of, kinds_of
from herder.api.machines.known import DRIVER_LABEL
from herder.engine.meta.kinds import Object
from herder.engine.runtime.cache import Change
from herder.engine.runtime.view import View

_GROUPS = (CONFIG_GROUP, MACHINE_GROUP)


def objects_left(view: View, driver: str) -> list[str]:
    """Each as `Kind namespace/name`. Kinds are read only where they are defined: others never come."""
    kinds = kinds_of(driver)
    found = []
    for kind in (kinds.machine, kinds.template, kinds.config):
        if view.get(DEFINITION, f"{kind.plural}.{kind.group}") is not None:
            for obj in view.select(kind.metadata_only()):
                found.append(f"{kind.kind} {obj['metadata']['namespace']}/{obj['metadata']['name']}")
    return found


def driver_of_object(obj: Object) -> str | None:
    """Of an object of any kind: the driver whose kind it is of."""
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return driver_of(obj["kind"]) if group in _GROUPS else None


def driver_of_definition(definition: Object) -> Iterable[str]:
    """Indexer: the driver that a definition was made for."""
    group = definition["metadata"]["name"].partition(".")[2]
    driver = (definition["metadata"].get("labels") or {}).get(DRIVER_LABEL)
    return (driver,) if driver and group in _GROUPS else ()


def gone(change: Change) -> bool:
    """What waits until no objects are left waits for the last of them to go."""
    return change.new is None
