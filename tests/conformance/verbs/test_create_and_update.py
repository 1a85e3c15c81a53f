"""Create and update of objects."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.differences import by_engine
from tests.conformance.objects import config_map, deployment, secret
from tests.support.api import Api
from tests.support.engines import Engine, unique

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


async def test_the_server_sets_uid_and_creation_timestamp(api: Api) -> None:
    created = await api.create("configmaps", config_map("a"))
    meta = created["metadata"]
    assert UUID.fullmatch(meta["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", meta["creationTimestamp"])
    assert meta["namespace"] == api.namespace
    assert "generation" not in meta  # ConfigMaps have no generation
    assert "selfLink" not in meta


async def test_kind_and_version_may_be_left_to_the_url(api: Api) -> None:
    created = await api.create("configmaps", {"metadata": {"name": "a"}})
    assert (created["kind"], created["apiVersion"]) == ("ConfigMap", "v1")


async def test_server_owned_fields_are_ignored_on_create(api: Api) -> None:
    obj = config_map("a")
    obj["metadata"] |= {
        "uid": "11111111-1111-1111-1111-111111111111",
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "selfLink": "/nowhere",
        "generation": 7,
    }
    meta = (await api.create("configmaps", obj))["metadata"]
    assert meta["uid"] != obj["metadata"]["uid"]
    assert meta["creationTimestamp"] > "2020"
    assert "deletionTimestamp" not in meta


async def test_a_resource_version_must_not_be_set_on_create(engine: Engine, api: Api) -> None:
    obj = config_map("a")
    obj["metadata"]["resourceVersion"] = "5"
    answer = await api.post(api.at("configmaps"), obj)
    assert answer.status == by_engine(engine, "create-with-version", real=500, embedded=400)
    assert answer.message == "resourceVersion should not be set on objects to be created"


async def test_creating_an_existing_name_conflicts(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.post(api.at("configmaps"), config_map("a"))
    assert answer.failure == (409, "AlreadyExists", 'configmaps "a" already exists')
    assert answer.body["details"] == {"name": "a", "kind": "configmaps"}


async def test_names_are_generated_from_a_prefix(api: Api) -> None:
    obj = {"metadata": {"generateName": "pre-"}}
    first, second = await api.create("configmaps", obj), await api.create("configmaps", obj)
    for created in (first, second):
        assert re.fullmatch(r"pre-[bcdfghjklmnpqrstvwxz2456789]{5}", created["metadata"]["name"])
        assert created["metadata"]["generateName"] == "pre-"
    assert first["metadata"]["name"] != second["metadata"]["name"]


async def test_long_prefixes_are_truncated(api: Api) -> None:
    created = await api.create("configmaps", {"metadata": {"generateName": "x" * 100}})
    assert len(created["metadata"]["name"]) == 63


async def test_name_takes_precedence_over_generate_name(api: Api) -> None:
    created = await api.create("configmaps", {"metadata": {"name": "a", "generateName": "pre-"}})
    assert created["metadata"]["name"] == "a"


async def test_name_or_generate_name_is_required(api: Api) -> None:
    answer = await api.post(api.at("configmaps"), {"metadata": {}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.message == 'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required'
    assert answer.causes == [
        ("FieldValueRequired", "metadata.name", "Required value: name or generateName is required"),
    ]


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "dot.", "sp ace", "x" * 254, "ü"])
async def test_names_must_be_dns_names(api: Api, name: str) -> None:
    answer = await api.post(api.at("configmaps"), config_map(name))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert f'metadata.name: Invalid value: "{name}": ' in answer.message


@pytest.mark.parametrize("name", ["a/b", "a%b", ".", ".."])
async def test_names_must_be_valid_path_segments(api: Api, name: str) -> None:
    role = {"metadata": {"name": name}, "rules": []}
    answer = await api.post(api.at("rbac.authorization.k8s.io/v1/roles"), role)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "metadata.name: Invalid value: " in answer.message


@pytest.mark.parametrize(
    ("meta", "cause"),
    [
        ({"labels": {"a b": "c"}}, 'metadata.labels: Invalid value: "a b": name part must consist of'),
        ({"labels": {"a": "b c"}}, 'metadata.labels: Invalid value: "b c": a valid label must be'),
        ({"labels": {"/x": "y"}}, 'metadata.labels: Invalid value: "/x": prefix part must be non-empty'),
        ({"labels": {"a": "x" * 64}}, "metadata.labels: Invalid value: "),
        ({"annotations": {"a b": "c"}}, 'metadata.annotations: Invalid value: "a b": name part must consist of'),
        ({"annotations": {"big": "x" * 262145}}, "metadata.annotations: Too long: may not be more than 262144 bytes"),
        ({"finalizers": ["plain"]}, 'metadata.finalizers[0]: Invalid value: "plain": name is neither a standard'),
        ({"finalizers": ["a b/c"]}, 'metadata.finalizers: Invalid value: "a b/c"'),
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": "1"}]},
            'metadata.ownerReferences.name: Invalid value: "": must not be empty',
        ),
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": ""}]},
            'metadata.ownerReferences.uid: Invalid value: "": must not be empty',
        ),
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "a", "uid": "1"}]},
            "/v1, Kind=Event is disallowed from being an owner",
        ),
        (
            {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": n, "uid": n, "controller": True} for n in "ab"
                ]
            },
            'Only one reference can have Controller set to true. Found "true" in references for Pod/a and Pod/b',
        ),
    ],
)
async def test_metadata_is_validated(api: Api, meta: dict[str, object], cause: str) -> None:
    answer = await api.post(api.at("configmaps"), {"metadata": {"name": "a"} | meta})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert cause in answer.message


async def test_the_namespace_of_the_body_must_match_the_url(api: Api) -> None:
    obj = config_map("a")
    obj["metadata"]["namespace"] = "elsewhere"
    answer = await api.post(api.at("configmaps"), obj)
    message = "the namespace of the provided object does not match the namespace sent on the request"
    assert answer.failure == (400, "BadRequest", message)


async def test_a_namespace_that_does_not_exist_is_not_found(api: Api) -> None:
    answer = await api.in_namespace("no-such-place").post(
        "/api/v1/namespaces/no-such-place/configmaps", config_map("a")
    )
    assert answer.failure == (404, "NotFound", 'namespaces "no-such-place" not found')


async def test_the_kind_of_the_body_must_match_the_url(api: Api) -> None:
    answer = await api.post(api.at("configmaps"), secret("a"))
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert 'Secret in version "v1" cannot be handled as a ConfigMap' in answer.message


async def test_the_version_of_the_body_must_match_the_url(api: Api) -> None:
    answer = await api.post(api.at("configmaps"), config_map("a") | {"apiVersion": "v2"})
    assert (answer.status, answer.reason) == (400, "BadRequest")
    message = (
        'ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version'
    )
    assert answer.message.startswith(message)


async def test_generation_counts_spec_changes(api: Api) -> None:
    created = await api.create("apps/v1/deployments", deployment("a", paused=True))
    assert created["metadata"]["generation"] == 1
    url = api.at("apps/v1/deployments", "a")
    labelled = (await api.patch(url, {"metadata": {"labels": {"x": "1"}}})).expect(200)
    assert labelled["metadata"]["generation"] == 1
    scaled = (await api.patch(url, {"spec": {"minReadySeconds": 3}})).expect(200)
    assert scaled["metadata"]["generation"] == 2


# --- update -------------------------------------------------------------------------------------------------------


async def test_an_update_replaces_the_whole_object(api: Api) -> None:
    created = await api.create("configmaps", config_map("a", x="1", y="2"))
    created["data"] = {"z": "3"}
    changed = (await api.put(api.at("configmaps", "a"), created)).expect(200)
    assert changed["data"] == {"z": "3"}
    assert changed["metadata"]["uid"] == created["metadata"]["uid"]
    assert int(changed["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])


async def test_an_update_of_an_older_version_conflicts(api: Api) -> None:
    created = await api.create("configmaps", config_map("a"))
    await api.patch(api.at("configmaps", "a"), {"data": {"x": "1"}})
    answer = await api.put(api.at("configmaps", "a"), created)
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert answer.message == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert answer.body["details"] == {"name": "a", "kind": "configmaps"}


async def test_an_update_without_a_version_overwrites(api: Api) -> None:
    await api.create("configmaps", config_map("a", x="1"))
    changed = (await api.put(api.at("configmaps", "a"), config_map("a", x="2"))).expect(200)
    assert changed["data"] == {"x": "2"}


async def test_some_kinds_must_not_be_updated_without_a_version(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("a"))
    answer = await api.put(api.at(widgets.resource, "a"), widgets.named("a"))
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in answer.message


async def test_an_update_that_changes_nothing_keeps_the_version(api: Api) -> None:
    created = await api.create("configmaps", config_map("a", x="1"))
    again = (await api.put(api.at("configmaps", "a"), created)).expect(200)
    assert again["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_an_update_of_an_unknown_name_is_not_found(api: Api) -> None:
    answer = await api.put(api.at("configmaps", "nobody"), config_map("nobody"))
    assert answer.failure == (404, "NotFound", 'configmaps "nobody" not found')


async def test_some_kinds_are_created_by_an_update(api: Api) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}}
    created = await api.put(api.at("coordination.k8s.io/v1/leases", "a"), lease)
    assert created.expect(201)["metadata"]["name"] == "a"


async def test_creation_by_update_accepts_a_resource_version(api: Api) -> None:
    lease = {"metadata": {"name": "a", "resourceVersion": "5"}}
    created = (await api.put(api.at("coordination.k8s.io/v1/leases", "a"), lease)).expect(201)
    assert int(created["metadata"]["resourceVersion"]) > 5


async def test_creation_by_update_rejects_a_uid(api: Api) -> None:
    lease = {"metadata": {"name": "a", "uid": "11111111-1111-1111-1111-111111111111"}}
    answer = await api.put(api.at("coordination.k8s.io/v1/leases", "a"), lease)
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_the_name_of_the_body_must_match_the_url(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.put(api.at("configmaps", "a"), config_map("b"))
    message = "the name of the object (b) does not match the name on the URL (a)"
    assert answer.failure == (400, "BadRequest", message)


async def test_the_body_of_an_update_needs_a_name(api: Api) -> None:
    await api.create("configmaps", config_map("a"))
    answer = await api.put(api.at("configmaps", "a"), {"metadata": {}})
    message = "the name of the object (a based on URL) was undeterminable: name must be provided"
    assert answer.failure == (400, "BadRequest", message)


async def test_an_update_of_another_uid_conflicts(api: Api) -> None:
    created = await api.create("configmaps", config_map("a"))
    created["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111"
    answer = await api.put(api.at("configmaps", "a"), created)
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: 11111111-1111-1111-1111-111111111111" in answer.message


async def test_creation_timestamp_is_immutable(api: Api) -> None:
    created = await api.create("configmaps", config_map("a"))
    stamp = created["metadata"]["creationTimestamp"]
    created["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z"
    changed = (await api.put(api.at("configmaps", "a"), created)).expect(200)
    assert changed["metadata"]["creationTimestamp"] == stamp


async def test_one_of_many_concurrent_updates_succeeds(api: Api) -> None:
    created = await api.create("configmaps", config_map("a"))
    url = api.at("configmaps", "a")
    answers = await asyncio.gather(*(api.put(url, created | {"data": {"n": str(n)}}) for n in range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 7


async def test_one_of_many_concurrent_creates_succeeds(api: Api) -> None:
    answers = await asyncio.gather(*(api.post(api.at("configmaps"), config_map("a")) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [201] + [409] * 7


async def test_cluster_scoped_objects_are_created_without_a_namespace(api: Api) -> None:
    name = unique("prio")
    obj = {"metadata": {"name": name}, "value": 5}
    created = await api.create_cluster("scheduling.k8s.io/v1/priorityclasses", obj)
    assert "namespace" not in created["metadata"]
    (await api.delete(api.cluster("scheduling.k8s.io/v1/priorityclasses", name))).expect(200)
