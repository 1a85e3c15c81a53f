from __future__ import annotations

import asyncio

import pytest

from tests.unit.engine.apiserver.api import Api

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def secret(name: str, **labels: str) -> dict:
    return {"metadata": {"name": name, "labels": labels}}


async def revision(api: Api) -> str:
    return str((await api.get(api.path("secrets"))).body["metadata"]["resourceVersion"])


async def test_events_are_ordered(api: Api) -> None:
    url = api.path("secrets")
    watch = await api.watch(f"{url}?watch=true&resourceVersion={await revision(api)}")
    await api.post(url, secret("a"))
    await api.patch(f"{url}/a", {"metadata": {"labels": {"x": "y"}}})
    await api.post(url, secret("b"))
    await api.delete(f"{url}/a")
    assert await watch.take(4) == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    await watch.close()


async def test_a_delete_event_has_its_own_resource_version(api: Api) -> None:
    url = api.path("secrets")
    await api.post(url, secret("a"))
    watch = await api.watch(f"{url}?watch=true&resourceVersion={await revision(api)}")
    await api.delete(f"{url}/a")
    event = await watch.next()
    assert event["object"]["metadata"]["resourceVersion"] == str(api.server.deps.store.revision)
    await watch.close()


@pytest.mark.parametrize("query", ["watch=true", "watch=true&resourceVersion=0"])
async def test_without_a_resource_version_a_watch_starts_with_existing_objects(api: Api, query: str) -> None:
    url = api.path("secrets")
    await api.post(url, secret("a"))
    watch = await api.watch(f"{url}?{query}")
    await api.post(url, secret("b"))
    assert await watch.take(2) == [("ADDED", "a"), ("ADDED", "b")]
    await watch.close()


async def test_a_watch_resumes_exactly(api: Api) -> None:
    url = api.path("secrets")
    start = await revision(api)
    for name in ("a", "b", "c"):
        await api.post(url, secret(name))
    watch = await api.watch(f"{url}?watch=true&resourceVersion={start}")
    first = await watch.next()
    await watch.close()
    seen = first["object"]["metadata"]["resourceVersion"]
    watch = await api.watch(f"{url}?watch=true&resourceVersion={seen}")
    assert await watch.take(2) == [("ADDED", "b"), ("ADDED", "c")]
    await watch.close()


async def test_events_reflect_selector_changes(api: Api) -> None:
    url = api.path("secrets")
    watch = await api.watch(f"{url}?watch=true&resourceVersion={await revision(api)}&labelSelector=x%3Dy")
    await api.post(url, secret("a"))
    await api.patch(f"{url}/a", {"metadata": {"labels": {"x": "y"}}})
    await api.patch(f"{url}/a", {"metadata": {"labels": {"z": "1"}}})
    left = await api.patch(f"{url}/a", {"metadata": {"labels": {"x": "n"}}})
    await api.delete(f"{url}/a")
    await api.post(url, secret("b", x="y"))
    assert await watch.take(2) == [("ADDED", "a"), ("MODIFIED", "a")]
    gone = await watch.next()
    assert gone["type"] == "DELETED"
    assert gone["object"]["metadata"]["labels"] == {"x": "y", "z": "1"}
    assert gone["object"]["metadata"]["resourceVersion"] == left.body["metadata"]["resourceVersion"]
    assert await watch.take(1) == [("ADDED", "b")]
    await watch.close()


async def test_one_object_can_be_watched_by_name(api: Api) -> None:
    url = api.path("secrets")
    watch = await api.watch(f"{url}?watch=true&fieldSelector=metadata.name%3Db")
    old_style = await api.watch(f"/api/v1/watch/namespaces/{api.namespace}/secrets/b")
    await api.post(url, secret("a"))
    await api.post(url, secret("b"))
    for each in (watch, old_style):
        assert await each.take(1) == [("ADDED", "b")]
        await each.close()


async def test_a_watch_list_ends_the_initial_events_with_a_bookmark(api: Api) -> None:
    url = api.path("secrets")
    await api.post(url, secret("a"))
    options = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    watch = await api.watch(f"{url}?watch=true&{options}")
    assert await watch.take(1) == [("ADDED", "a")]
    bookmark = await watch.next()
    assert bookmark == {
        "type": "BOOKMARK",
        "object": {
            "kind": "Secret",
            "apiVersion": "v1",
            "metadata": {
                "resourceVersion": str(api.server.deps.store.revision),
                "annotations": {"k8s.io/initial-events-end": "true"},
            },
        },
    }
    await watch.close()


async def test_initial_events_can_be_skipped(api: Api) -> None:
    url = api.path("secrets")
    await api.post(url, secret("a"))
    watch = await api.watch(f"{url}?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
    await api.post(url, secret("b"))
    assert await watch.take(1) == [("ADDED", "b")]
    await watch.close()


async def test_a_watch_times_out_with_a_bookmark_if_allowed(api: Api) -> None:
    start = await revision(api)
    watch = await api.watch(
        f"{api.path('secrets')}?watch=true&resourceVersion={start}&timeoutSeconds=1&allowWatchBookmarks=true"
    )
    await api.post(api.path("configmaps"), {"metadata": {"name": "elsewhere"}})
    (event,) = await watch.rest()
    assert event["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["resourceVersion"] == str(api.server.deps.store.revision)


async def test_a_compacted_revision_is_expired_inside_the_stream(api: Api) -> None:
    url = api.path("secrets")
    start = await revision(api)
    await api.post(url, secret("a"))
    await api.server.deps.store.compact(api.server.deps.store.revision)
    watch = await api.watch(f"{url}?watch=true&resourceVersion={start}")
    (event,) = await watch.rest()
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_only_the_first_table_event_has_columns(api: Api) -> None:
    url = api.path("secrets")
    response = await api.send("GET", f"{url}?watch=true&resourceVersion={await revision(api)}", accept=TABLE)
    from tests.unit.engine.apiserver.api import Watching

    assert response.stream is not None
    watch = Watching(response.stream)
    await api.post(url, secret("a"))
    await api.post(url, secret("b"))
    first, second = await watch.next(), await watch.next()
    assert first["object"]["kind"] == second["object"]["kind"] == "Table"
    assert first["object"]["columnDefinitions"]
    assert not second["object"].get("columnDefinitions")
    assert second["object"]["rows"][0]["cells"][0] == "b"
    await watch.close()


async def test_all_namespaces_can_be_watched(api: Api) -> None:
    watch = await api.watch(f"/api/v1/secrets?watch=true&resourceVersion={await revision(api)}")
    await api.post(api.path("secrets"), secret("a"))
    assert await watch.take(1) == [("ADDED", "a")]
    await watch.close()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("resourceVersion=x", 400),
        ("timeoutSeconds=x", 400),
        ("sendInitialEvents=true", 422),
        ("resourceVersionMatch=NotOlderThan", 422),
    ],
)
async def test_invalid_options_are_rejected(api: Api, query: str, status: int) -> None:
    assert (await api.get(f"{api.path('secrets')}?watch=true&{query}")).status == status


async def test_watches_end_when_the_server_stops() -> None:
    from tests.unit.engine.apiserver.api import start

    server, clock = await start()
    watch = await Api(server, clock).watch("/api/v1/namespaces?watch=true&resourceVersion=1")
    reading = asyncio.ensure_future(watch.rest())
    await asyncio.sleep(0)
    await server.stop()
    async with asyncio.timeout(5):
        await reading
