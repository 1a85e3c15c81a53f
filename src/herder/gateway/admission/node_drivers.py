"""Admission of NodeDriver changes: refuse to deactivate, rename or delete a driver in use.

The API server is queried, because a stale cache could lose machines.
"""

from __future__ import annotations

from herder.api.machines.drivers.admission import refuse_deactivation, removes_kinds
from herder.api.machines.drivers.known import age, driver_name, name_problem
from herder.api.machines.kinds import NODE_DRIVER, kinds_of
from herder.engine.client.client import Client
from herder.engine.meta.errors import InternalError, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runtime.performers.find import list_names


async def refusal(client: Client, old: Object, new: Object | None) -> StatusError | None:
    """The error if the change is refused; `new` is None for a deletion. Irrelevant changes cost no query."""
    if not removes_kinds(old, new):
        return None
    try:
        return refuse_deactivation(old, new, await _remaining_objects(client, old))
    except (StatusError, OSError, TimeoutError) as error:
        return InternalError(f"cannot check for remaining objects of driver {driver_name(old)}: {error}")


async def _remaining_objects(client: Client, node_driver: Object) -> list[str]:
    """Names as `Kind namespace/name`; empty for a NodeDriver that provides no kinds."""
    driver = driver_name(node_driver)
    if name_problem(driver) or not await _provides_driver(client, node_driver):
        return []
    return await list_names(client, {"kinds": kinds_of(driver).all})


async def _provides_driver(client: Client, node_driver: Object) -> bool:
    """Of several NodeDrivers for the same driver, only the oldest provides it."""
    known = (await client.list_all(NODE_DRIVER.resource)).items
    return all(age(node_driver) <= age(other) for other in known if driver_name(other) == driver_name(node_driver))
