"""OpenAPI documents, and how they are served."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from herder.engine.apiserver.builtin import resources
from herder.engine.apiserver.crds import resource_from_crd
from herder.engine.apiserver.openapi import OpenApi
from herder.engine.apiserver.openapi.components import references
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.wire import Query, Request, Response
from tests.unit.engine.apiserver.crds.samples import definition

PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
META = "io.k8s.apimachinery.pkg.apis.meta.v1"


@pytest.fixture
def registry() -> Registry:
    return Registry([*resources(), resource_from_crd(definition())])


@pytest.fixture
def openapi(registry: Registry) -> OpenApi:
    return OpenApi(registry)


async def request(openapi: OpenApi, url: str, **headers: str) -> Response:
    path, _, query = url.partition("?")
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    found = await openapi.handle(Request("GET", path, Query.parse(query), names))
    assert found is not None
    return found


async def document(openapi: OpenApi, path: str) -> Object:
    decoded: Object = msgspec.json.decode((await request(openapi, path)).content())
    return decoded


# --- v3 ----------------------------------------------------------------------------------------------------------


async def test_the_index_lists_a_document_for_each_group_version(openapi: OpenApi) -> None:
    paths = (await document(openapi, "/openapi/v3"))["paths"]
    assert {"api/v1", "apis/apps/v1", "apis/example.com/v1", "apis/example.com/v1alpha1"} <= set(paths)
    url = paths["apis/apps/v1"]["serverRelativeURL"]
    assert re.fullmatch(r"/openapi/v3/apis/apps/v1\?hash=[0-9A-F]{128}", url)
    found = await request(openapi, url)
    assert (found.status, found.headers["cache-control"]) == (200, "public, immutable")


async def test_an_outdated_hash_is_redirected_to_the_current_one(openapi: OpenApi) -> None:
    found = await request(openapi, "/openapi/v3/apis/apps/v1?hash=OLD")
    assert found.status == 301
    assert (await request(openapi, found.headers["location"])).status == 200


async def test_an_unchanged_document_is_not_modified(openapi: OpenApi) -> None:
    etag = (await request(openapi, "/openapi/v3/apis/apps/v1")).headers["etag"]
    assert (await request(openapi, "/openapi/v3/apis/apps/v1", if_none_match=etag)).status == 304


async def test_a_changed_definition_changes_its_hash_and_no_other(registry: Registry, openapi: OpenApi) -> None:
    before = (await document(openapi, "/openapi/v3"))["paths"]
    crd = definition()
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "Another widget."
    registry.add(resource_from_crd(crd))
    after = (await document(openapi, "/openapi/v3"))["paths"]
    assert {path for path in before if before[path] != after[path]} == {"apis/example.com/v1"}


async def test_documents_are_removed_with_their_resources(registry: Registry, openapi: OpenApi) -> None:
    assert (await request(openapi, "/openapi/v3/apis/example.com/v1")).status == 200
    registry.remove(GroupResource("example.com", "widgets"))
    assert (await request(openapi, "/openapi/v3/apis/example.com/v1")).status == 404


@pytest.mark.parametrize("path", ["api/v1", "apis/apps/v1", "apis/batch/v1", "apis/example.com/v1"])
async def test_every_reference_resolves(openapi: OpenApi, path: str) -> None:
    found = await document(openapi, f"/openapi/v3/{path}")
    assert set(references(found)) <= set(found["components"]["schemas"])


async def test_a_custom_kind_is_published_with_type_and_object_metadata(openapi: OpenApi) -> None:
    schemas = (await document(openapi, "/openapi/v3/apis/example.com/v1"))["components"]["schemas"]
    widget = schemas["com.example.v1.Widget"]
    assert widget["description"] == "A widget."
    metadata = widget["properties"]["metadata"]
    assert metadata["allOf"] == [{"$ref": f"#/components/schemas/{META}.ObjectMeta"}]
    assert metadata["description"].startswith("Standard object's metadata")
    assert widget["x-kubernetes-group-version-kind"] == [{"group": "example.com", "kind": "Widget", "version": "v1"}]
    assert widget["x-kubernetes-selectable-fields"] == [{"fieldPath": "spec.color"}]
    spec = widget["properties"]["spec"]["properties"]
    assert spec["port"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert spec["inner"]["required"] == ["kind", "apiVersion"]
    assert set(spec["inner"]["properties"]) == {"apiVersion", "kind", "metadata"}
    items = schemas["com.example.v1.WidgetList"]["properties"]["items"]
    assert items == {"type": "array", "items": {"$ref": "#/components/schemas/com.example.v1.Widget"}}


async def test_patches_declare_the_parameters_that_kubectl_expects(openapi: OpenApi) -> None:
    for path, kind in (("apis/apps/v1", "deployments"), ("apis/example.com/v1", "widgets")):
        paths = (await document(openapi, f"/openapi/v3/{path}"))["paths"]
        patch = paths[f"/{path}/namespaces/{{namespace}}/{kind}/{{name}}"]["patch"]
        names = {parameter["name"] for parameter in patch["parameters"]}
        assert names == {"dryRun", "fieldManager", "fieldValidation", "force"}
        assert patch["x-kubernetes-action"] == "patch"


async def test_custom_resources_have_no_strategic_merge_patch(openapi: OpenApi) -> None:
    paths = (await document(openapi, "/openapi/v3/apis/example.com/v1"))["paths"]
    patch = paths["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"]
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]


async def test_operation_ids_match_kube_apiserver(openapi: OpenApi) -> None:
    widgets = (await document(openapi, "/openapi/v3/apis/example.com/v1"))["paths"]
    named = {
        operation["operationId"]
        for item in widgets.values()
        for method, operation in item.items()
        if method != "parameters"
    }
    assert named == {
        "listExampleComV1NamespacedWidget",
        "createExampleComV1NamespacedWidget",
        "deleteExampleComV1CollectionNamespacedWidget",
        "readExampleComV1NamespacedWidget",
        "replaceExampleComV1NamespacedWidget",
        "deleteExampleComV1NamespacedWidget",
        "patchExampleComV1NamespacedWidget",
        "readExampleComV1NamespacedWidgetScale",
        "replaceExampleComV1NamespacedWidgetScale",
        "patchExampleComV1NamespacedWidgetScale",
        "readExampleComV1NamespacedWidgetStatus",
        "replaceExampleComV1NamespacedWidgetStatus",
        "patchExampleComV1NamespacedWidgetStatus",
        "listExampleComV1WidgetForAllNamespaces",
    }
    core = (await document(openapi, "/openapi/v3/api/v1"))["paths"]
    assert core["/api/v1/namespaces/{name}"]["get"]["operationId"] == "readCoreV1Namespace"


async def test_unknown_documents_are_not_found(openapi: OpenApi) -> None:
    assert (await request(openapi, "/openapi/v3/apis/nope/v1")).status == 404
    assert (await request(openapi, "/openapi/v3/apis/apps/v1", accept="text/foo")).status == 406
    assert (await request(openapi, "/openapi/v2", accept="text/foo")).status == 406
    assert await openapi.handle(Request("GET", "/openapi/v4")) is None


# --- v2 ----------------------------------------------------------------------------------------------------------


async def test_one_v2_document_contains_every_definition_and_path(openapi: OpenApi) -> None:
    found = await document(openapi, "/openapi/v2")
    assert found["swagger"] == "2.0"
    assert {"io.k8s.api.apps.v1.Deployment", "com.example.v1.Widget"} <= set(found["definitions"])
    assert "/apis/example.com/v1/namespaces/{namespace}/widgets" in found["paths"]
    assert set(references(found)) <= set(found["definitions"])


async def test_v2_omits_what_it_cannot_express(openapi: OpenApi) -> None:
    definitions = (await document(openapi, "/openapi/v2"))["definitions"]
    spec = definitions["com.example.v1.Widget"]["properties"]["spec"]["properties"]
    assert spec["size"] == {"type": "integer", "format": "int32", "minimum": 0}
    assert spec["when"] == {"format": "date-time"}
    assert spec["port"] == {"x-kubernetes-int-or-string": True}
    assert spec["raw"] == {"x-kubernetes-preserve-unknown-fields": True}
    free = definitions["com.example.v1alpha1.Widget"]
    assert free["type"] == "object"
    assert "properties" not in free
    metadata = definitions["io.k8s.api.apps.v1.Deployment"]["properties"]["metadata"]
    assert metadata["$ref"] == f"#/definitions/{META}.ObjectMeta"
    assert "description" in definitions[f"{META}.ObjectMeta"]["properties"]["creationTimestamp"]
    int_or_string = definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]
    assert int_or_string == {"type": "string", "format": "int-or-string"}


async def test_bodies_are_parameters_in_v2(openapi: OpenApi) -> None:
    paths = (await document(openapi, "/openapi/v2"))["paths"]
    create = paths["/apis/example.com/v1/namespaces/{namespace}/widgets"]["post"]
    assert create["parameters"][0] == {
        "name": "body",
        "in": "body",
        "required": True,
        "schema": {"$ref": "#/definitions/com.example.v1.Widget"},
    }
    assert create["parameters"][1] == {"name": "dryRun", "in": "query", "type": "string", "uniqueItems": True}


async def test_go_clients_get_the_same_document_in_protobuf(openapi: OpenApi) -> None:
    found = await request(openapi, "/openapi/v2", accept=PROTOBUF)
    assert found.headers["content-type"] == "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    json = await document(openapi, "/openapi/v2")
    message = fields(found.content())
    assert message[1] == [b"2.0"]
    definitions = named(message[9][0], 1)
    assert list(definitions) == list(json["definitions"])
    assert list(named(message[8][0], 2)) == list(json["paths"])

    deployment = fields(definitions["io.k8s.api.apps.v1.Deployment"])
    assert fields(deployment[22][0])[1] == [b"object"]
    properties = named(deployment[25][0], 1)
    assert fields(properties["spec"])[1] == [b"#/definitions/io.k8s.api.apps.v1.DeploymentSpec"]
    (kind,) = (fields(extension) for extension in deployment[31])
    assert kind[1] == [b"x-kubernetes-group-version-kind"]
    assert msgspec.json.decode(fields(kind[2][0])[2][0]) == [{"group": "apps", "kind": "Deployment", "version": "v1"}]


def fields(message: bytes) -> dict[int, list[Any]]:
    """Decode a protobuf message by field numbers."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        value: Any
        match tag & 7:
            case 0:
                value, at = varint(message, at)
            case 1:
                value, at = message[at : at + 8], at + 8
            case 2:
                size, at = varint(message, at)
                value, at = message[at : at + size], at + size
            case other:
                raise AssertionError(f"wire type {other}")
        found.setdefault(tag >> 3, []).append(value)
    return found


def named(message: bytes, number: int) -> dict[str, bytes]:
    """Decode repeated names and values, as gnostic encodes maps."""
    pairs = [fields(entry) for entry in fields(message)[number]]
    return {pair[1][0].decode(): pair[2][0] for pair in pairs}


def varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
