from __future__ import annotations

import re

import pytest

from tests.engine.apiserver.api import Api, config_map, widget


async def test_a_new_object_gets_what_the_server_owns(api: Api) -> None:
    made = await api.post(api.path("configmaps"), config_map("a", k="v"))
    assert made.status == 201
    metadata = made.body["metadata"]
    assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
    assert metadata["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert metadata["namespace"] == api.namespace
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["managedFields"][0]["manager"] == "tester"
    assert (await api.get(api.path("configmaps", "a"))).body == made.body


async def test_what_the_client_says_of_server_owned_fields_is_ignored(api: Api) -> None:
    obj = config_map("a")
    then = "2001-01-01T00:00:00Z"
    obj["metadata"] |= {"uid": "mine", "creationTimestamp": then, "deletionTimestamp": then}
    obj["metadata"] |= {"selfLink": "x", "resourceVersion": "0"}
    metadata = (await api.post(api.path("configmaps"), obj)).body["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert not {"deletionTimestamp", "selfLink"} & set(metadata)


async def test_a_name_is_taken_once(api: Api) -> None:
    await api.post(api.path("configmaps"), config_map("a"))
    again = await api.post(api.path("configmaps"), config_map("a"))
    assert (again.status, again.reason, again.message) == (409, "AlreadyExists", 'configmaps "a" already exists')


async def test_a_generated_name_has_five_readable_characters(api: Api) -> None:
    obj = {"metadata": {"generateName": "x-"}}
    names = {(await api.post(api.path("configmaps"), obj)).body["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(re.fullmatch(r"x-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)


async def test_a_long_prefix_is_cut_to_leave_room_for_the_rest(api: Api) -> None:
    made = await api.post(api.path("configmaps"), {"metadata": {"generateName": "y" * 100}})
    assert re.fullmatch(r"y{58}[^y]{5}", made.body["metadata"]["name"])


async def test_the_namespace_must_be_the_requests(api: Api) -> None:
    obj = config_map("a") | {"metadata": {"name": "a", "namespace": "other"}}
    refused = await api.post(api.path("configmaps"), obj)
    assert (refused.status, refused.reason) == (400, "BadRequest")
    assert "does not match the namespace sent on the request" in refused.message


async def test_no_namespace_no_object(api: Api) -> None:
    refused = await api.post("/api/v1/namespaces/nowhere/configmaps", config_map("a"))
    assert (refused.status, refused.message) == (404, 'namespaces "nowhere" not found')


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        ({"kind": "Secret", "apiVersion": "v1"}, "unknown conversion"),
        ({"kind": "ConfigMap", "apiVersion": "v9"}, 'no kind "ConfigMap" is registered for version "v9"'),
        ({"kind": 5}, "cannot unmarshal number"),
        ({"metadata": {"name": 5}}, "ObjectMeta.metadata.name of type string"),
        ([], "cannot unmarshal array"),
    ],
)
async def test_an_object_of_another_kind_is_refused(api: Api, obj: object, told: str) -> None:
    refused = await api.post(api.path("configmaps"), obj)
    assert (refused.status, refused.reason) == (400, "BadRequest")
    assert told in refused.message


async def test_unknown_and_repeated_fields_are_told_as_asked(api: Api) -> None:
    body = b'{"metadata":{"name":"a"},"data":{"x":"1","x":"2"},"foo":1}'
    url = api.path("configmaps") + "?dryRun=All"
    warned = await api.post(url, body)
    assert (warned.status, warned.warnings) == (201, ['duplicate field "data.x"', 'unknown field "foo"'])
    assert (await api.post(f"{url}&fieldValidation=Ignore", body)).warnings == []
    refused = await api.post(f"{url}&fieldValidation=Strict", body)
    assert refused.status == 400
    assert refused.message.endswith('strict decoding error: duplicate field "data.x", unknown field "foo"')


async def test_invalid_metadata_names_each_field(api: Api) -> None:
    obj = {
        "metadata": {
            "name": "A_",
            "labels": {"a b": "-"},
            "annotations": {"/x": ""},
            "finalizers": ["foo"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": ""}],
        }
    }
    refused = await api.post(api.path("configmaps"), obj)
    assert (refused.status, refused.reason) == (422, "Invalid")
    fields = {cause["field"] for cause in refused.body["details"]["causes"]}
    assert fields == {
        "metadata.name", "metadata.labels", "metadata.annotations", "metadata.finalizers[0]",
        "metadata.ownerReferences.name", "metadata.ownerReferences.uid",
    }  # fmt: skip


async def test_a_dry_run_changes_nothing(api: Api) -> None:
    url = api.path("configmaps")
    before = api.server.parts.store.revision
    dry = await api.post(f"{url}?dryRun=All", config_map("a"))
    assert dry.status == 201
    assert "resourceVersion" not in dry.body["metadata"]
    assert api.server.parts.store.revision == before
    assert (await api.get(f"{url}/a")).status == 404


async def test_an_object_too_large_to_store_is_refused(api: Api, widgets: str) -> None:
    huge = {"metadata": {"name": "w"}, "spec": {"color": "x" * (1600 << 10)}}
    refused = await api.post(widgets, widget("w") | huge)
    assert (refused.status, refused.reason) == (413, "RequestEntityTooLarge")


async def test_a_body_over_the_limit_is_refused(api: Api) -> None:
    refused = await api.post(api.path("configmaps"), b"{" + b" " * (3 << 20) + b"}")
    assert (refused.status, refused.message) == (413, "Request entity too large: limit is 3145728")


async def test_equal_owner_references_are_kept_once(api: Api) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u-1"}
    obj = config_map("a") | {"metadata": {"name": "a", "ownerReferences": [owner, owner]}}
    made = await api.post(f"{api.path('configmaps')}?dryRun=All", obj)
    assert made.body["metadata"]["ownerReferences"] == [owner]
    assert "duplicate UID(s) observed: u-1" in made.warnings[0]


async def test_yaml_is_as_good_as_json(api: Api) -> None:
    made = await api.post(
        api.path("configmaps"), b"metadata: {name: yam}\ndata: {a: b}", content_type="application/yaml"
    )
    assert (made.status, made.body["data"]) == (201, {"a": "b"})


async def test_a_custom_resource_is_defaulted_and_counted(api: Api, widgets: str) -> None:
    made = await api.post(widgets, widget("w") | {"spec": {}, "status": {"replicas": 5}})
    assert made.status == 201, made.body
    assert made.body["spec"] == {"replicas": 1}
    assert made.body["metadata"]["generation"] == 1
    assert "status" not in made.body


async def test_a_review_is_answered_and_not_stored(api: Api) -> None:
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    told = await api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": spec})
    assert (told.status, told.body["status"]["allowed"]) == (201, True)
