"""The real kubectl, through the proxy, to the embedded server and to a real one."""

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
from tests.unit.gateway.proxy.serving import Gateway, start_kubectl


def _config_map(name: str, value: str = "1") -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}})


async def test_a_user_reads_and_writes_as_itself(gateway: Gateway, alice: Path) -> None:
    applied = await gateway.kubectl(alice, "apply", "-n", "default", "-f", "-", stdin=_config_map("by-alice"))
    assert applied.output == "configmap/by-alice created\n", applied.errors
    got = await gateway.kubectl(alice, "get", "configmap", "by-alice", "-n", "default", "-o", "jsonpath={.data.value}")
    assert got.output == "1"
    who = await gateway.kubectl(alice, "auth", "whoami", "-o", "json")
    assert json.loads(who.output)["status"]["userInfo"]["username"] == "u-alice"


async def test_what_a_user_may_not_do_is_refused_by_the_cluster_itself(gateway: Gateway, alice: Path) -> None:
    refused = await gateway.kubectl(alice, "get", "nodes")
    assert refused.code == 1
    assert 'User "u-alice" cannot list resource "nodes"' in refused.errors


async def test_who_may_not_use_the_cluster_is_refused_before_it_is_asked(gateway: Gateway, mallory: Path) -> None:
    refused = await gateway.kubectl(mallory, "get", "--raw", "/version")
    assert refused.code == 1
    assert 'user "u-mallory" may not use cluster' in refused.errors


async def test_a_watch_tells_of_changes_as_they_happen(gateway: Gateway, alice: Path) -> None:
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
async def test_an_impersonator_that_somebody_deleted_is_made_again(
    gateway: Gateway, alice: Path, client: Client, kind: Kind, namespace: str
) -> None:
    assert (await gateway.kubectl(alice, "get", "configmaps", "-n", "default")).code == 0
    await client.delete(kind.resource, impersonator("u-alice"), namespace=namespace)
    again = await gateway.kubectl(alice, "get", "configmaps", "-n", "default")
    assert again.code == 0, again.errors


async def test_a_port_forward_to_a_pod_that_is_not_there_fails_with_the_clusters_words(
    gateway: Gateway, alice: Path
) -> None:
    refused = await gateway.kubectl(alice, "port-forward", "-n", "default", "pod/none", "0:80")
    assert refused.code == 1
    assert 'pods "none" not found' in refused.errors
