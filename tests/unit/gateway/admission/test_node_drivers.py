"""Admission of NodeDrivers: the server is queried for remaining objects, and only if it matters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from herder.api.machines.crds import CRDS, driver_definitions
from herder.api.machines.kinds import NODE_DRIVER, kinds_of
from herder.app.install import install_kinds
from herder.engine.meta.errors import Forbidden, InternalError, Invalid
from herder.engine.meta.kinds import Object
from herder.gateway.admission.node_drivers import refusal
from tests.support.builders import new_manifest
from tests.unit.engine.runtime.envtest import Environment, environment

LINODE = kinds_of("linode")


def node_driver(name: str = "linode", *, driver: str = "linode", active: bool = True) -> Object:
    spec = {"active": active, "displayName": driver, "url": "local://"}
    return new_manifest(NODE_DRIVER, name, spec=spec)


def deactivated(driver: Object) -> Object:
    return {**driver, "spec": {**driver["spec"], "active": False}}


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    """A server with one object of a driver's kinds. One of the three kinds is not served."""
    async with environment() as created:
        config, _, machine = driver_definitions("linode", {})
        await install_kinds(created.outside, [*CRDS, config, machine])
        await created.outside.create(LINODE.config.resource, _config("small"), namespace="default")
        created.wire.requests.clear()
        yield created


def _config(name: str) -> Object:
    return new_manifest(LINODE.config, name)


async def stored(env: Environment, driver: Object) -> Object:
    return await env.outside.create(NODE_DRIVER.resource, driver)


async def test_a_driver_in_use_cannot_be_removed_and_its_objects_are_named(env: Environment) -> None:
    driver = await stored(env, node_driver())
    message = r"1 object of its kinds still exists \(LinodeConfig default/small\)"
    with pytest.raises(Invalid, match=f"spec.active: Forbidden: cannot be deactivated: {message}"):
        raise await refusal(env.client, driver, deactivated(driver)) or AssertionError
    with pytest.raises(Forbidden, match=f"cannot be deleted: {message}"):
        raise await refusal(env.client, driver, None) or AssertionError


async def test_an_unused_driver_can_be_removed(env: Environment) -> None:
    driver = await stored(env, node_driver())
    await env.outside.delete(LINODE.config.resource, "small", namespace="default")
    assert await refusal(env.client, driver, None) is None
    assert await refusal(env.client, await stored(env, node_driver("vultr", driver="vultr")), None) is None


async def test_other_changes_need_no_request(env: Environment) -> None:
    driver = await stored(env, node_driver())
    assert await refusal(env.client, driver, {**driver, "metadata": {**driver["metadata"], "finalizers": []}}) is None
    assert await refusal(env.client, deactivated(driver), driver) is None
    assert env.wire.requests == []


async def test_a_node_driver_without_effect_can_be_deleted(env: Environment) -> None:
    """A second NodeDriver for the same driver, and one with an invalid driver name."""
    await stored(env, node_driver("a"))
    duplicate = await stored(env, node_driver("b"))
    misnamed = await stored(env, node_driver("c", driver="../linode"))
    assert await refusal(env.client, duplicate, None) is None
    assert await refusal(env.client, misnamed, None) is None


async def test_a_failed_check_rejects_the_change(env: Environment) -> None:
    driver = await stored(env, node_driver())
    env.wire.down = True
    error = await refusal(env.client, driver, None)
    assert isinstance(error, InternalError)
    assert "cannot check for remaining objects of driver linode: the line is dead" in str(error)
