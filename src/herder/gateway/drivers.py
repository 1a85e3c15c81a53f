"""Whether a NodeDriver may be switched off, renamed or deleted: asked of the server itself, since no cache may be
behind where machines could be lost."""

from __future__ import annotations

from herder.api.machines.driver_admission import refuse_deactivation, takes_kinds_away
from herder.api.machines.kinds import NODE_DRIVER, kinds_of
from herder.api.machines.known import age, driver_name, name_problem
from herder.engine.client.client import Client
from herder.engine.meta.errors import InternalError, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runtime.performers.find import list_names


async def refusal(client: Client, old: Object, new: Object | None) -> StatusError | None:
    """Why this must not be done, if so. `new` is None for a deletion. Nothing is looked for where it cannot matter."""
    if not takes_kinds_away(old, new):
        return None
    try:
        return refuse_deactivation(old, new, await _objects_left(client, old))
    except (StatusError, OSError, TimeoutError) as error:
        return InternalError(f"whether objects of driver {driver_name(old)}'s kinds are left cannot be told: {error}")


async def _objects_left(client: Client, node_driver: Object) -> list[str]:
    """Each as `Kind namespace/name`; none of a NodeDriver that brings no kinds."""
    driver = driver_name(node_driver)
    if name_problem(driver) or not await _brings(client, node_driver):
        return []
    return await list_names(client, {"kinds": kinds_of(driver).all})


async def _brings(client: Client, node_driver: Object) -> bool:
    """Of several with the same driver, the oldest does: any other can go."""
    known = (await client.list_all(NODE_DRIVER.resource)).items
    return all(age(node_driver) <= age(other) for other in known if driver_name(other) == driver_name(node_driver))
