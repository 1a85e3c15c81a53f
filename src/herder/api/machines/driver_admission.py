"""What may not be done to a NodeDriver: take its kinds away while there are objects of them.

A kind that goes takes all its objects along. Machines would be removed at their provider, which nobody asked for who
only switched a driver off.
"""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.machines.kinds import NODE_DRIVER
from herder.api.machines.known import driver_name
from herder.engine.meta.errors import StatusError, forbidden, forbidden_field, invalid
from herder.engine.meta.kinds import Object

NAMED = 5
"""So many of the objects that are left are told by name."""


def refuse_deactivation(old: Object, new: Object | None, objects_left: Sequence[str]) -> StatusError | None:
    """Why the NodeDriver may not be changed like this, if it may not. `new` is None for a deletion; `objects_left` are
    the objects of the driver's kinds, each as `Kind namespace/name`."""
    if not objects_left:
        return None
    name, driver = old["metadata"]["name"], driver_name(old)
    needed = needed_by(driver, objects_left)
    if new is None:
        return forbidden(NODE_DRIVER.resource.group_resource, name, f"cannot be deleted: {needed}")
    if not is_active(new) and is_active(old):
        problem = forbidden_field("spec.active", f"cannot be deactivated: {needed}")
    elif driver_name(new) != driver:
        problem = forbidden_field("spec.displayName", f"cannot become driver {driver_name(new)}: {needed}")
    else:
        return None
    return invalid(NODE_DRIVER.group_kind, name, [problem])


def takes_kinds_away(old: Object, new: Object | None) -> bool:
    """Whether the change is such that it matters what objects are left: only then they need to be looked for."""
    return refuse_deactivation(old, new, ["any"]) is not None


def needed_by(driver: str, objects_left: Sequence[str]) -> str:
    count = len(objects_left)
    named = ", ".join(sorted(objects_left)[:NAMED]) + (f" and {count - NAMED} more" if count > NAMED else "")
    there = "1 object of its kinds is" if count == 1 else f"{count} objects of its kinds are"
    return f"{there} still there ({named}); delete what is no longer wanted first, or leave driver {driver} active"


def is_active(node_driver: Object) -> bool:
    return bool((node_driver.get("spec") or {}).get("active"))
