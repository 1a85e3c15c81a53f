"""A node driver that is in use stays, whatever kubectl is told: on the embedded server, and on a real one, where our
machine provider runs without our Cluster API core."""

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
from tests.support.capi import PATIENCE, HerderRun, served, until, webhook_flags
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
    with request.param(tmp_path_factory.mktemp("engine")) as made:
        yield made


@pytest.fixture(scope="module")
async def client(engine: Engine) -> AsyncIterator[Client]:
    made = engine.client()
    yield made
    await made.close()


async def in_use(client: Client, engine: Engine, driver: str) -> None:
    """There is an object of the driver's kinds, and whoever guards them is heard."""
    config = kinds_of(driver).config
    await served(client, *kinds_of(driver).all)
    made = {"apiVersion": config.api_version, "kind": config.kind, "metadata": {"name": "small"}}
    await client.create(config.resource, made, namespace="default")
    async with asyncio.timeout(PATIENCE):
        while not engine.kubectl("delete", "nodedriver", driver, "--dry-run=server", check=False).returncode:
            await asyncio.sleep(0.1)  # a real server asks webhooks a moment after they are there


async def without_kinds(client: Client, driver: str) -> None:
    gone = {f"{kind.plural}.{kind.group}" for kind in kinds_of(driver).all}
    await until(client, DEFINITION, "", lambda found: not gone & {each["metadata"]["name"] for each in found})


@pytest.mark.parametrize(
    ("driver", "words", "refusal"),
    [
        ("process", ("patch", "nodedriver", "process", "--type=merge", "-p", OFF), "spec.active: Forbidden: cannot be"),
        ("generic", ("delete", "nodedriver", "generic"), "cannot be deleted"),
    ],
    ids=["switched off", "deleted"],
)
async def test_it_goes_when_the_last_object_of_its_kinds_is_gone(
    engine: Engine, client: Client, driver: str, words: tuple[str, ...], refusal: str
) -> None:
    await in_use(client, engine, driver)
    config = kinds_of(driver).config

    refused = engine.kubectl(*words, check=False)
    assert refused.returncode == 1
    assert refusal in refused.stderr
    assert f"1 object of its kinds still exists ({config.kind} default/small)" in refused.stderr
    still = await client.get(NODE_DRIVER.resource, driver)
    assert still["spec"]["active"] is True
    assert "deletionTimestamp" not in still["metadata"]

    engine.kubectl("delete", f"{config.plural}.{config.group}", "small")
    engine.kubectl(*words)
    await without_kinds(client, driver)
    engine.kubectl("delete", "nodedriver", driver, "--ignore-not-found")


async def test_what_is_not_in_use_is_switched_as_one_likes(engine: Engine, client: Client) -> None:
    driver = "digitalocean"
    for active in (True, False, True):
        change = json.dumps({"spec": {"active": active}})
        engine.kubectl("patch", "nodedriver", driver, "--type=merge", "-p", change)
    await served(client, kinds_of(driver).machine)
