from __future__ import annotations

import gzip

import msgspec
import pytest

from tests.unit.engine.apiserver.api import Api, widget

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@pytest.fixture
async def secrets(api: Api) -> str:
    url = api.path("secrets")
    for name in ("c", "a", "d", "b"):
        labels = {"vowel": str(name in "aeiou").lower()}
        created = await api.post(url, {"metadata": {"name": name, "labels": labels}, "type": f"example.com/{name}"})
        assert created.status == 201, created.body
    return url


def names(body: dict) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]


async def test_a_list_is_sorted_by_name(api: Api, secrets: str) -> None:
    listed = (await api.get(secrets)).body
    assert (listed["kind"], listed["apiVersion"], names(listed)) == ("SecretList", "v1", ["a", "b", "c", "d"])
    assert listed["metadata"]["resourceVersion"] == str(api.server.deps.store.revision)


async def test_items_of_built_in_lists_do_not_repeat_their_kind_and_custom_ones_do(
    api: Api, secrets: str, widgets: str
) -> None:
    await api.post(widgets, widget("w"))
    assert "kind" not in (await api.get(secrets)).body["items"][0]
    assert (await api.get(widgets)).body["items"][0]["kind"] == "Widget"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("labelSelector=vowel%3Dtrue", ["a"]),
        ("labelSelector=vowel%21%3Dtrue", ["b", "c", "d"]),
        ("labelSelector=vowel+in+(true,false)", ["a", "b", "c", "d"]),
        ("labelSelector=unheard", []),
        ("fieldSelector=metadata.name%3Db", ["b"]),
        ("fieldSelector=metadata.name%3Dzzz", []),
        ("fieldSelector=metadata.name%21%3Db", ["a", "c", "d"]),
        ("fieldSelector=type%3Dexample.com/c", ["c"]),
        ("fieldSelector=type%3Dexample.com/c,metadata.name%3Da", []),
    ],
)
async def test_selectors_filter(api: Api, secrets: str, query: str, expected: list[str]) -> None:
    assert names((await api.get(f"{secrets}?{query}")).body) == expected


async def test_custom_resources_are_selected_by_declared_fields(api: Api, widgets: str) -> None:
    for name, color in (("r", "red"), ("b", "blue")):
        await api.post(widgets, widget(name) | {"spec": {"color": color}})
    assert names((await api.get(f"{widgets}?fieldSelector=spec.color%3Dred")).body) == ["r"]
    rejected = await api.get(f"{widgets}?fieldSelector=spec.replicas%3D1")
    assert (rejected.status, rejected.message) == (400, "field label not supported: spec.replicas")


async def test_pages_are_consistent_at_one_revision(api: Api, secrets: str) -> None:
    first = (await api.get(f"{secrets}?limit=2")).body
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b"], 2)
    await api.delete(f"{secrets}/c")
    await api.post(secrets, {"metadata": {"name": "bb"}})
    rest = (await api.get(f"{secrets}?limit=2&continue={first['metadata']['continue']}")).body
    assert names(rest) == ["c", "d"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in rest["metadata"]


async def test_pages_span_all_namespaces(api: Api, secrets: str) -> None:
    seen: list[tuple[str, str]] = []
    token = ""
    while True:
        page = (await api.get(f"/api/v1/secrets?limit=3&continue={token}")).body
        seen += [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert len(seen) == len(set(seen))
    assert {(api.namespace, name) for name in "abcd"} <= set(seen)


async def test_pages_with_a_selector_have_no_remaining_item_count(api: Api, secrets: str) -> None:
    page = (await api.get(f"{secrets}?limit=1&labelSelector=vowel%3Dfalse")).body
    assert (names(page), "remainingItemCount" in page["metadata"]) == (["b"], False)
    page = (
        await api.get(f"{secrets}?limit=2&labelSelector=vowel%3Dfalse&continue={page['metadata']['continue']}")
    ).body
    assert names(page) == ["c", "d"]


async def test_a_compacted_page_expires_and_offers_an_inconsistent_continue_token(api: Api, secrets: str) -> None:
    first = (await api.get(f"{secrets}?limit=2")).body
    await api.post(secrets, {"metadata": {"name": "bb"}})
    await api.post(secrets, {"metadata": {"name": "e"}})
    await api.server.deps.store.compact(api.server.deps.store.revision)
    expired = await api.get(f"{secrets}?limit=2&continue={first['metadata']['continue']}")
    assert (expired.status, expired.reason) == (410, "Expired")
    rest = (await api.get(f"{secrets}?continue={expired.body['metadata']['continue']}")).body
    assert names(rest) == ["bb", "c", "d", "e"]


async def test_a_list_can_be_read_at_an_exact_revision(api: Api, secrets: str) -> None:
    then = (await api.get(secrets)).body["metadata"]["resourceVersion"]
    await api.delete(f"{secrets}/a")
    past = (await api.get(f"{secrets}?resourceVersion={then}&resourceVersionMatch=Exact")).body
    assert (names(past), past["metadata"]["resourceVersion"]) == (["a", "b", "c", "d"], then)
    now = (await api.get(f"{secrets}?resourceVersion={then}&resourceVersionMatch=NotOlderThan")).body
    assert names(now) == ["b", "c", "d"]


async def test_a_future_revision_is_rejected_with_retry_after(api: Api, secrets: str) -> None:
    rejected = await api.get(f"{secrets}?resourceVersion=99999999")
    assert (rejected.status, rejected.reason, rejected.headers["retry-after"]) == (504, "Timeout", "1")
    assert rejected.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=x", 400), ("resourceVersion=x", 400), ("continue=x", 400), ("labelSelector=a%20b", 400),
        ("fieldSelector=x", 400), ("fieldSelector=x%3Dy", 400), ("resourceVersionMatch=Exact", 422),
        ("resourceVersion=1&resourceVersionMatch=Odd", 422), ("sendInitialEvents=true", 422),
        ("resourceVersion=0&resourceVersionMatch=Exact", 422),
        ("continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi94In0", 400),
    ],
)  # fmt: skip
async def test_invalid_options_are_rejected(api: Api, secrets: str, query: str, status: int) -> None:
    assert (await api.get(f"{secrets}?{query}")).status == status


async def test_lists_can_be_tables_or_metadata_only(api: Api, secrets: str) -> None:
    table = (await api.get(secrets, accept=TABLE)).body
    assert (table["kind"], [row["cells"][0] for row in table["rows"]]) == ("Table", ["a", "b", "c", "d"])
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    partial = (await api.get(secrets, accept=accept)).body
    assert (partial["kind"], set(partial["items"][0])) == (
        "PartialObjectMetadataList",
        {"kind", "apiVersion", "metadata"},
    )


async def test_large_lists_are_compressed_on_request(api: Api) -> None:
    url = api.path("configmaps")
    for number in range(3):
        await api.post(url, {"metadata": {"name": f"big-{number}"}, "data": {"x": "y" * 100_000}})
    plain = await api.get(url)
    packed = await api.get(url, accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert msgspec.json.decode(gzip.decompress(packed.body)) == plain.body


async def test_a_long_list_is_complete(api: Api) -> None:
    url = api.path("configmaps")
    for number in range(300):
        await api.post(url, {"metadata": {"name": f"m-{number:03}"}, "data": {"x": "y" * 4000}})
    listed = [name for name in names((await api.get(url)).body) if name.startswith("m-")]
    assert listed == [f"m-{number:03}" for number in range(300)]
