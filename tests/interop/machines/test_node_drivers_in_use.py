"""A node driver that is in use cannot be removed with kubectl: on the embedded server, and on a kube-apiserver, where
Herder's machine provider runs without Herder's Cluster API core.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.kinds import NODE_DRIVER, kinds_of
from herder.engine.client.client import Client
from tests.support.capi import TIMEOUT, HerderRun, wait_until, wait_until_served, webhook_flags
from tests.support.embedded import Embedded
from tests.support.engines import Engine
from tests.support.kube import RealKube

FLAGS = ("--capi-core=external", "--machines")
OFF = json.dumps({"spec": {"active": False}})


@contextmanager
def _embedded(directory: Path) -> Iterator[Engine]:
    with Embedded(directory, flags=(*FLAGS, "--no-runner")) as server:
        yield Engine("embedded", server.kubeconfig)


@contextmanager
def _real(directory: Path) -> Iterator[Engine]:
    (directory / "kube").mkdir()
    with RealKube(directory / "kube") as kube:
        engine = Engine("real", kube.kubeconfig)
        with HerderRun(engine, directory / "herder", *FLAGS, *webhook_flags()):
            yield engine


@pytest.fixture(scope="module", params=[_embedded, _real], ids=["embedded", "real"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with request.param(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture(scope="module")
async def client(engine: Engine) -> AsyncIterator[Client]:
    client = engine.client()
    yield client
    await client.close()


async def put_in_use(client: Client, engine: Engine, driver: str) -> None:
    """Create an object of the driver's kinds, and wait until admission protects the driver."""
    config = kinds_of(driver).config
    await wait_until_served(client, *kinds_of(driver).all)
    obj = {"apiVersion": config.api_version, "kind": config.kind, "metadata": {"name": "small"}}
    await client.create(config.resource, obj, namespace="default")
    async with asyncio.timeout(TIMEOUT):
        while not engine.kubectl("delete", "nodedriver", driver, "--dry-run=server", check=False).returncode:
            await asyncio.sleep(0.1)  # kube-apiserver calls webhooks shortly after they are registered


async def wait_until_kinds_are_removed(client: Client, driver: str) -> None:
    names = {f"{kind.plural}.{kind.group}" for kind in kinds_of(driver).all}
    await wait_until(client, DEFINITION, "", lambda found: not names & {each["metadata"]["name"] for each in found})


@pytest.mark.parametrize(
    ("driver", "arguments", "refusal"),
    [
        ("process", ("patch", "nodedriver", "process", "--type=merge", "-p", OFF), "spec.active: Forbidden: cannot be"),
        ("generic", ("delete", "nodedriver", "generic"), "cannot be deleted"),
    ],
    ids=["switched off", "deleted"],
)
async def test_a_driver_can_be_removed_after_its_last_object(
    engine: Engine, client: Client, driver: str, arguments: tuple[str, ...], refusal: str
) -> None:
    await put_in_use(client, engine, driver)
    config = kinds_of(driver).config

    refused = engine.kubectl(*arguments, check=False)
    assert refused.returncode == 1
    assert refusal in refused.stderr
    assert f"1 object of its kinds still exists ({config.kind} default/small)" in refused.stderr
    current = await client.get(NODE_DRIVER.resource, driver)
    assert current["spec"]["active"] is True
    assert "deletionTimestamp" not in current["metadata"]

    engine.kubectl("delete", f"{config.plural}.{config.group}", "small")
    engine.kubectl(*arguments)
    await wait_until_kinds_are_removed(client, driver)
    engine.kubectl("delete", "nodedriver", driver, "--ignore-not-found")


async def test_an_unused_driver_can_be_switched_on_and_off(engine: Engine, client: Client) -> None:
    driver = "digitalocean"
    for active in (True, False, True):
        change = json.dumps({"spec": {"active": active}})
        engine.kubectl("patch", "nodedriver", driver, "--type=merge", "-p", change)
    await wait_until_served(client, kinds_of(driver).machine)
