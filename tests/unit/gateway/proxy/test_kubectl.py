"""kubectl through the proxy to the embedded server and to a real one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from herder.api.identity.impersonators import impersonator
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind
from herder.gateway.proxy.impersonation.objects import CLUSTER_ROLE_BINDING, IMPERSONATION_NAMESPACE
from tests.unit.gateway.proxy.proxy_gateway import Gateway, start_kubectl


def _config_map(name: str, value: str = "1") -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}})


async def test_a_user_reads_and_writes_under_their_own_name(gateway: Gateway, alice: Path) -> None:
    applied = await gateway.kubectl(alice, "apply", "-n", "default", "-f", "-", stdin=_config_map("by-alice"))
    assert applied.output == "configmap/by-alice created\n", applied.errors
    read_back = await gateway.kubectl(
        alice, "get", "configmap", "by-alice", "-n", "default", "-o", "jsonpath={.data.value}"
    )
    assert read_back.output == "1"
    whoami = await gateway.kubectl(alice, "auth", "whoami", "-o", "json")
    assert json.loads(whoami.output)["status"]["userInfo"]["username"] == "u-alice"


async def test_the_cluster_itself_denies_requests_without_rights(gateway: Gateway, alice: Path) -> None:
    denied = await gateway.kubectl(alice, "get", "nodes")
    assert denied.code == 1
    assert 'User "u-alice" cannot list resource "nodes"' in denied.errors


async def test_users_without_access_are_rejected_before_the_cluster_is_called(gateway: Gateway, mallory: Path) -> None:
    denied = await gateway.kubectl(mallory, "get", "--raw", "/version")
    assert denied.code == 1
    assert 'user "u-mallory" may not use cluster' in denied.errors


async def test_a_watch_delivers_changes_at_once(gateway: Gateway, alice: Path) -> None:
    await gateway.kubectl(alice, "apply", "-n", "default", "-f", "-", stdin=_config_map("watched"))
    watching = await start_kubectl(
        alice, "get", "configmap", "watched", "-n", "default", "--watch", "-o", "jsonpath={.data.value}{'\\n'}"
    )
    assert watching.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await watching.stdout.readline() == b"1\n"
            await gateway.kubectl(alice, "apply", "-n", "default", "-f", "-", stdin=_config_map("watched", "2"))
            assert await watching.stdout.readline() == b"2\n"
    finally:
        watching.kill()
        await watching.communicate()


@pytest.mark.parametrize(
    ("kind", "namespace"),
    [(CLUSTER_ROLE_BINDING, ""), (SERVICE_ACCOUNT, IMPERSONATION_NAMESPACE)],
    ids=["its binding", "its account"],
)
async def test_a_deleted_impersonator_is_recreated(
    gateway: Gateway, alice: Path, client: Client, kind: Kind, namespace: str
) -> None:
    assert (await gateway.kubectl(alice, "get", "configmaps", "-n", "default")).code == 0
    await client.delete(kind.resource, impersonator("u-alice"), namespace=namespace)
    again = await gateway.kubectl(alice, "get", "configmaps", "-n", "default")
    assert again.code == 0, again.errors


async def test_a_port_forward_to_a_missing_pod_returns_the_clusters_error(gateway: Gateway, alice: Path) -> None:
    denied = await gateway.kubectl(alice, "port-forward", "-n", "default", "pod/none", "0:80")
    assert denied.code == 1
    assert 'pods "none" not found' in denied.errors
