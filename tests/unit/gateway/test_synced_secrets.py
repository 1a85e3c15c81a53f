"""Bringing a Secret into a cluster: its contents with the cluster's id in them, its type, and nothing twice."""

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
from tests.unit.engine.runtime.far import Far, run

SOURCE, TARGET = {"namespace": "default", "name": "credentials"}, {"namespace": "kube-system", "name": "cpi"}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(place: dict[str, str], type_: str = "Opaque", **data: str) -> Object:
    held = {key: encoded(value) for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": dict(place), "type": type_, "data": held}


async def create(cluster: Far, obj: Object) -> Object:
    return await cluster.there.outside.create(SECRET.resource, obj, namespace=obj["metadata"]["namespace"])


async def uid_of(cluster: Far, place: dict[str, str]) -> str:
    try:
        found = await cluster.there.outside.get(SECRET.resource, place["name"], namespace=place["namespace"])
    except NotFound:
        return "none"
    return str(found["metadata"]["uid"])


async def brought(cluster: Far, uid: str = "") -> Object:
    """The same server is both sides: only the namespaces differ. `uid`: of the Secret that is to be synced, if it is
    not the present one."""
    cluster.ask(Connect("far"))
    await asyncio.sleep(1)
    source = {**SOURCE, "uid": uid or await uid_of(cluster, SOURCE)}
    await SecretSync(cluster.there.outside)(cluster.remotes, {"cluster": "far", "source": source, "target": TARGET})
    return await cluster.there.outside.get(SECRET.resource, TARGET["name"], namespace=TARGET["namespace"])


def test_it_is_made_with_the_cluster_s_id_and_its_type() -> None:
    async def work(cluster: Far) -> None:
        data = {"username": "{{clusterId}}", "password": "id={{clusterId}} {{clusterId}}"}
        await create(cluster, secret(SOURCE, "kubernetes.io/basic-auth", **data))
        there = await brought(cluster)
        assert there["type"] == "kubernetes.io/basic-auth"
        assert there["data"] == {"username": encoded("far"), "password": encoded("id=far far")}
        assert there["metadata"]["annotations"] == {SYNCED_FROM: "default/credentials"}

    run(work)


def test_it_follows_and_is_not_written_where_it_is_the_same() -> None:
    async def work(cluster: Far) -> None:
        known = await create(cluster, secret(SOURCE, hello="world", id="{{clusterId}}"))
        first = await brought(cluster)
        assert (await brought(cluster))["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        await cluster.there.outside.update(SECRET.resource, {**known, "data": {"hello": encoded("you")}})
        assert (await brought(cluster))["data"] == {"hello": encoded("you")}

    run(work)


def test_one_of_another_type_is_not_touched() -> None:
    async def work(cluster: Far) -> None:
        await create(cluster, secret(TARGET, "kubernetes.io/basic-auth", username="a", password="b"))
        await create(cluster, secret(SOURCE, hello="world"))
        with pytest.raises(ValueError, match="would have to be of type Opaque"):
            await brought(cluster)

    run(work)


def test_one_that_is_gone_meanwhile_leaves_the_cluster_as_it_is() -> None:
    async def work(cluster: Far) -> None:
        before: dict[str, Any] = await create(cluster, secret(TARGET, hello="world"))
        assert await brought(cluster) == before

    run(work)


def test_a_secret_of_the_cluster_itself_is_not_overwritten() -> None:
    async def work(cluster: Far) -> None:
        before = await create(cluster, secret(TARGET, hello="mine"))
        await create(cluster, secret(SOURCE, hello="theirs"))
        with pytest.raises(ValueError, match="was not created by Herder"):
            await brought(cluster)
        now = await cluster.there.outside.get(SECRET.resource, TARGET["name"], namespace=TARGET["namespace"])
        assert now == before

    run(work)


@pytest.mark.parametrize("type_", ["bootstrap.kubernetes.io/token", "example.com/anything"])
def test_secrets_that_grant_rights_in_the_cluster_are_not_synced(type_: str) -> None:
    async def work(cluster: Far) -> None:
        await create(cluster, secret(SOURCE, type_, hello="theirs"))
        with pytest.raises(ValueError, match="cannot be synced"):
            await brought(cluster)

    run(work)


def test_a_secret_that_replaced_the_one_to_be_synced_is_not() -> None:
    """An attempt that failed is repeated up to two minutes later. Meanwhile the name can become another user's."""

    async def work(cluster: Far) -> None:
        own = await create(cluster, secret(SOURCE, hello="mine"))
        await cluster.there.outside.delete(SECRET.resource, SOURCE["name"], namespace=SOURCE["namespace"])
        await create(cluster, secret(SOURCE, hello="of another user"))
        with pytest.raises(NotFound):
            await brought(cluster, own["metadata"]["uid"])

    run(work)
