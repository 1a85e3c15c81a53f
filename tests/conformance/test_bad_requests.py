"""Malformed requests: code, reason and message of each error."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.objects import config_map, secret
from tests.support.api import Api

NO_SUCH_RESOURCE = "the server could not find the requested resource"


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nonsense",
        "/api/v1/namespaces/default/nonsense",
        "/api/v1/namespaces/default/nonsense/name",
        "/apis/apps/v1/namespaces/default/nonsense",
        "/apis/apps/v1/nonsense",
    ],
)
async def test_unknown_resources_are_not_found(api: Api, path: str) -> None:
    assert (await api.get(path)).failure == (404, "NotFound", NO_SUCH_RESOURCE)


@pytest.mark.parametrize(
    "path", ["/apis/apps/v9/deployments", "/api/v2/pods", "/api/v1/namespaces/default/configmaps/a/b/c"]
)
async def test_unknown_versions_and_paths_of_a_group_are_not_found(api: Api, path: str) -> None:
    assert (await api.get(path)).failure == (404, "NotFound", NO_SUCH_RESOURCE)


@pytest.mark.parametrize("path", ["/apis/no.such.group/v1/things", "/nonsense", "/apis/nonsense"])
async def test_unserved_paths_are_not_found(api: Api, path: str) -> None:
    answer = await api.get(path)
    assert (answer.status, answer.text) == (404, "404 page not found\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/namespaces/default/configmaps/a"),
        ("PUT", "/api/v1/namespaces/default/configmaps"),
        ("PATCH", "/api/v1/namespaces/default/configmaps"),
        ("GET", "/apis/authentication.k8s.io/v1/tokenreviews"),
        ("DELETE", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
        ("PUT", "/api/v1/namespaces/default/pods/a/binding"),
    ],
)
async def test_unsupported_verbs_are_not_allowed(api: Api, method: str, path: str) -> None:
    answer = await api.send(method, path, {} if method != "GET" else None)
    message = "the server does not allow this method on the requested resource"
    assert answer.failure == (405, "MethodNotAllowed", message)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b"[]",
        b'"text"',
        b"5",
        b'{"metadata":{"name":"a"',
        b'{"metadata":{"name":"a"}} trailing',
        b'{"metadata":{"name":"a"},"data":{"x":"\xff"}',
        b'{"metadata":[]}',
        b'{"metadata":{"name":5}}',
        b'{"metadata":{"name":"a"},"data":[]}',
        b'{"metadata":{"name":"a"},"data":{"x":5}}',
        b'{"metadata":{"name":"a"},"immutable":"yes"}',
        b'{"metadata":{"name":"a","labels":{"x":1}}}',
        b'{"metadata":{"name":"a","creationTimestamp":"yesterday"}}',
    ],
)
async def test_bodies_of_other_kinds_are_bad_requests(api: Api, body: bytes) -> None:
    answer = await api.post(api.at("configmaps"), body)
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert answer.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{"metadata":{"name":"a"},"data":{"x":5}}',
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (
            b'{"metadata":{"name":"a"},"immutable":"yes"}',
            "json: cannot unmarshal string into Go struct field ConfigMap.immutable of type bool",
        ),
        (
            b'{"metadata":{"name":5}}',
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string",
        ),
        (
            b'{"metadata":{"name":"a","labels":["x"]}}',
            "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
    ],
)
async def test_a_value_of_the_wrong_type_is_named(api: Api, body: bytes, message: str) -> None:
    answer = await api.post(api.at("configmaps"), body)
    assert answer.message == f'ConfigMap in version "v1" cannot be handled as a ConfigMap: {message}'


async def test_an_empty_body_is_a_bad_request(api: Api) -> None:
    answer = await api.post(api.at("configmaps"), b"")
    message = (
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse "
        "error: unexpected end of JSON input (<empty>)"
    )
    assert answer.failure == (400, "BadRequest", message)


async def test_binary_data_must_be_base64(api: Api) -> None:
    answer = await api.post(api.at("secrets"), {"metadata": {"name": "a"}, "data": {"x": "not base64!"}})
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert "illegal base64 data at input byte" in answer.message


async def test_unknown_media_types_are_unsupported(api: Api) -> None:
    answer = await api.post(api.at("configmaps"), b"<x/>", content_type="text/xml")
    assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"k8s\x00", "empty body (6b387300)"),
        (
            b"nothing",
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (6e6f7468696e67)",
        ),
        (b"k8s\x00\xff\xff\xff", "unexpected EOF (6b387300ffffff)"),
        (b"k8s\x00\x0a\xff\xff\xff\xff\x0f", "unexpected EOF (6b3873000affffffff0f)"),
    ],
)
async def test_invalid_protobuf_is_a_bad_request(api: Api, body: bytes, message: str) -> None:
    answer = await api.post(api.at("configmaps"), body, content_type="application/vnd.kubernetes.protobuf")
    expected = f"the object provided is unrecognized (must be of type ConfigMap): {message}"
    assert answer.failure == (400, "BadRequest", expected)


async def test_an_object_of_more_than_a_megabyte_is_too_large(api: Api) -> None:
    answer = await api.post(api.at("configmaps"), config_map("a", x="x" * ((1 << 20) + 1)))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert ": Too long: may not be more than 1048576 bytes" in answer.message


async def test_a_body_of_more_than_three_megabytes_is_too_large(api: Api) -> None:
    answer = await api.post(api.at("configmaps"), config_map("a", x="x" * (4 << 20)))
    assert (answer.status, answer.reason) == (413, "RequestEntityTooLarge")
    assert "limit is 3145728" in answer.message


async def test_a_secret_of_more_than_a_megabyte_is_too_large(api: Api) -> None:
    answer = await api.post(api.at("secrets"), secret("a", x="x" * ((1 << 20) + 1)))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "data: Too long: may not be more than 1048576 bytes" in answer.message


@pytest.mark.parametrize(("value", "watches"), [("", True), ("perhaps", True), ("false", False), ("0", False)])
async def test_query_booleans_are_true_unless_explicitly_false(api: Api, value: str, watches: bool) -> None:
    await api.create("secrets", secret("a"))
    answer = await api.get(api.at("secrets") + f"?timeoutSeconds=1&watch={value}")
    assert answer.status == 200
    assert ('"type":"ADDED"' in answer.text) == watches


async def test_an_invalid_limit_is_a_bad_request(api: Api) -> None:
    answer = await api.get(api.at("configmaps") + "?limit=many")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert 'strconv.ParseInt: parsing "many": invalid syntax' in answer.message


async def test_unknown_parameters_are_ignored(api: Api) -> None:
    assert (await api.get(api.at("secrets") + "?nonsense=1")).status == 200


async def test_json_nested_too_deep_is_a_bad_request(api: Api, widgets: Widgets) -> None:
    deep = b'{"a":' * 20000 + b"1" + b"}" * 20000
    body = b'{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"free":%s}}'
    answer = await api.post(api.at(widgets.resource), body % (widgets.group.encode(), deep))
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert "exceeded max depth" in answer.message


async def test_numbers_too_large_for_their_type_are_rejected(api: Api) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"leaseDurationSeconds": 1 << 40}}
    answer = await api.post(api.at("coordination.k8s.io/v1/leases"), body)
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert "cannot unmarshal number 1099511627776 into Go struct field LeaseSpec.spec.leaseDurationSeconds" in (
        answer.message
    )


async def test_invalid_times_are_rejected(api: Api) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"renewTime": "noon"}}
    answer = await api.post(api.at("coordination.k8s.io/v1/leases"), body)
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert 'parsing time "noon" as "2006-01-02T15:04:05.000000Z07:00"' in answer.message


@pytest.mark.parametrize(
    ("cpu", "message"),
    [
        ("lots", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
        ("1.5.5", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
        ("--1", "unable to parse quantity's suffix"),
        ("", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
    ],
)
async def test_invalid_quantities_are_rejected(api: Api, cpu: str, message: str) -> None:
    container = {"name": "a", "image": "b", "resources": {"limits": {"cpu": cpu}}}
    body = {"metadata": {"name": "a"}, "template": {"spec": {"containers": [container]}}}
    answer = await api.post(api.at("podtemplates"), body)
    expected = f'PodTemplate in version "v1" cannot be handled as a PodTemplate: {message}'
    assert answer.failure == (400, "BadRequest", expected)


async def test_percent_encoding_in_paths_is_decoded_once(api: Api) -> None:
    role = {"metadata": {"name": "a:b c"}, "rules": []}
    roles = "rbac.authorization.k8s.io/v1/roles"
    await api.create(roles, role)
    found = await api.read(api.at(roles, "a%3Ab%20c"))
    assert found["metadata"]["name"] == "a:b c"


async def test_a_trailing_slash_lists_the_collection(api: Api) -> None:
    assert (await api.read(api.at("configmaps") + "/"))["kind"] == "ConfigMapList"


async def test_an_update_of_the_wrong_kind_is_a_bad_request(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.put(api.at("configmaps", "a"), secret("a"))
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_every_error_is_a_status(api: Api) -> None:
    body = (await api.get(api.at("configmaps", "nobody"))).body
    assert {"kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"} == set(body)
    assert (body["kind"], body["apiVersion"], body["status"]) == ("Status", "v1", "Failure")
