from __future__ import annotations

import re

import pytest

from tests.unit.engine.apiserver.api import Api, config_map, widget


async def test_a_new_object_gets_server_owned_fields(api: Api) -> None:
    created = await api.post(api.path("configmaps"), config_map("a", k="v"))
    assert created.status == 201
    metadata = created.body["metadata"]
    assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
    assert metadata["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert metadata["namespace"] == api.namespace
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["managedFields"][0]["manager"] == "tester"
    assert (await api.get(api.path("configmaps", "a"))).body == created.body


async def test_client_values_of_server_owned_fields_are_ignored(api: Api) -> None:
    obj = config_map("a")
    then = "2001-01-01T00:00:00Z"
    obj["metadata"] |= {"uid": "mine", "creationTimestamp": then, "deletionTimestamp": then}
    obj["metadata"] |= {"selfLink": "x", "resourceVersion": "0"}
    metadata = (await api.post(api.path("configmaps"), obj)).body["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert not {"deletionTimestamp", "selfLink"} & set(metadata)


async def test_creating_an_existing_name_is_rejected(api: Api) -> None:
    await api.post(api.path("configmaps"), config_map("a"))
    again = await api.post(api.path("configmaps"), config_map("a"))
    assert (again.status, again.reason, again.message) == (409, "AlreadyExists", 'configmaps "a" already exists')


async def test_a_generated_name_has_five_readable_characters(api: Api) -> None:
    obj = {"metadata": {"generateName": "x-"}}
    names = {(await api.post(api.path("configmaps"), obj)).body["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(re.fullmatch(r"x-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)


async def test_a_long_generate_name_prefix_is_truncated(api: Api) -> None:
    created = await api.post(api.path("configmaps"), {"metadata": {"generateName": "y" * 100}})
    assert re.fullmatch(r"y{58}[^y]{5}", created.body["metadata"]["name"])


async def test_the_namespace_must_match_the_request(api: Api) -> None:
    obj = config_map("a") | {"metadata": {"name": "a", "namespace": "other"}}
    rejected = await api.post(api.path("configmaps"), obj)
    assert (rejected.status, rejected.reason) == (400, "BadRequest")
    assert "does not match the namespace sent on the request" in rejected.message


async def test_objects_need_an_existing_namespace(api: Api) -> None:
    rejected = await api.post("/api/v1/namespaces/nowhere/configmaps", config_map("a"))
    assert (rejected.status, rejected.message) == (404, 'namespaces "nowhere" not found')


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ({"kind": "Secret", "apiVersion": "v1"}, "unknown conversion"),
        ({"kind": "ConfigMap", "apiVersion": "v9"}, 'no kind "ConfigMap" is registered for version "v9"'),
        ({"kind": 5}, "cannot unmarshal number"),
        ({"metadata": {"name": 5}}, "ObjectMeta.metadata.name of type string"),
        ([], "cannot unmarshal array"),
    ],
)
async def test_an_object_of_another_kind_is_rejected(api: Api, obj: object, expected: str) -> None:
    rejected = await api.post(api.path("configmaps"), obj)
    assert (rejected.status, rejected.reason) == (400, "BadRequest")
    assert expected in rejected.message


async def test_unknown_and_duplicate_fields_are_reported_by_field_validation(api: Api) -> None:
    body = b'{"metadata":{"name":"a"},"data":{"x":"1","x":"2"},"foo":1}'
    url = api.path("configmaps") + "?dryRun=All"
    warned = await api.post(url, body)
    assert (warned.status, warned.warnings) == (201, ['duplicate field "data.x"', 'unknown field "foo"'])
    assert (await api.post(f"{url}&fieldValidation=Ignore", body)).warnings == []
    rejected = await api.post(f"{url}&fieldValidation=Strict", body)
    assert rejected.status == 400
    assert rejected.message.endswith('strict decoding error: duplicate field "data.x", unknown field "foo"')


async def test_invalid_metadata_is_reported_per_field(api: Api) -> None:
    obj = {
        "metadata": {
            "name": "A_",
            "labels": {"a b": "-"},
            "annotations": {"/x": ""},
            "finalizers": ["foo"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": ""}],
        }
    }
    rejected = await api.post(api.path("configmaps"), obj)
    assert (rejected.status, rejected.reason) == (422, "Invalid")
    fields = {cause["field"] for cause in rejected.body["details"]["causes"]}
    assert fields == {
        "metadata.name", "metadata.labels", "metadata.annotations", "metadata.finalizers[0]",
        "metadata.ownerReferences.name", "metadata.ownerReferences.uid",
    }  # fmt: skip


async def test_a_dry_run_changes_nothing(api: Api) -> None:
    url = api.path("configmaps")
    before = api.server.deps.store.revision
    dry = await api.post(f"{url}?dryRun=All", config_map("a"))
    assert dry.status == 201
    assert "resourceVersion" not in dry.body["metadata"]
    assert api.server.deps.store.revision == before
    assert (await api.get(f"{url}/a")).status == 404


async def test_an_object_over_the_size_limit_is_rejected(api: Api, widgets: str) -> None:
    huge = {"metadata": {"name": "w"}, "spec": {"color": "x" * (1600 << 10)}}
    rejected = await api.post(widgets, widget("w") | huge)
    assert (rejected.status, rejected.reason) == (413, "RequestEntityTooLarge")


async def test_a_body_over_the_limit_is_rejected(api: Api) -> None:
    rejected = await api.post(api.path("configmaps"), b"{" + b" " * (3 << 20) + b"}")
    assert (rejected.status, rejected.message) == (413, "Request entity too large: limit is 3145728")


async def test_duplicate_owner_references_are_removed(api: Api) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u-1"}
    obj = config_map("a") | {"metadata": {"name": "a", "ownerReferences": [owner, owner]}}
    created = await api.post(f"{api.path('configmaps')}?dryRun=All", obj)
    assert created.body["metadata"]["ownerReferences"] == [owner]
    assert "duplicate UID(s) observed: u-1" in created.warnings[0]


async def test_yaml_bodies_are_accepted(api: Api) -> None:
    created = await api.post(
        api.path("configmaps"), b"metadata: {name: yam}\ndata: {a: b}", content_type="application/yaml"
    )
    assert (created.status, created.body["data"]) == (201, {"a": "b"})


async def test_a_custom_resource_is_defaulted_and_has_a_generation(api: Api, widgets: str) -> None:
    created = await api.post(widgets, widget("w") | {"spec": {}, "status": {"replicas": 5}})
    assert created.status == 201, created.body
    assert created.body["spec"] == {"replicas": 1}
    assert created.body["metadata"]["generation"] == 1
    assert "status" not in created.body


async def test_a_review_is_answered_and_not_stored(api: Api) -> None:
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    response = await api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": spec})
    assert (response.status, response.body["status"]["allowed"]) == (201, True)
