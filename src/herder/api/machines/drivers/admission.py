"""Admission of NodeDrivers: deny removing their kinds while objects of them exist.

Deleting a CRD deletes its objects: deactivating a driver would delete its machines at the provider.
"""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.machines.drivers.known import driver_name
from herder.api.machines.kinds import NODE_DRIVER
from herder.engine.meta.errors import StatusError, forbidden, forbidden_field, invalid
from herder.engine.meta.kinds import Object

MAX_NAMED = 5
"""Number of remaining objects that the message names."""


def refuse_deactivation(old: Object, new: Object | None, objects_left: Sequence[str]) -> StatusError | None:
    """Return why the NodeDriver may not be changed, or None.

    `new` is None for a deletion; `objects_left` are the objects of the driver's kinds as `Kind namespace/name`.
    """
    if not objects_left:
        return None
    name, driver = old["metadata"]["name"], driver_name(old)
    needed = still_used_message(driver, objects_left)
    if new is None:
        return forbidden(NODE_DRIVER.resource.group_resource, name, f"cannot be deleted: {needed}")
    if not is_active(new) and is_active(old):
        problem = forbidden_field("spec.active", f"cannot be deactivated: {needed}")
    elif driver_name(new) != driver:
        problem = forbidden_field("spec.displayName", f"cannot become driver {driver_name(new)}: {needed}")
    else:
        return None
    return invalid(NODE_DRIVER.group_kind, name, [problem])


def removes_kinds(old: Object, new: Object | None) -> bool:
    """Whether the change removes the driver's kinds; only then remaining objects must be looked up."""
    return refuse_deactivation(old, new, ["any"]) is not None


def still_used_message(driver: str, objects_left: Sequence[str]) -> str:
    count = len(objects_left)
    named = ", ".join(sorted(objects_left)[:MAX_NAMED]) + (
        f" and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
    )
    remaining = "1 object of its kinds still exists" if count == 1 else f"{count} objects of its kinds still exist"
    return f"{remaining} ({named}); delete them first, or leave driver {driver} active"


def is_active(node_driver: Object) -> bool:
    return bool((node_driver.get("spec") or {}).get("active"))
