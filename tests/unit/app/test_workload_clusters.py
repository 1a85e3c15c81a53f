"""Workload clusters are reached with the kubeconfig in their Secret, which may not refer to this machine."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
import yaml

from herder.app.workload_clusters import connect
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import KubeconfigError, build
from herder.engine.meta.errors import NotFound, ServiceUnavailable
from herder.sim import loop as virtual
from tests.unit.engine.runtime.envtest import SECRET, Environment, environment

GOOD = yaml.safe_dump(build(server="https://workload.invalid:6443", ca=b"", token="s3cret"))


async def save(management: Environment, data: dict[str, str]) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    await management.create("c1-kubeconfig", SECRET, data=encoded)


def run(work: Any) -> Any:
    async def in_world() -> Any:
        async with environment() as management:
            return await work(management)

    return virtual.run(in_world())


async def test_the_kubeconfig_secret_has_the_server_and_the_token() -> None:
    async with environment() as management:
        await save(management, {"value": GOOD})
        client = await connect(management.client, "default/c1")
        assert isinstance(client.transport, HttpTransport)
        assert client.transport.connection.server == "https://workload.invalid:6443"
        assert client.transport.connection.token == "s3cret"
        assert client.field_manager == "herder"
        await client.close()


def test_a_cluster_without_a_kubeconfig_secret_is_not_found() -> None:
    async def work(management: Environment) -> None:
        with pytest.raises(NotFound, match='secrets "c1-kubeconfig" not found'):
            await connect(management.client, "default/c1")

    run(work)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "data.value: required"),
        ({"config": GOOD}, "data.value: required"),
        ({"value": "s3cret: ["}, "not YAML"),
        (
            {"value": GOOD.replace("token: s3cret", "exec: {command: s3cret}")},
            "users.user.exec: not allowed in this kubeconfig",
        ),
        (
            {"value": GOOD.replace("token: s3cret", "tokenFile: s3cret")},
            "users.user.tokenFile: not allowed in this kubeconfig",
        ),
        ({"value": GOOD.replace("token: s3cret", "client-key-data: s3cret")}, "client-key-data: not base64"),
        ({"value": GOOD.replace("https://workload", "http://s3cret")}, "clusters.cluster.server: must be an https URL"),
        (
            {"value": GOOD.replace("https://workload", "https://me:s3cret@workload")},
            "clusters.cluster.server: must be an https URL",
        ),
        (
            {"value": GOOD.replace("server: ", "proxy-url: http://s3cret:3128\n    server: ")},
            "clusters.cluster.proxy-url: not allowed in this kubeconfig",
        ),
        (
            {"value": GOOD.replace("server: ", "insecure-skip-tls-verify: true\n    server: ")},
            "clusters.cluster.insecure-skip-tls-verify: not allowed in this kubeconfig",
        ),
    ],
)
def test_errors_name_the_field_and_not_its_value(data: dict[str, str], message: str) -> None:
    async def work(management: Environment) -> None:
        await save(management, data)
        with pytest.raises(KubeconfigError) as raised:
            await connect(management.client, "default/c1")
        assert str(raised.value).startswith("Secret default/c1-kubeconfig: ")
        assert message in str(raised.value)
        assert "s3cret" not in str(raised.value)

    run(work)


LOCAL = ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "2130706433"]


@pytest.mark.parametrize("host", LOCAL)
async def test_a_workload_kubeconfig_cannot_point_to_this_host(host: str) -> None:
    """The address is checked when it is dialed, since a name may resolve to another address each time."""
    connections = 0

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    async with environment() as management, await asyncio.start_server(on_connection, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await save(management, {"value": GOOD.replace("workload.invalid:6443", f"{host}:{port}")})
        client = await connect(management.client, "default/c1")
        with pytest.raises(ServiceUnavailable, match=r"not allowed|not a canonical"):
            await client.document("/version")
        await client.close()
    assert not connections


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fe80::1",
        "::1",
        "::",
        "0.0.0.0",
        "fd00:ec2::254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "224.0.0.1",
    ],
)
def test_addresses_of_this_host_and_of_metadata_services_are_local(address: str) -> None:
    from herder.engine.client.addresses import is_local

    assert is_local(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.1", "172.18.0.2", "8.8.8.8", "fd12::1", "2001:db8::1"])
def test_addresses_of_networks_are_not_local(address: str) -> None:
    from herder.engine.client.addresses import is_local

    assert not is_local(address)
