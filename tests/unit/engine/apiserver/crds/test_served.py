"""Custom resources on a complete server, through its API."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.meta.kinds import Object
from herder.engine.wire import Query, Request, User
from tests.unit.engine.apiserver.crds.samples import NOW, definition

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


class Client:
    def __init__(self, transport: InProcess) -> None:
        self._transport = transport

    async def request(self, method: str, url: str, body: Any = None, **headers: str) -> Object:
        path, _, query = url.partition("?")
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent.setdefault("content-type", "application/json")
        content = msgspec.json.encode(body) if body is not None else b""
        response = await self._transport.send(Request(method, path, Query.parse(query), sent, content))
        if response.stream is not None:
            return {"stream": response.stream}
        decoded: Object = msgspec.json.decode(response.content())
        return decoded

    async def define(self, crd: Object) -> None:
        created = await self.request("POST", DEFINITIONS, crd)
        assert created["kind"] == "CustomResourceDefinition", created
        await self.until(
            lambda found: any(
                c["type"] == "Established" and c["status"] == "True" for c in found["status"]["conditions"] or ()
            )
        )

    async def until(self, holds: Callable[[Object], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds(await self.request("GET", f"{DEFINITIONS}/widgets.example.com")):
                await asyncio.sleep(0)

    async def redefine(self, change: Callable[[Object], None]) -> None:
        crd = await self.request("GET", f"{DEFINITIONS}/widgets.example.com")
        change(crd)
        updated = await self.request("PUT", f"{DEFINITIONS}/widgets.example.com", crd)
        assert updated["kind"] == "CustomResourceDefinition", updated
        for _ in range(20):  # the controller receives it through a watch
            await asyncio.sleep(0)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    server = await assemble(None, clock=lambda: NOW, entropy=os.urandom)
    yield Client(InProcess(server, User("admin", groups=("system:masters",))))
    await server.stop()


def widget(name: str, **spec: Any) -> Object:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


def grow(crd: Object) -> None:
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["added"] = {"type": "string", "default": "new"}
    del spec["replicas"]


async def test_objects_can_be_created_once_the_definition_is_established(client: Client) -> None:
    await client.define(definition(settled=False))
    created_object = await client.request("POST", WIDGETS, widget("a", color="red"))
    assert (created_object["kind"], created_object["spec"]) == ("Widget", {"color": "red", "size": 3})
    assert created_object["metadata"]["generation"] == 1


async def test_a_changed_schema_defaults_and_prunes_stored_objects(client: Client) -> None:
    await client.define(definition(settled=False))
    await client.request("POST", WIDGETS, widget("a", replicas=2))
    await client.redefine(grow)
    expected_spec = {"added": "new", "size": 3}
    assert (await client.request("GET", f"{WIDGETS}/a"))["spec"] == expected_spec
    listed = await client.request("GET", WIDGETS)
    assert [item["spec"] for item in listed["items"]] == [expected_spec]
    stream = (await client.request("GET", f"{WIDGETS}?watch=true&resourceVersion=0"))["stream"]
    event = msgspec.json.decode(await anext(stream))
    assert (event["type"], event["object"]["spec"]) == ("ADDED", expected_spec)
    await stream.aclose()


async def test_a_changed_schema_does_not_increment_the_generation(client: Client) -> None:
    await client.define(definition(settled=False))
    await client.request("POST", WIDGETS, widget("a", replicas=2))
    await client.redefine(grow)
    labelled = {"metadata": {"labels": {"x": "y"}}}
    patched = await client.request("PATCH", f"{WIDGETS}/a", labelled, content_type="application/merge-patch+json")
    assert (patched["spec"], patched["metadata"]["generation"]) == ({"added": "new", "size": 3}, 1)


async def test_another_version_contains_only_its_own_fields(client: Client) -> None:
    crd = definition(settled=False)
    sized = {"type": "object", "properties": {"size": {"type": "integer"}}}
    crd["spec"]["versions"][1]["schema"] = {"openAPIV3Schema": {"type": "object", "properties": {"spec": sized}}}
    await client.define(crd)
    await client.request("POST", WIDGETS, widget("a", color="red"))
    other = await client.request("GET", f"{WIDGETS.replace('v1', 'v1alpha1')}/a")
    assert (other["apiVersion"], other["spec"]) == ("example.com/v1alpha1", {"size": 3})


async def test_a_list_can_be_requested_as_a_table(client: Client) -> None:
    await client.define(definition(settled=False))
    await client.request("POST", WIDGETS, widget("a"))
    table = await client.request("GET", WIDGETS, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert [row["cells"] for row in table["rows"]] == [["a", 3, None, None, "0s"]]


async def test_a_deleted_definition_is_removed_with_its_objects(client: Client) -> None:
    await client.define(definition(settled=False))
    await client.request("POST", WIDGETS, widget("a"))
    deleted = await client.request("DELETE", f"{DEFINITIONS}/widgets.example.com")
    assert deleted["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    await client.until(lambda found: found["kind"] == "Status" and found["code"] == 404)
    await client.define(definition(settled=False))
    assert (await client.request("GET", WIDGETS))["items"] == []


async def test_creates_are_rejected_while_the_definition_terminates(client: Client) -> None:
    await client.define(definition(settled=False))
    held = widget("a")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await client.request("POST", WIDGETS, held)
    await client.request("DELETE", f"{DEFINITIONS}/widgets.example.com")
    for _ in range(20):
        await asyncio.sleep(0)
    rejected = await client.request("POST", WIDGETS, widget("b"))
    assert (rejected["reason"], rejected["message"]) == (
        "Forbidden",
        'widgets.example.com "b" is forbidden: create not allowed while custom resource definition is terminating',
    )
    freed = {"metadata": {"finalizers": None}}
    await client.request("PATCH", f"{WIDGETS}/a", freed, content_type="application/merge-patch+json")
    await client.until(lambda found: found["kind"] == "Status" and found["code"] == 404)


async def test_a_rejected_definition_reports_the_field(client: Client) -> None:
    rejected = await client.request("POST", DEFINITIONS, definition(settled=False, scope="Somewhere"))
    assert rejected["message"] == (
        'CustomResourceDefinition.apiextensions.k8s.io "widgets.example.com" is invalid: spec.scope: Unsupported '
        'value: "Somewhere": supported values: "Cluster", "Namespaced"'
    )
