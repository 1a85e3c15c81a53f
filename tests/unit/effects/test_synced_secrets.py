"""Synchronization of a Secret into a cluster: content, cluster ID, type, and no needless writes."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.management.secret_sync import SYNCED_FROM
from herder.effects.synced_secret import SecretSync
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Connect
from herder.engine.runtime.effects import error_text
from tests.support.builders import new_manifest
from tests.unit.engine.runtime.remote.remote_cluster import RemoteCluster, run

SOURCE, TARGET = {"namespace": "default", "name": "credentials"}, {"namespace": "kube-system", "name": "cpi"}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(metadata: dict[str, str], type_: str = "Opaque", **data: str) -> Object:
    encoded_data = {key: encoded(value) for key, value in data.items()}
    return new_manifest(SECRET, metadata["name"], metadata["namespace"], type=type_, data=encoded_data)


async def create(cluster: RemoteCluster, obj: Object) -> Object:
    return await cluster.there.outside.create(SECRET.resource, obj, namespace=obj["metadata"]["namespace"])


async def uid_of(cluster: RemoteCluster, key: dict[str, str]) -> str:
    try:
        found = await cluster.there.outside.get(SECRET.resource, key["name"], namespace=key["namespace"])
    except NotFound:
        return "none"
    return str(found["metadata"]["uid"])


async def sync(cluster: RemoteCluster, uid: str = "") -> Object:
    """Sync the Secret. One server plays both sides, with different namespaces.

    `uid` is that of the Secret to sync, if it is not the present one.
    """
    cluster.ask(Connect("far"))
    await asyncio.sleep(1)
    source = {**SOURCE, "uid": uid or await uid_of(cluster, SOURCE)}
    await SecretSync(cluster.there.outside)(cluster.remotes, {"cluster": "far", "source": source, "target": TARGET})
    return await cluster.there.outside.get(SECRET.resource, TARGET["name"], namespace=TARGET["namespace"])


def test_the_copy_has_the_cluster_id_and_the_type() -> None:
    async def work(cluster: RemoteCluster) -> None:
        data = {"username": "{{clusterId}}", "password": "id={{clusterId}} {{clusterId}}"}
        await create(cluster, secret(SOURCE, "kubernetes.io/basic-auth", **data))
        copy = await sync(cluster)
        assert copy["type"] == "kubernetes.io/basic-auth"
        assert copy["data"] == {"username": encoded("far"), "password": encoded("id=far far")}
        assert copy["metadata"]["annotations"] == {SYNCED_FROM: "default/credentials"}

    run(work)


def test_the_copy_follows_the_source_and_is_written_only_on_change() -> None:
    async def work(cluster: RemoteCluster) -> None:
        source_secret = await create(cluster, secret(SOURCE, hello="world", id="{{clusterId}}"))
        first = await sync(cluster)
        assert (await sync(cluster))["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        await cluster.there.outside.update(SECRET.resource, {**source_secret, "data": {"hello": encoded("you")}})
        assert (await sync(cluster))["data"] == {"hello": encoded("you")}

    run(work)


def test_an_existing_secret_of_another_type_is_not_changed() -> None:
    async def work(cluster: RemoteCluster) -> None:
        await create(cluster, secret(TARGET, "kubernetes.io/basic-auth", username="a", password="b"))
        await create(cluster, secret(SOURCE, hello="world"))
        with pytest.raises(ValueError, match="would have to be of type Opaque") as raised:
            await sync(cluster)
        assert "kubernetes.io/basic-auth" in error_text(raised.value), "conditions report the reason"

    run(work)


def test_a_deleted_source_leaves_the_cluster_unchanged() -> None:
    async def work(cluster: RemoteCluster) -> None:
        before: dict[str, Any] = await create(cluster, secret(TARGET, hello="world"))
        assert await sync(cluster) == before

    run(work)


def test_a_secret_that_herder_did_not_create_is_not_overwritten() -> None:
    async def work(cluster: RemoteCluster) -> None:
        before = await create(cluster, secret(TARGET, hello="mine"))
        await create(cluster, secret(SOURCE, hello="theirs"))
        with pytest.raises(ValueError, match="was not created by Herder") as raised:
            await sync(cluster)
        assert "was not created by Herder" in error_text(raised.value), "conditions report the reason"
        after = await cluster.there.outside.get(SECRET.resource, TARGET["name"], namespace=TARGET["namespace"])
        assert after == before

    run(work)


@pytest.mark.parametrize("type_", ["bootstrap.kubernetes.io/token", "example.com/anything"])
def test_secrets_that_grant_rights_in_the_cluster_are_not_synced(type_: str) -> None:
    async def work(cluster: RemoteCluster) -> None:
        await create(cluster, secret(SOURCE, type_, hello="theirs"))
        with pytest.raises(ValueError, match="cannot be synced"):
            await sync(cluster)

    run(work)


def test_a_secret_that_replaced_the_source_is_not_synced() -> None:
    """A failed attempt is retried up to two minutes later. In the meantime the name can belong to another user."""

    async def work(cluster: RemoteCluster) -> None:
        own = await create(cluster, secret(SOURCE, hello="mine"))
        await cluster.there.outside.delete(SECRET.resource, SOURCE["name"], namespace=SOURCE["namespace"])
        await create(cluster, secret(SOURCE, hello="of another user"))
        with pytest.raises(NotFound):
            await sync(cluster, own["metadata"]["uid"])

    run(work)
