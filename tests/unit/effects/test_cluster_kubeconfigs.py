"""The kubeconfig Secret of a managed cluster, and its user."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from herder.api.capi.crds import CRDS as CORE_CRDS
from herder.api.capi.kinds import CLUSTER as CORE_CLUSTER
from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.authn.tokens import from_token, key_matches
from herder.api.identity.crds import CRDS as IDENTITY_CRDS
from herder.api.management.crds import CRDS
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    MANAGEMENT_CLUSTER,
    PROVISIONING_CLUSTER,
    TOKEN,
    USER,
)
from herder.api.settings import Settings
from herder.api.writes import owner_reference
from herder.app.install import install_kinds
from herder.effects.cluster_kubeconfig import ClusterKubeconfigs
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from tests.support.builders import new_manifest
from tests.unit.engine.runtime.envtest import environment

CLUSTER = "c-m-bcdfghjk"
USER_NAME = "u-l3jmhncqjg"  # of fleet-default/demo


@dataclass
class Harness:
    client: Client
    arguments: dict[str, Any]
    flags: dict[str, str] = field(default_factory=lambda: {"server-url": "https://manager.example.com"})

    async def create_kubeconfig(self) -> Object:
        await ClusterKubeconfigs(self.client, entropy=os.urandom, setting=Settings(flags=self.flags).get)(
            self.arguments
        )
        return await self.client.get(SECRET.resource, "demo-kubeconfig", namespace="fleet-default")


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with environment() as env:
        await install_kinds(env.outside, [*CRDS, *IDENTITY_CRDS])
        for name in ("fleet-default", CLUSTER):
            await env.outside.create(NAMESPACE.resource, new_manifest(NAMESPACE, name))
        cluster = await env.outside.create(
            PROVISIONING_CLUSTER.resource, new_manifest(PROVISIONING_CLUSTER, "demo"), namespace="fleet-default"
        )
        management = await env.outside.create(MANAGEMENT_CLUSTER.resource, new_manifest(MANAGEMENT_CLUSTER, CLUSTER))
        arguments = {
            "namespace": "fleet-default",
            "name": "demo",
            "management": CLUSTER,
            "provisioned": False,
            "owner": owner_reference(PROVISIONING_CLUSTER, cluster, controller=True),
            "managementOwner": owner_reference(MANAGEMENT_CLUSTER, management, controller=True),
        }
        yield Harness(env.outside, arguments)


def decoded(secret: Object, key: str = "token") -> str:
    return base64.b64decode(secret["data"][key]).decode()


async def test_the_kubeconfig_uses_the_manager_and_its_own_user(harness: Harness) -> None:
    secret = await harness.create_kubeconfig()
    config = yaml.safe_load(decoded(secret, "value"))
    assert config["clusters"][0]["cluster"]["server"] == f"https://manager.example.com/k8s/clusters/{CLUSTER}"
    assert config["users"][0]["user"]["token"] == decoded(secret)
    assert secret["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "demo"}
    token_name, _, key = decoded(secret).partition(":")
    assert token_name == USER_NAME
    token = await harness.client.get(TOKEN.resource, USER_NAME)
    assert key_matches(from_token(token), key)
    assert key not in str(token)
    assert token["clusterName"] == CLUSTER, "it is valid only for this cluster"
    assert (await harness.client.get(USER.resource, USER_NAME))["enabled"]
    (binding,) = (await harness.client.list(CLUSTER_BINDING.resource, namespace=CLUSTER)).items
    assert (binding["userName"], binding["roleTemplateName"]) == (USER_NAME, "cluster-owner")


async def test_a_second_run_changes_nothing(harness: Harness) -> None:
    first, second = await harness.create_kubeconfig(), await harness.create_kubeconfig()
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_new_server_url_keeps_the_token(harness: Harness) -> None:
    first = await harness.create_kubeconfig()
    harness.flags["server-url"] = "https://elsewhere.example.com"
    second = await harness.create_kubeconfig()
    assert "https://elsewhere.example.com/" in decoded(second, "value")
    assert decoded(second) == decoded(first)


@pytest.mark.parametrize(
    ("flags", "server", "authority"),
    [
        ({}, "https://manager.example.com", ""),
        ({"cacerts": "outside\n"}, "https://manager.example.com", "outside"),
        ({"internal-server-url": "https://manager.svc/"}, "https://manager.svc", ""),
        ({"internal-server-url": "https://manager.svc", "cacerts": "outside"}, "https://manager.svc", "outside"),
        (
            {"internal-server-url": "https://manager.svc", "internal-cacerts": "inside\n", "cacerts": "outside"},
            "https://manager.svc",
            "inside",
        ),
    ],
)
async def test_internal_url_and_ca_take_precedence(
    harness: Harness, flags: dict[str, str], server: str, authority: str
) -> None:
    harness.flags |= flags
    cluster = yaml.safe_load(decoded(await harness.create_kubeconfig(), "value"))["clusters"][0]["cluster"]
    assert cluster["server"] == f"{server}/k8s/clusters/{CLUSTER}"
    assert base64.b64decode(cluster.get("certificate-authority-data", "")).decode() == authority


async def test_a_deleted_secret_is_recreated_with_a_new_token(harness: Harness) -> None:
    first = await harness.create_kubeconfig()
    await harness.client.delete(SECRET.resource, "demo-kubeconfig", namespace="fleet-default")
    second = await harness.create_kubeconfig()
    record = from_token(await harness.client.get(TOKEN.resource, USER_NAME))
    assert decoded(first) != decoded(second)
    assert [key_matches(record, decoded(each).partition(":")[2]) for each in (first, second)] == [False, True]


async def test_a_deleted_token_is_not_restored(harness: Harness) -> None:
    await harness.create_kubeconfig()
    await harness.client.delete(TOKEN.resource, USER_NAME)
    await harness.create_kubeconfig()
    with pytest.raises(NotFound):
        await harness.client.get(TOKEN.resource, USER_NAME)


async def test_a_secret_with_another_owner_is_not_changed(harness: Harness) -> None:
    foreign = new_manifest(SECRET, "demo-kubeconfig") | {"data": {"value": "eA=="}}
    await harness.client.create(SECRET.resource, foreign, namespace="fleet-default")
    with pytest.raises(PermissionError, match="has another owner"):
        await harness.create_kubeconfig()


@pytest.mark.parametrize(
    ("provisioned", "owned", "rejected"), [(False, True, True), (True, False, True), (True, True, False)]
)
async def test_a_foreign_capi_cluster_of_the_name_gets_no_kubeconfig(
    harness: Harness, provisioned: bool, owned: bool, rejected: bool
) -> None:
    """Cluster API connects to a Cluster with the Secret of its name.

    A user who creates a Cluster, even with a copied owner reference, must not get access to a cluster that is imported
    later under that name.
    """
    owners = [harness.arguments["owner"]] if owned else []
    cluster = new_manifest(CORE_CLUSTER, "demo") | {"spec": {"paused": False}}
    cluster["metadata"]["ownerReferences"] = owners
    await install_kinds(harness.client, CORE_CRDS)
    await harness.client.create(CORE_CLUSTER.resource, cluster, namespace="fleet-default")
    harness.arguments["provisioned"] = provisioned
    if not rejected:
        assert decoded(await harness.create_kubeconfig())
        return
    with pytest.raises(PermissionError, match=r"Cluster fleet-default/demo of cluster\.x-k8s\.io has another owner"):
        await harness.create_kubeconfig()


@pytest.mark.parametrize("principals", [[f"local://{USER_NAME}"], ["system://provisioning/fleet-default/other"], None])
async def test_an_existing_user_of_the_name_is_not_changed(harness: Harness, principals: list[str] | None) -> None:
    """User names are 50 bits of a digest, and people choose names of clusters.

    An existing User of the name would own the cluster, and be deleted with it.
    """
    existing = {**new_manifest(USER, USER_NAME), "username": "polly"} | (
        {"principalIds": principals} if principals else {}
    )
    before = await harness.client.create(USER.resource, existing)
    with pytest.raises(PermissionError, match="does not belong to cluster fleet-default/demo"):
        await harness.create_kubeconfig()
    assert await harness.client.get(USER.resource, USER_NAME) == before
    with pytest.raises(NotFound):
        await harness.client.get(CLUSTER_BINDING.resource, f"{USER_NAME}-owner", namespace=CLUSTER)
