"""The client returns the same objects, errors and streams over any transport and on both engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from herder.engine.client.client import READ_ATTEMPTS, Client
from herder.engine.client.discovery import all_resources, find_resource
from herder.engine.meta.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    Invalid,
    NotFound,
    ServiceUnavailable,
    StatusError,
    TooManyRequests,
)
from herder.engine.meta.kinds import GroupVersionResource
from herder.engine.wire import Request, Response
from tests.support.api import Api

CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")


class CannedTransport:
    """A transport that returns the given responses in order."""

    def __init__(self, *answers: Response) -> None:
        self._answers = list(answers)
        self.requests: list[Request] = []

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        return self._answers.pop(0)

    async def close(self) -> None: ...


async def test_an_object_is_created_updated_and_deleted(client: Client, api: Api) -> None:
    created = await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "1"}}, namespace=api.namespace)
    assert created["metadata"]["managedFields"][0]["manager"] == "tester"
    with pytest.raises(AlreadyExists):
        await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=api.namespace)
    updated = await client.update(CONFIG_MAPS, created | {"data": {"x": "2"}})
    with pytest.raises(Conflict):
        await client.update(CONFIG_MAPS, created | {"data": {"x": "3"}})
    assert (await client.get(CONFIG_MAPS, "a", namespace=api.namespace))["data"] == updated["data"]
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "a", namespace=api.namespace, uid="another")
    await client.delete(CONFIG_MAPS, "a", namespace=api.namespace, uid=created["metadata"]["uid"])
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "a", namespace=api.namespace)
    with pytest.raises(Invalid, match=r"metadata\.name"):
        await client.create(CONFIG_MAPS, {"metadata": {"name": "No"}}, namespace=api.namespace)


async def test_applying_merges_and_conflicts(client: Client, api: Api) -> None:
    def wanted(value: str) -> dict[str, object]:
        meta = {"name": "a", "namespace": api.namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"x": value}}

    await client.apply(CONFIG_MAPS, wanted("1"), field_manager="one")
    with pytest.raises(Conflict, match='conflict with "one"'):
        await client.apply(CONFIG_MAPS, wanted("2"), field_manager="two", force=False)
    tried = await client.apply(CONFIG_MAPS, wanted("2"), field_manager="two", dry_run=True)
    assert tried["data"] == {"x": "2"}
    assert (await client.get(CONFIG_MAPS, "a", namespace=api.namespace))["data"] == {"x": "1"}


async def test_lists_are_paged_and_items_have_a_kind(client: Client, api: Api) -> None:
    for number in range(5):
        await api.create("configmaps", {"metadata": {"name": f"a{number}", "labels": {"own": "1"}}})
    page = await client.list_all(CONFIG_MAPS, namespace=api.namespace, labels="own=1", page_size=2)
    assert [item["metadata"]["name"] for item in page.items] == [f"a{n}" for n in range(5)]
    assert {(item["apiVersion"], item["kind"]) for item in page.items} == {("v1", "ConfigMap")}


async def test_a_list_that_expires_between_pages_is_read_without_paging() -> None:
    def page(*names: str, token: str = "") -> Response:
        items = [{"metadata": {"name": name}} for name in names]
        meta = {"resourceVersion": "7", "continue": token}
        body = {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": meta, "items": items}
        return Response(200, body=json.dumps(body).encode())

    gone = Response(410, body=json.dumps(Expired("too old").to_status()).encode())
    found = await Client(CannedTransport(page("a", token="next"), gone, page("a", "b"))).list_all(CONFIG_MAPS)
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b"]


async def test_a_cancelled_watch_releases_its_connection(client: Client, api: Api) -> None:
    opened = asyncio.Event()
    async with aclosing(
        client.watch(CONFIG_MAPS, namespace=api.namespace, initial_events=True, opened=opened.set)
    ) as events:
        await anext(events)
        assert opened.is_set()
    session = client.transport._session  # type: ignore[attr-defined]
    assert not session.connector._acquired


async def test_a_watch_ends_when_the_server_closes_it(client: Client, api: Api) -> None:
    events = client.watch(CONFIG_MAPS, namespace=api.namespace, initial_events=True, timeout_seconds=1)
    assert "BOOKMARK" in [event.type async for event in events]


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (502, b"<html>bad gateway</html>", StatusError, "bad gateway"),
        (503, b"", ServiceUnavailable, "server responded with HTTP 503"),
        (404, b"404 page not found", NotFound, "404 page not found"),
        (200, b"<html>sign in</html>", ServiceUnavailable, "response is not a Kubernetes object: <html>sign in"),
        (200, b"[]", ServiceUnavailable, "is not a Kubernetes object"),
        (302, b"", ServiceUnavailable, "is not a Kubernetes object"),
    ],
)
async def test_responses_of_an_intermediary_are_reported_as_errors(
    status: int, body: bytes, kind: type[StatusError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        await Client(CannedTransport(Response(status, body=body))).get(CONFIG_MAPS, "a")


@pytest.mark.parametrize("between", ["", "\n"])
async def test_events_may_be_indented_and_follow_each_other_without_a_separator(between: str) -> None:
    events = [{"type": "ADDED", "object": {"metadata": {"name": name, "labels": {}}}} for name in "abc"]
    spread = between.join(json.dumps(event, indent=1) for event in events)

    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(spread), 7):
            yield spread[start : start + 7].encode()

    answer = Response(200, stream=stream())
    seen = [event.object["metadata"]["name"] async for event in Client(CannedTransport(answer)).watch(CONFIG_MAPS)]
    assert seen == ["a", "b", "c"]


async def test_stream_lines_are_reassembled_from_any_chunks() -> None:
    async def stream() -> AsyncIterator[bytes]:
        whole = b"".join(
            json.dumps({"type": "ADDED", "object": {"metadata": {"name": name}}}).encode() + b"\n" for name in "abc"
        )
        for byte in whole:
            yield bytes([byte])
        yield b'{"type":"ADD'

    events = Client(CannedTransport(Response(200, stream=stream()))).watch(CONFIG_MAPS)
    assert [event.object["metadata"]["name"] async for event in events] == ["a", "b", "c"]


async def test_resources_are_found_by_plural_singular_kind_or_short_name(client: Client) -> None:
    for word in ("configmaps", "configmap", "cm", "ConfigMap"):
        assert (await find_resource(client, word)).resource == CONFIG_MAPS
    for word in ("deploy", "deployments.apps", "deployments.v1.apps"):
        assert (await find_resource(client, word)).resource == GroupVersionResource("apps", "v1", "deployments")
    events = {prefer: (await find_resource(client, "events", prefer=prefer)).resource.group for prefer in ("", "apps")}
    assert events == {"": "", "apps": ""}
    assert (await find_resource(client, "events", prefer="events.k8s.io")).resource.group == "events.k8s.io"
    for word in ("deployments.batch", "nonsense", ""):
        with pytest.raises(NotFound, match="the server does not have a resource type"):
            await find_resource(client, word)
    found = {found.resource.resource for found, _ in await all_resources(client)}
    assert {"pods", "leases", "customresourcedefinitions"} <= found


async def test_a_throttled_read_is_retried_and_a_throttled_write_is_not() -> None:
    later = Response(429, {"retry-after": "0"}, b'{"kind": "Status", "message": "storage is (re)initializing"}')
    reading = CannedTransport(later, later, Response(200, {}, b'{"kind": "ConfigMap"}'))
    assert (await Client(reading).get(CONFIG_MAPS, "a", namespace="x"))["kind"] == "ConfigMap"
    endless = CannedTransport(*[later] * READ_ATTEMPTS)
    with pytest.raises(TooManyRequests):
        await Client(endless).get(CONFIG_MAPS, "a", namespace="x")
    writing = CannedTransport(later)
    with pytest.raises(TooManyRequests):
        await Client(writing).create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="x")
