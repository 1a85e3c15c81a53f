"""Representations: tables, partial metadata, YAML, indentation and compression."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
import yaml

from tests.conformance.conftest import Widgets
from tests.conformance.objects import config_map, deployment, secret
from tests.support.api import Api

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def columns(table: Any) -> list[tuple[str, int]]:
    return [(column["name"], column["priority"]) for column in table["columnDefinitions"]]


async def test_a_list_as_a_table(api: Api) -> None:
    await api.create("secrets", secret("a", x="1", y="2"))
    table = (await api.get(api.at("secrets"), accept=TABLE)).expect(200)
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert columns(table) == [("Name", 0), ("Type", 0), ("Data", 0), ("Age", 0)]
    (row,) = table["rows"]
    assert row["cells"][:3] == ["a", "Opaque", 2]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "a"
    assert int(table["metadata"]["resourceVersion"]) > 0


async def test_one_object_as_a_table(api: Api) -> None:
    created = await api.create("secrets", secret("a"))
    table = (await api.get(api.at("secrets", "a"), accept=TABLE)).expect(200)
    assert [row["cells"][0] for row in table["rows"]] == ["a"]
    assert table["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("include", "kind"), [("None", None), ("Metadata", "PartialObjectMetadata"), ("Object", "Secret")]
)
async def test_a_table_includes_the_requested_part_of_objects(api: Api, include: str, kind: str | None) -> None:
    await api.create("secrets", secret("a"))
    table = (await api.get(api.at("secrets") + f"?includeObject={include}", accept=TABLE)).expect(200)
    assert ((table["rows"][0].get("object") or {}).get("kind")) == kind


async def test_create_returns_a_table(api: Api) -> None:
    answer = await api.post(api.at("secrets"), secret("a"), accept=TABLE)
    assert answer.expect(201)["rows"][0]["cells"][0] == "a"


async def test_a_table_of_custom_resources_has_their_columns(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a", {"color": "red", "size": "5"}))
    table = (await api.get(api.at(widgets.resource), accept=TABLE)).expect(200)
    assert columns(table) == [("Name", 0), ("Color", 0), ("Replicas", 0), ("Size", 1), ("Age", 0)]
    assert table["rows"][0]["cells"][:4] == ["a", "red", 1, "5"]
    assert table["columnDefinitions"][2]["description"] == "how many"


async def test_a_table_of_deployments(api: Api) -> None:
    await api.create("apps/v1/deployments", deployment("a", paused=True, replicas=3))
    table = (await api.get(api.at("apps/v1/deployments"), accept=TABLE)).expect(200)
    assert [name for name, _ in columns(table)] == [
        "Name",
        "Ready",
        "Up-to-date",
        "Available",
        "Age",
        "Containers",
        "Images",
        "Selector",
    ]
    cells = table["rows"][0]["cells"]
    assert cells[:4] == ["a", "0/3", 0, 0]
    assert cells[5:] == ["main", "nothing", "app=a"]


async def test_pages_of_a_table(api: Api) -> None:
    for name in "abc":
        await api.create("secrets", secret(name))
    table = (await api.get(api.at("secrets") + "?limit=2", accept=TABLE)).expect(200)
    assert len(table["rows"]) == 2
    assert table["metadata"]["remainingItemCount"] == 1
    assert table["metadata"]["continue"]


async def test_the_first_supported_representation_is_chosen(api: Api) -> None:
    await api.create("secrets", secret("a"))
    accept = f"application/json;as=Chart;v=v1;g=meta.k8s.io,{TABLE},application/json"
    assert (await api.get(api.at("secrets"), accept=accept)).expect(200)["kind"] == "Table"


async def test_an_unknown_transform_is_not_acceptable(api: Api) -> None:
    answer = await api.get(api.at("secrets"), accept="application/json;as=Chart;v=v1;g=meta.k8s.io")
    assert (answer.status, answer.reason) == (406, "NotAcceptable")
    assert "only the following media types are accepted: application/json" in answer.message


async def test_an_unknown_media_type_is_not_acceptable(api: Api) -> None:
    answer = await api.get(api.at("secrets"), accept="text/html")
    assert (answer.status, answer.reason) == (406, "NotAcceptable")


async def test_metadata_only(api: Api) -> None:
    created = await api.create("secrets", secret("a", key="hidden"))
    found = (await api.get(api.at("secrets", "a"), accept=PARTIAL)).expect(200)
    assert found == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": created["metadata"],
    }


async def test_a_list_of_metadata_only(api: Api) -> None:
    await api.create("secrets", secret("a"))
    found = (await api.get(api.at("secrets"), accept=PARTIAL_LIST)).expect(200)
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert [item["metadata"]["name"] for item in found["items"]] == ["a"]
    assert "data" not in found["items"][0]


async def test_yaml_is_returned_on_request(api: Api) -> None:
    created = await api.create("configmaps", config_map("a", x="yes"))
    answer = await api.get(api.at("configmaps", "a"), accept="application/yaml")
    assert answer.headers["content-type"] == "application/yaml"
    assert yaml.safe_load(answer.text) == created


async def test_yaml_is_accepted(api: Api) -> None:
    body = b"metadata:\n  name: a\ndata:\n  x: '1'\n"
    answer = await api.post(api.at("configmaps"), body, content_type="application/yaml")
    assert answer.expect(201)["data"] == {"x": "1"}


async def test_json_is_indented_on_request(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    plain = await api.get(api.at("configmaps", "a"))
    pretty = await api.get(api.at("configmaps", "a") + "?pretty=true")
    assert plain.text.count("\n") == 1
    assert pretty.text.startswith('{\n  "kind": "ConfigMap",\n  "apiVersion": "v1",\n  "metadata": {\n    "name": "a"')
    assert pretty.body == plain.body


async def test_browsers_get_indented_json(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.get(api.at("configmaps", "a"), user_agent="Mozilla/5.0")
    assert answer.text.startswith('{\n  "kind"')


async def test_long_responses_are_compressed_if_accepted(api: Api) -> None:
    await api.create("configmaps", config_map("a", big="x" * 200_000))
    answer = await api.get(api.at("configmaps", "a"), accept_encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.content) < 10_000
    assert b"xxxx" in gzip.decompress(answer.content)


async def test_short_responses_are_not_compressed(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.get(api.at("configmaps", "a"), accept_encoding="gzip")
    assert "content-encoding" not in answer.headers


async def test_responses_are_not_cacheable(api: Api) -> None:
    answer = await api.get(api.at("configmaps"))
    assert answer.headers["cache-control"] == "no-cache, private"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["audit-id"]


async def test_unicode_is_preserved(api: Api) -> None:
    text = 'grüße ☃ 𝄞 <&> \u2028 \\ " \n\t'
    await api.create("configmaps", config_map("a", x=text))
    assert (await api.read(api.at("configmaps", "a")))["data"] == {"x": text}
