"""Permissions on a name do not reveal an earlier object of that name, which may have belonged to another user."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest

from tests.unit.engine.apiserver.api import Api

RBAC = "rbac.authorization.k8s.io"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(value: str) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "stringData": {"key": value}}


async def grant(api: Api, user: str, **names: list[str]) -> Api:
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"], **names}]
    await api.post(api.path("roles", group=RBAC), {"metadata": {"name": user}, "rules": rules})
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": user},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    await api.post(api.path("rolebindings", group=RBAC), binding)
    return api.as_user(user)


@pytest.fixture
async def before(api: Api) -> int:
    """Revision of a Secret that was deleted and created again since, with other contents."""
    created = await api.post(api.path("secrets"), secret("theirs"))
    await api.delete(api.path("secrets", "a"))
    await api.post(api.path("secrets"), secret("mine"))
    return int(created.body["metadata"]["resourceVersion"])


async def seen(who: Api, query: str) -> list[tuple[str, Any]]:
    response = await who.send("GET", f"{who.path('secrets')}?fieldSelector=metadata.name%3Da&{query}")
    assert response.stream is not None
    lines = b"".join([chunk async for chunk in response.stream]).splitlines()
    events = [msgspec.json.decode(line) for line in lines]
    return [(event["type"], event["object"].get("reason") or event["object"]["data"]["key"]) for event in events]


async def test_a_list_at_an_old_revision_hides_earlier_objects(api: Api, before: int) -> None:
    query = f"?fieldSelector=metadata.name%3Da&resourceVersion={before}&resourceVersionMatch=Exact"
    named, all_ = await grant(api, "nora", resourceNames=["a"]), await grant(api, "owen")
    assert (await named.get(named.path("secrets") + query)).body["items"] == []
    assert len((await all_.get(all_.path("secrets") + query)).body["items"]) == 1


async def test_a_watch_from_an_old_revision_hides_earlier_objects(api: Api, before: int) -> None:
    named, all_ = await grant(api, "nora", resourceNames=["a"]), await grant(api, "owen")
    query = f"watch=1&timeoutSeconds=1&resourceVersion={before - 1}"
    assert await seen(named, query) == [("ERROR", "Expired")]
    assert [kind for kind, _ in await seen(all_, query)] == ["ADDED", "DELETED", "ADDED"]


async def test_a_watch_replays_old_revisions_of_the_same_object(api: Api, before: int) -> None:
    """Clients resume watches like this after a disconnect."""
    named = await grant(api, "nora", resourceNames=["a"])
    created = (await api.get(api.path("secrets", "a"))).body["metadata"]["resourceVersion"]
    await api.patch(api.path("secrets", "a"), {"stringData": {"key": "changed"}})
    query = f"watch=1&timeoutSeconds=1&resourceVersion={created}"
    assert [kind for kind, _ in await seen(named, query)] == ["MODIFIED"]


async def test_a_watch_ends_with_its_object(api: Api, before: int) -> None:
    """The next object of the name may be another user's."""
    named, all_ = await grant(api, "nora", resourceNames=["a"]), await grant(api, "owen")
    watches = [asyncio.ensure_future(seen(who, "watch=1&timeoutSeconds=2")) for who in (named, all_)]
    await asyncio.sleep(0.1)
    await api.delete(api.path("secrets", "a"))
    await api.post(api.path("secrets"), secret("of another user"))
    added, deleted = ("ADDED", encoded("mine")), ("DELETED", encoded("mine"))
    assert await asyncio.gather(*watches) == [[added, deleted], [added, deleted, ("ADDED", encoded("of another user"))]]


# --- of a namespace -----------------------------------------------------------------------------------------------


@pytest.fixture
async def earlier(api: Api) -> int:
    """Revision of a Secret in an earlier namespace of the same name."""
    created = await api.post(api.path("secrets"), secret("theirs"))
    await api.delete(api.path("secrets", "a"))
    place = f"/api/v1/namespaces/{api.namespace}"
    await api.delete(place)
    await api.put(f"{place}/finalize", (await api.get(place)).body | {"spec": {"finalizers": []}})
    assert (await api.post("/api/v1/namespaces", {"metadata": {"name": api.namespace}})).status == 201
    return int(created.body["metadata"]["resourceVersion"])


async def test_permissions_in_a_namespace_hide_an_earlier_namespace(api: Api, earlier: int) -> None:
    member, url = await grant(api, "nora"), api.path("secrets")
    exact = f"{url}?resourceVersion={earlier}&resourceVersionMatch=Exact"
    assert ((await member.get(exact)).status, len((await api.get(exact)).body["items"])) == (410, 1)
    assert await seen(member, f"watch=1&timeoutSeconds=1&resourceVersion={earlier - 1}") == [("ERROR", "Expired")]
    assert (await member.get(url)).body["items"] == []


async def test_a_watch_ends_with_its_namespace(api: Api) -> None:
    """The next namespace of the name may be another user's."""
    member = await grant(api, "nora")
    watches = [asyncio.ensure_future(seen(who, "watch=1&timeoutSeconds=2")) for who in (member, api)]
    await asyncio.sleep(0.1)
    place = f"/api/v1/namespaces/{api.namespace}"
    await api.delete(place)
    await api.put(f"{place}/finalize", (await api.get(place)).body | {"spec": {"finalizers": []}})
    assert (await api.post("/api/v1/namespaces", {"metadata": {"name": api.namespace}})).status == 201
    await api.post(api.path("secrets"), secret("of another user"))
    assert await asyncio.gather(*watches) == [[], [("ADDED", encoded("of another user"))]]


# --- of former users ----------------------------------------------------------------------------------------------


async def test_a_watch_ends_with_the_permission(api: Api) -> None:
    former, member = await grant(api, "nora"), await grant(api, "owen")
    watches = [asyncio.ensure_future(seen(who, "watch=1&timeoutSeconds=2")) for who in (former, member)]
    await asyncio.sleep(0.1)
    await api.delete(api.path("rolebindings", "nora", group=RBAC))
    await api.post(api.path("secrets"), secret("later"))
    assert await asyncio.gather(*watches) == [[], [("ADDED", encoded("later"))]]


async def test_a_watch_of_a_collection_does_not_continue_by_a_permission_on_the_name(api: Api) -> None:
    """Otherwise it would show the next object of that name."""
    who = await grant(api, "nora")
    watch = asyncio.ensure_future(seen(who, "watch=1&timeoutSeconds=2"))
    await asyncio.sleep(0.1)
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["watch"], "resourceNames": ["a"]}]
    await api.patch(api.path("roles", "nora", group=RBAC), {"rules": rules})
    await api.post(api.path("secrets"), secret("later"))
    assert await watch == []


async def test_a_watch_continues_after_other_changes_of_the_policy(api: Api) -> None:
    who = await grant(api, "nora", resourceNames=["a"])
    watch = asyncio.ensure_future(seen(who, "watch=1&timeoutSeconds=2"))
    await asyncio.sleep(0.1)
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["watch", "get"]}]
    await api.patch(api.path("roles", "nora", group=RBAC), {"rules": rules})
    await grant(api, "owen")
    await api.post(api.path("secrets"), secret("later"))
    assert await watch == [("ADDED", encoded("later"))]
