from __future__ import annotations

from dataclasses import replace

import pytest

from herder.engine.apiserver.registry.resources import Subresource
from herder.engine.apiserver.request.handler_call import SubresourceRequest
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object
from herder.engine.wire import Response
from tests.unit.engine.apiserver.api import Api, config_map

KIND = GroupVersionKind("", "v1", "ConfigMap")


async def touch(call: SubresourceRequest) -> Object | Response:
    parent = call.parent_or_404()
    if call.verb == "get":
        return Response(200, {"content-type": "text/plain"}, "/".join(call.path).encode())
    if call.verb == "delete":
        return await call.delete({"gracePeriodSeconds": 0})
    assert call.body is not None

    def change(obj: Object) -> None:
        obj.setdefault("data", {})["by"] = call.user.name

    changed = await call.update(change)
    assert call.lookup(GroupResource("", "configmaps"), call.namespace, call.name) is not None
    return {"kind": "Touched", "metadata": {"name": parent["metadata"]["name"]}, "data": changed["data"]}


@pytest.fixture
async def url(api: Api) -> str:
    registry = api.server.deps.registry
    resource = registry.get(GroupResource("", "configmaps"))
    assert resource is not None
    handler = Subresource("touch", KIND, ("get", "create", "delete"), touch)
    registry.add(replace(resource, subresources={"touch": handler}))
    await api.post(api.path("configmaps"), config_map("a"))
    return api.path("configmaps", "a", sub="touch")


async def test_a_handler_changes_its_parent(api: Api, url: str) -> None:
    touched = await api.post(url, {})
    assert (touched.status, touched.body["data"]) == (201, {"by": "admin"})
    assert (await api.get(api.path("configmaps", "a"))).body["data"] == {"by": "admin"}


async def test_a_handler_may_return_its_own_response(api: Api, url: str) -> None:
    assert (await api.get(f"{url}/x/y")).body == b"x/y"


async def test_a_handler_may_delete_its_parent(api: Api, url: str) -> None:
    assert (await api.delete(url)).status == 200
    assert (await api.get(api.path("configmaps", "a"))).status == 404


async def test_unknown_verbs_and_missing_parents_are_rejected(api: Api, url: str) -> None:
    assert (await api.put(url, {})).status == 405
    assert (await api.post(url.replace("/a/", "/none/"), {})).status == 404
    assert (await api.get(url.replace("touch", "unheard"))).status == 404
