"""Whether a NodeDriver may go is asked of the server, and only where it matters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from herder.api.machines.crds import CRDS, driver_definitions
from herder.api.machines.kinds import NODE_DRIVER, kinds_of
from herder.app.install import install_kinds
from herder.engine.meta.errors import Forbidden, InternalError, Invalid
from herder.engine.meta.kinds import Object
from herder.gateway.admission.node_drivers import refusal
from tests.unit.engine.runtime.world import World, world

LINODE = kinds_of("linode")


def node_driver(name: str = "linode", *, driver: str = "linode", active: bool = True) -> Object:
    spec = {"active": active, "displayName": driver, "url": "local://"}
    return {"apiVersion": NODE_DRIVER.api_version, "kind": NODE_DRIVER.kind, "metadata": {"name": name}, "spec": spec}


def off(driver: Object) -> Object:
    return {**driver, "spec": {**driver["spec"], "active": False}}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    """A server with one object of a driver's kinds; of its three kinds one is not served."""
    async with world() as made:
        config, _, machine = driver_definitions("linode", {})
        await install_kinds(made.outside, [*CRDS, config, machine])
        await made.outside.create(LINODE.config.resource, _config("small"), namespace="default")
        made.wire.requests.clear()
        yield made


def _config(name: str) -> Object:
    return {"apiVersion": LINODE.config.api_version, "kind": LINODE.config.kind, "metadata": {"name": name}}


async def stored(here: World, driver: Object) -> Object:
    return await here.outside.create(NODE_DRIVER.resource, driver)


async def test_while_objects_are_left_it_cannot_go_and_they_are_named(here: World) -> None:
    driver = await stored(here, node_driver())
    told = r"1 object of its kinds still exists \(LinodeConfig default/small\)"
    with pytest.raises(Invalid, match=f"spec.active: Forbidden: cannot be deactivated: {told}"):
        raise await refusal(here.client, driver, off(driver)) or AssertionError
    with pytest.raises(Forbidden, match=f"cannot be deleted: {told}"):
        raise await refusal(here.client, driver, None) or AssertionError


async def test_when_none_is_left_it_can_also_where_its_kinds_are_not_served(here: World) -> None:
    driver = await stored(here, node_driver())
    await here.outside.delete(LINODE.config.resource, "small", namespace="default")
    assert await refusal(here.client, driver, None) is None
    assert await refusal(here.client, await stored(here, node_driver("vultr", driver="vultr")), None) is None


async def test_what_takes_no_kinds_away_costs_no_request(here: World) -> None:
    driver = await stored(here, node_driver())
    assert await refusal(here.client, driver, {**driver, "metadata": {**driver["metadata"], "finalizers": []}}) is None
    assert await refusal(here.client, off(driver), driver) is None
    assert here.wire.requests == []


async def test_one_that_never_brought_a_driver_can_go(here: World) -> None:
    """A second one for the same driver, and one whose name no driver can have."""
    await stored(here, node_driver("a"))
    twin = await stored(here, node_driver("b"))
    misnamed = await stored(here, node_driver("c", driver="../linode"))
    assert await refusal(here.client, twin, None) is None
    assert await refusal(here.client, misnamed, None) is None


async def test_what_cannot_be_told_is_refused(here: World) -> None:
    driver = await stored(here, node_driver())
    here.wire.down = True
    error = await refusal(here.client, driver, None)
    assert isinstance(error, InternalError)
    assert "cannot check for remaining objects of driver linode: the line is dead" in str(error)
