"""Watch: events, order, start and end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.differences import by_engine
from tests.conformance.objects import secret
from tests.support.api import APPLY, Api
from tests.support.engines import Engine

SECRETS = "secrets"


def version_of(obj: Any) -> str:
    return str(obj["metadata"]["resourceVersion"])


async def test_a_watch_without_a_version_starts_with_the_current_state(api: Api) -> None:
    await api.create(SECRETS, secret("a"))
    async with api.watch(api.at(SECRETS)) as events:
        assert await events.take(1) == [("ADDED", "a")]
        await api.create(SECRETS, secret("b"))
        assert await events.take(1) == [("ADDED", "b")]


async def test_a_watch_from_a_version_sends_all_later_events(api: Api) -> None:
    created = await api.create(SECRETS, secret("a"))
    await api.patch(api.at(SECRETS, "a"), {"metadata": {"labels": {"x": "1"}}})
    await api.create(SECRETS, secret("b"))
    await api.delete(api.at(SECRETS, "a"))
    async with api.watch(api.at(SECRETS) + f"?resourceVersion={version_of(created)}") as events:
        assert await events.take(3) == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]


async def test_a_watch_from_version_zero_starts_with_the_current_state(api: Api) -> None:
    await api.create(SECRETS, secret("a"))
    async with api.watch(api.at(SECRETS) + "?resourceVersion=0") as events:
        assert await events.take(1) == [("ADDED", "a")]


async def test_a_watch_from_the_version_of_a_list_misses_and_repeats_nothing(api: Api) -> None:
    await api.create(SECRETS, secret("a"))
    listed = await api.read(api.at(SECRETS))
    await api.create(SECRETS, secret("b"))
    async with api.watch(api.at(SECRETS) + f"?resourceVersion={version_of(listed)}") as events:
        assert await events.take(1) == [("ADDED", "b")]


async def test_deleted_events_have_the_last_state_and_the_deletion_version(api: Api) -> None:
    created = await api.create(SECRETS, secret("a", key="value"))
    await api.delete(api.at(SECRETS, "a"))
    async with api.watch(api.at(SECRETS) + f"?resourceVersion={version_of(created)}") as events:
        event = await events.next()
    assert event["type"] == "DELETED"
    assert event["object"]["data"] == created["data"]
    assert int(version_of(event["object"])) > int(version_of(created))


async def test_events_carry_kind_and_version(api: Api) -> None:
    await api.create(SECRETS, secret("a"))
    async with api.watch(api.at(SECRETS)) as events:
        event = await events.next()
    assert (event["object"]["kind"], event["object"]["apiVersion"]) == ("Secret", "v1")


async def test_one_object_is_watched_by_its_name(api: Api) -> None:
    await api.create(SECRETS, secret("a"))
    await api.create(SECRETS, secret("b"))
    async with api.watch(api.at(SECRETS) + "?fieldSelector=metadata.name%3Db") as events:
        assert await events.take(1) == [("ADDED", "b")]
        await api.patch(api.at(SECRETS, "a"), {"metadata": {"labels": {"x": "1"}}})
        await api.patch(api.at(SECRETS, "b"), {"metadata": {"labels": {"x": "1"}}})
        assert await events.take(1) == [("MODIFIED", "b")]


async def test_the_deprecated_watch_path_of_one_object(api: Api) -> None:
    await api.create(SECRETS, secret("a"))
    await api.create(SECRETS, secret("b"))
    async with api.watch(f"/api/v1/watch/namespaces/{api.namespace}/secrets/b") as events:
        assert await events.take(1) == [("ADDED", "b")]


async def test_the_deprecated_watch_path_of_a_collection(api: Api) -> None:
    await api.create(SECRETS, secret("a"))
    async with api.watch(f"/api/v1/watch/namespaces/{api.namespace}/secrets") as events:
        assert await events.take(1) == [("ADDED", "a")]


async def test_selected_watches_report_objects_that_start_or_stop_matching(api: Api) -> None:
    created = await api.create(SECRETS, secret("a", labels={"color": "red"}))
    await api.patch(api.at(SECRETS, "a"), {"metadata": {"labels": {"color": "blue"}}})
    await api.patch(api.at(SECRETS, "a"), {"metadata": {"labels": {"color": "blue", "n": "1"}}})
    await api.patch(api.at(SECRETS, "a"), {"metadata": {"labels": {"color": "red"}}})
    await api.delete(api.at(SECRETS, "a"))
    query = f"?labelSelector=color%3Dred&resourceVersion={version_of(created)}"
    async with api.watch(api.at(SECRETS) + query) as events:
        left = await events.next()
        assert left["type"] == "DELETED"
        assert left["object"]["metadata"]["labels"]["color"] == "red"  # as last selected
        assert await events.take(2) == [("ADDED", "a"), ("DELETED", "a")]


async def test_selectable_fields_select_events_of_custom_resources(api: Api, widgets: Widgets) -> None:
    created = await api.create(widgets.resource, widgets.named("a", {"color": "red"}))
    await api.create(widgets.resource, widgets.named("b", {"color": "blue"}))
    await api.patch(api.at(widgets.resource, "a"), {"spec": {"color": "green"}})
    query = f"?fieldSelector=spec.color%3Dred&resourceVersion={version_of(created)}"
    async with api.watch(api.at(widgets.resource) + query) as events:
        assert await events.take(1) == [("DELETED", "a")]


async def test_a_watch_ends_after_its_timeout(api: Api) -> None:
    await api.create(SECRETS, secret("a"))
    async with api.watch(api.at(SECRETS) + "?timeoutSeconds=1") as events:
        assert [event["type"] for event in await events.rest()] == ["ADDED"]


async def test_a_watch_with_bookmarks_ends_with_one(api: Api) -> None:
    created = await api.create(SECRETS, secret("a"))
    query = f"?timeoutSeconds=4&allowWatchBookmarks=true&resourceVersion={version_of(created)}"
    async with api.watch(api.at(SECRETS) + query) as events:
        await api.create(SECRETS, secret("b"))
        seen = await events.rest()
    assert [event["type"] for event in seen if event["type"] != "BOOKMARK"] == ["ADDED"]
    bookmarks = [event["object"] for event in seen if event["type"] == "BOOKMARK"]
    assert bookmarks
    assert {mark["kind"] for mark in bookmarks} == {"Secret"}
    assert int(version_of(bookmarks[-1])) >= int(version_of(seen[0]["object"]))
    assert set(bookmarks[-1]["metadata"]) == {"resourceVersion"}


async def test_initial_events_end_with_a_marked_bookmark(api: Api) -> None:
    await api.create(SECRETS, secret("a"))
    await api.create(SECRETS, secret("b"))
    query = "?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with api.watch(api.at(SECRETS) + query) as events:
        assert sorted(await events.take(2)) == [("ADDED", "a"), ("ADDED", "b")]
        mark = await events.next()
        assert mark["type"] == "BOOKMARK"
        assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await api.create(SECRETS, secret("c"))
        assert await events.take(1) == [("ADDED", "c")]


async def test_initial_events_may_be_declined(api: Api) -> None:
    created = await api.create(SECRETS, secret("a"))
    query = f"?sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion={version_of(created)}"
    async with api.watch(api.at(SECRETS) + query) as events:
        await api.create(SECRETS, secret("b"))
        assert await events.take(1) == [("ADDED", "b")]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("sendInitialEvents=true", "resourceVersionMatch: Forbidden: sendInitialEvents requires setting"),
        (
            "sendInitialEvents=true&resourceVersionMatch=Exact",
            'resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"',
        ),
        (
            "resourceVersion=1&resourceVersionMatch=NotOlderThan",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents",
        ),
    ],
)
async def test_invalid_combinations_of_watch_options_are_rejected(api: Api, query: str, field: str) -> None:
    answer = await api.get(api.at(SECRETS) + f"?watch=true&{query}")
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert field in answer.message


async def test_a_watch_from_an_invalid_version_is_rejected(engine: Engine, api: Api) -> None:
    answer = await api.get(api.at(SECRETS) + "?watch=true&resourceVersion=abc")
    assert answer.status == by_engine(engine, "watch-from-no-version", real=500, embedded=400)
    message = 'resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax'
    assert answer.message == message


async def test_a_watch_from_before_the_retained_history_expires(engine: Engine, api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a"))
    async with api.watch(api.at(widgets.resource) + "?resourceVersion=1") as events:
        event = await events.next()
    assert event["type"] == by_engine(engine, "history-is-kept", real="ERROR", embedded="ADDED")
    if event["type"] == "ADDED":
        return
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"].startswith("too old resource version: 1 (")


async def test_a_watch_can_return_metadata_only(api: Api) -> None:
    await api.create(SECRETS, secret("a", labels={"x": "1"}, key="hidden"))
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    async with api.watch(api.at(SECRETS), accept=accept) as events:
        event = await events.next()
    assert event["type"] == "ADDED"
    assert (event["object"]["kind"], event["object"]["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert event["object"]["metadata"]["labels"] == {"x": "1"}
    assert "data" not in event["object"]


async def test_a_watch_of_tables_sends_columns_once(api: Api) -> None:
    await api.create(SECRETS, secret("a", key="v"))
    accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
    async with api.watch(api.at(SECRETS), accept=accept) as events:
        first = await events.next()
        await api.create(SECRETS, secret("b"))
        second = await events.next()
    assert [column["name"] for column in first["object"]["columnDefinitions"]] == ["Name", "Type", "Data", "Age"]
    assert first["object"]["rows"][0]["cells"][:3] == ["a", "Opaque", 1]
    assert second["object"]["columnDefinitions"] in (None, [])
    assert second["object"]["rows"][0]["cells"][:3] == ["b", "Opaque", 0]


async def test_a_no_op_write_sends_no_event(api: Api) -> None:
    created = await api.create(SECRETS, secret("a", labels={"x": "1"}))
    again = await api.patch(api.at(SECRETS, "a"), {"metadata": {"labels": {"x": "1"}}})
    assert version_of(again.expect(200)) == version_of(created)
    await api.create(SECRETS, secret("b"))
    async with api.watch(api.at(SECRETS) + f"?resourceVersion={version_of(created)}") as events:
        assert await events.take(1) == [("ADDED", "b")]


async def test_a_finalizer_turns_deletion_into_a_modification_first(api: Api) -> None:
    obj = secret("a")
    obj["metadata"]["finalizers"] = ["example.com/hold"]
    created = await api.create(SECRETS, obj)
    await api.delete(api.at(SECRETS, "a"))
    await api.patch(api.at(SECRETS, "a"), {"metadata": {"finalizers": None}})
    async with api.watch(api.at(SECRETS) + f"?resourceVersion={version_of(created)}") as events:
        assert await events.take(2) == [("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_over_all_namespaces_sees_each_of_them(api: Api) -> None:
    other = await api.in_new_namespace()
    label = {"of": api.namespace}
    query = f"?labelSelector=of%3D{api.namespace}"
    async with api.watch(api.cluster(SECRETS) + query) as events:
        await api.create(SECRETS, secret("a", labels=label))
        await other.create(SECRETS, secret("b", labels=label))
        assert await events.take(2) == [("ADDED", "a"), ("ADDED", "b")]


async def test_many_watchers_see_the_same_events_in_the_same_order(api: Api) -> None:
    start = version_of(await api.read(api.at(SECRETS)))

    async def follow() -> list[tuple[str, str]]:
        async with api.watch(api.at(SECRETS) + f"?resourceVersion={start}") as events:
            return await events.take(20)

    async with asyncio.TaskGroup() as group:
        watchers = [group.create_task(follow()) for _ in range(5)]
        for number in range(10):
            await api.create(SECRETS, secret(f"s{number}"))
        for number in range(10):
            await api.delete(api.at(SECRETS, f"s{number}"))
    seen = [watcher.result() for watcher in watchers]
    assert all(each == seen[0] for each in seen)
    assert seen[0] == [("ADDED", f"s{n}") for n in range(10)] + [("DELETED", f"s{n}") for n in range(10)]


async def test_server_side_apply_sends_events(api: Api) -> None:
    created = await api.create(SECRETS, secret("a"))
    url = api.at(SECRETS, "b") + "?fieldManager=me"
    (await api.send("PATCH", url, secret("b"), content_type=APPLY)).expect(201)
    async with api.watch(api.at(SECRETS) + f"?resourceVersion={version_of(created)}") as events:
        assert await events.take(1) == [("ADDED", "b")]


async def test_kinds_that_are_not_stored_cannot_be_watched(api: Api) -> None:
    answer = await api.get("/apis/authorization.k8s.io/v1/subjectaccessreviews?watch=true")
    assert (answer.status, answer.reason) == (405, "MethodNotAllowed")
