"""The kubeconfig of a managed cluster, and the user that it is for."""

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
from herder.engine.meta.kinds import Kind, Object
from tests.unit.engine.runtime.world import world

CLUSTER = "c-m-bcdfghjk"
USER_NAME = "u-l3jmhncqjg"  # of fleet-default/demo


@dataclass
class Place:
    client: Client
    arguments: dict[str, Any]
    flags: dict[str, str] = field(default_factory=lambda: {"server-url": "https://manager.example.com"})

    async def make(self) -> Object:
        await ClusterKubeconfigs(self.client, entropy=os.urandom, setting=Settings(flags=self.flags).get)(
            self.arguments
        )
        return await self.client.get(SECRET.resource, "demo-kubeconfig", namespace="fleet-default")


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with world() as made:
        await install_kinds(made.outside, [*CRDS, *IDENTITY_CRDS])
        for name in ("fleet-default", CLUSTER):
            await made.outside.create(NAMESPACE.resource, _object(NAMESPACE, name))
        pair = await made.outside.create(
            PROVISIONING_CLUSTER.resource, _object(PROVISIONING_CLUSTER, "demo"), namespace="fleet-default"
        )
        management = await made.outside.create(MANAGEMENT_CLUSTER.resource, _object(MANAGEMENT_CLUSTER, CLUSTER))
        arguments = {
            "namespace": "fleet-default",
            "name": "demo",
            "management": CLUSTER,
            "provisioned": False,
            "owner": owner_reference(PROVISIONING_CLUSTER, pair, controller=True),
            "managementOwner": owner_reference(MANAGEMENT_CLUSTER, management, controller=True),
        }
        yield Place(made.outside, arguments)


def _object(kind: Kind, name: str) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}


def said(secret: Object, key: str = "token") -> str:
    return base64.b64decode(secret["data"][key]).decode()


async def test_it_leads_through_the_manager_as_a_user_of_its_own(place: Place) -> None:
    secret = await place.make()
    config = yaml.safe_load(said(secret, "value"))
    assert config["clusters"][0]["cluster"]["server"] == f"https://manager.example.com/k8s/clusters/{CLUSTER}"
    assert config["users"][0]["user"]["token"] == said(secret)
    assert secret["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "demo"}
    whose, _, key = said(secret).partition(":")
    assert whose == USER_NAME
    token = await place.client.get(TOKEN.resource, USER_NAME)
    assert key_matches(from_token(token), key)
    assert key not in str(token)
    assert token["clusterName"] == CLUSTER, "it is good for nothing but this cluster"
    assert (await place.client.get(USER.resource, USER_NAME))["enabled"]
    (binding,) = (await place.client.list(CLUSTER_BINDING.resource, namespace=CLUSTER)).items
    assert (binding["userName"], binding["roleTemplateName"]) == (USER_NAME, "cluster-owner")


async def test_made_again_it_stays_as_it_is(place: Place) -> None:
    first, second = await place.make(), await place.make()
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_it_follows_the_managers_address_with_the_same_token(place: Place) -> None:
    first = await place.make()
    place.flags["server-url"] = "https://elsewhere.example.com"
    second = await place.make()
    assert "https://elsewhere.example.com/" in said(second, "value")
    assert said(second) == said(first)


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
async def test_it_leads_to_where_programs_beside_the_manager_reach_it(
    place: Place, flags: dict[str, str], server: str, authority: str
) -> None:
    place.flags |= flags
    cluster = yaml.safe_load(said(await place.make(), "value"))["clusters"][0]["cluster"]
    assert cluster["server"] == f"{server}/k8s/clusters/{CLUSTER}"
    assert base64.b64decode(cluster.get("certificate-authority-data", "")).decode() == authority


async def test_a_deleted_secret_means_another_token_and_the_old_one_counts_no_more(place: Place) -> None:
    first = await place.make()
    await place.client.delete(SECRET.resource, "demo-kubeconfig", namespace="fleet-default")
    second = await place.make()
    record = from_token(await place.client.get(TOKEN.resource, USER_NAME))
    assert said(first) != said(second)
    assert [key_matches(record, said(each).partition(":")[2]) for each in (first, second)] == [False, True]


async def test_a_token_that_was_taken_away_is_not_given_back(place: Place) -> None:
    await place.make()
    await place.client.delete(TOKEN.resource, USER_NAME)
    await place.make()
    with pytest.raises(NotFound):
        await place.client.get(TOKEN.resource, USER_NAME)


async def test_a_secret_of_somebody_else_is_left_alone(place: Place) -> None:
    foreign = _object(SECRET, "demo-kubeconfig") | {"data": {"value": "eA=="}}
    await place.client.create(SECRET.resource, foreign, namespace="fleet-default")
    with pytest.raises(PermissionError, match="has another owner"):
        await place.make()


@pytest.mark.parametrize(
    ("provisioned", "owned", "refused"), [(False, True, True), (True, False, True), (True, True, False)]
)
async def test_a_cluster_of_that_name_gets_no_kubeconfig_of_another(
    place: Place, provisioned: bool, owned: bool, refused: bool
) -> None:
    """Cluster API connects to a Cluster by the Secret of its name. Who creates one, also with the owner reference of
    ours, must not use a cluster that is imported later under that name."""
    owners = [place.arguments["owner"]] if owned else []
    cluster = _object(CORE_CLUSTER, "demo") | {"spec": {"paused": False}}
    cluster["metadata"]["ownerReferences"] = owners
    await install_kinds(place.client, CORE_CRDS)
    await place.client.create(CORE_CLUSTER.resource, cluster, namespace="fleet-default")
    place.arguments["provisioned"] = provisioned
    if not refused:
        assert said(await place.make())
        return
    with pytest.raises(PermissionError, match=r"Cluster fleet-default/demo of cluster\.x-k8s\.io has another owner"):
        await place.make()


@pytest.mark.parametrize("principals", [[f"local://{USER_NAME}"], ["system://provisioning/fleet-default/other"], None])
async def test_a_user_of_somebody_else_is_left_alone(place: Place, principals: list[str] | None) -> None:
    """Names of users are 50 bits of a digest, and people choose names of clusters: such a User would own the cluster,
    and be deleted with it."""
    person = {**_object(USER, USER_NAME), "username": "polly"} | ({"principalIds": principals} if principals else {})
    before = await place.client.create(USER.resource, person)
    with pytest.raises(PermissionError, match="does not belong to cluster fleet-default/demo"):
        await place.make()
    assert await place.client.get(USER.resource, USER_NAME) == before
    with pytest.raises(NotFound):
        await place.client.get(CLUSTER_BINDING.resource, f"{USER_NAME}-owner", namespace=CLUSTER)
