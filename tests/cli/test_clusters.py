"""Workload clusters are reached by the kubeconfig in their Secret, which may say nothing about this machine."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml

from herder.cli.clusters import connect
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import KubeconfigError, build
from herder.engine.meta.errors import NotFound
from herder.sim import loop as virtual
from tests.engine.runtime.world import SECRET, World, world

GOOD = yaml.safe_dump(build(server="https://workload.invalid:6443", ca=b"", token="s3cret"))


async def save(there: World, data: dict[str, str]) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    await there.create("c1-kubeconfig", SECRET, data=encoded)


def run(work: Any) -> Any:
    async def within() -> Any:
        async with world() as there:
            return await work(there)

    return virtual.run(within())


async def test_the_secret_of_a_cluster_says_where_it_is_and_who_we_are() -> None:
    async with world() as there:
        await save(there, {"value": GOOD})
        client = await connect(there.client, "default/c1")
        assert isinstance(client.transport, HttpTransport)
        assert client.transport.connection.server == "https://workload.invalid:6443"
        assert client.transport.connection.token == "s3cret"
        assert client.field_manager == "herder"
        await client.close()


def test_a_cluster_without_a_secret_is_not_found_by_that_name() -> None:
    async def work(there: World) -> None:
        with pytest.raises(NotFound, match='secrets "c1-kubeconfig" not found'):
            await connect(there.client, "default/c1")

    run(work)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "data.value: required"),
        ({"config": GOOD}, "data.value: required"),
        ({"value": "s3cret: ["}, "not YAML"),
        ({"value": GOOD.replace("token: s3cret", "exec: {command: s3cret}")}, "users.user.exec: not accepted here"),
        ({"value": GOOD.replace("token: s3cret", "tokenFile: s3cret")}, "users.user.tokenFile: not accepted here"),
        ({"value": GOOD.replace("token: s3cret", "client-key-data: s3cret")}, "client-key-data: not base64"),
    ],
)
def test_what_is_wrong_is_told_by_the_field_and_not_by_what_stands_there(data: dict[str, str], told: str) -> None:
    async def work(there: World) -> None:
        await save(there, data)
        with pytest.raises(KubeconfigError) as raised:
            await connect(there.client, "default/c1")
        assert str(raised.value).startswith("Secret default/c1-kubeconfig: ")
        assert told in str(raised.value)
        assert "s3cret" not in str(raised.value)

    run(work)
