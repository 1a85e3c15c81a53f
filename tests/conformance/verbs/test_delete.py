"""Delete: preconditions, finalizers, grace period, collections, garbage collection and namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.objects import config_map, pod, secret
from tests.support.api import Api
from tests.support.engines import unique


async def test_delete_returns_success_with_details(api: Api) -> None:
    created = await api.create("secrets", secret("a"))
    body = (await api.delete(api.at("secrets", "a"))).expect(200)
    assert body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "a", "kind": "secrets", "uid": created["metadata"]["uid"]},
    }
    assert (await api.get(api.at("secrets", "a"))).status == 404


async def test_deleting_an_unknown_name_is_not_found(api: Api) -> None:
    answer = await api.delete(api.at("secrets", "nobody"))
    assert answer.failure == (404, "NotFound", 'secrets "nobody" not found')


async def test_a_name_can_be_used_again_by_another_object(api: Api) -> None:
    first = await api.create("secrets", secret("a"))
    await api.delete(api.at("secrets", "a"))
    second = await api.create("secrets", secret("a"))
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_uid_precondition_protects_another_object(api: Api) -> None:
    created = await api.create("secrets", secret("a"))
    answer = await api.delete(api.at("secrets", "a"), {"preconditions": {"uid": "other"}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    uid = created["metadata"]["uid"]
    assert answer.message == (
        'Operation cannot be fulfilled on Secret "a": the UID in the precondition (other) does not match the UID in '
        f"record ({uid}). The object might have been deleted and then recreated"
    )
    (await api.delete(api.at("secrets", "a"), {"preconditions": {"uid": uid}})).expect(200)


async def test_a_version_precondition_protects_a_changed_object(api: Api) -> None:
    created = await api.create("secrets", secret("a"))
    changed = (await api.patch(api.at("secrets", "a"), {"metadata": {"labels": {"x": "1"}}})).expect(200)
    old = {"preconditions": {"resourceVersion": created["metadata"]["resourceVersion"]}}
    answer = await api.delete(api.at("secrets", "a"), old)
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert 'Operation cannot be fulfilled on Secret "a": the ResourceVersion in the precondition (' in answer.message
    assert answer.message.endswith("The object might have been modified")
    new = {"preconditions": {"resourceVersion": changed["metadata"]["resourceVersion"]}}
    (await api.delete(api.at("secrets", "a"), new)).expect(200)


async def test_finalizers_block_deletion(api: Api) -> None:
    obj = secret("a")
    obj["metadata"]["finalizers"] = ["example.com/one", "example.com/two"]
    await api.create("secrets", obj)
    held = (await api.delete(api.at("secrets", "a"))).expect(200)
    assert held["kind"] == "Secret"
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    (await api.patch(api.at("secrets", "a"), {"metadata": {"finalizers": ["example.com/two"]}})).expect(200)
    assert (await api.get(api.at("secrets", "a"))).status == 200
    (await api.patch(api.at("secrets", "a"), {"metadata": {"finalizers": None}})).expect(200)
    assert (await api.get(api.at("secrets", "a"))).status == 404


async def test_deleting_a_deleting_object_changes_nothing(api: Api) -> None:
    obj = secret("a")
    obj["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create("secrets", obj)
    first = (await api.delete(api.at("secrets", "a"))).expect(200)
    again = (await api.delete(api.at("secrets", "a"))).expect(200)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    await api.patch(api.at("secrets", "a"), {"metadata": {"finalizers": None}})


async def test_no_finalizer_can_be_added_to_a_deleting_object(api: Api) -> None:
    obj = secret("a")
    obj["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create("secrets", obj)
    await api.delete(api.at("secrets", "a"))
    more = {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}
    answer = await api.patch(api.at("secrets", "a"), more)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert (
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, "
        'found new finalizers []string{"example.com/more"}' in answer.message
    )
    await api.patch(api.at("secrets", "a"), {"metadata": {"finalizers": None}})


async def test_a_deletion_cannot_be_undone(api: Api) -> None:
    obj = secret("a")
    obj["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create("secrets", obj)
    stamp = (await api.delete(api.at("secrets", "a"))).expect(200)["metadata"]["deletionTimestamp"]
    kept = (await api.patch(api.at("secrets", "a"), {"metadata": {"deletionTimestamp": None}})).expect(200)
    assert kept["metadata"]["deletionTimestamp"] == stamp
    await api.patch(api.at("secrets", "a"), {"metadata": {"finalizers": None}})


async def test_an_update_cannot_start_a_deletion(api: Api) -> None:
    created = await api.create("secrets", secret("a"))
    created["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    answer = await api.put(api.at("secrets", "a"), created)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.causes[0] == (
        "FieldValueInvalid",
        "metadata.deletionTimestamp",
        'Invalid value: "2030-01-01T00:00:00Z": field is immutable',
    )


async def test_delete_options_can_be_in_the_query(api: Api) -> None:
    await api.create("secrets", secret("a"))
    (await api.delete(api.at("secrets", "a") + "?propagationPolicy=Orphan&gracePeriodSeconds=0")).expect(200)
    await api.until_gone(api.at("secrets", "a"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"propagationPolicy": "Sideways"}, 'propagationPolicy: Unsupported value: "Sideways": supported values:'),
        (
            {"propagationPolicy": "Background", "orphanDependents": True},
            'propagationPolicy: Invalid value: "Background": orphanDependents and deletionPropagation cannot',
        ),
        ({"dryRun": ["Maybe"]}, 'dryRun: Unsupported value: ["Maybe"]: supported values: "All"'),
    ],
)
async def test_invalid_delete_options_are_rejected(api: Api, options: Any, message: str) -> None:
    await api.create("secrets", secret("a"))
    answer = await api.delete(api.at("secrets", "a"), options)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert message in answer.message
    assert (await api.get(api.at("secrets", "a"))).status == 200


async def test_unparsable_delete_options_are_rejected(api: Api) -> None:
    await api.create("secrets", secret("a"))
    answer = await api.delete(api.at("secrets", "a"), b"{nonsense")
    assert answer.status == 400
    assert (await api.get(api.at("secrets", "a"))).status == 200


async def test_bound_pods_are_deleted_with_grace(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    await api.create("pods", pod("a", nodeName="nowhere", terminationGracePeriodSeconds=17))
    held = (await api.delete(api.at("pods", "a"))).expect(200)
    assert held["kind"] == "Pod"
    assert held["metadata"]["deletionGracePeriodSeconds"] == 17
    shorter = (await api.delete(api.at("pods", "a"), {"gracePeriodSeconds": 5})).expect(200)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    (await api.delete(api.at("pods", "a"), {"gracePeriodSeconds": 0})).expect(200)
    await api.until_gone(api.at("pods", "a"))


async def test_unscheduled_pods_are_deleted_immediately(api: Api) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    await api.create("pods", pod("a"))
    deleted = (await api.delete(api.at("pods", "a"))).expect(200)
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 0
    await api.until_gone(api.at("pods", "a"))


async def test_custom_resources_are_deleted_like_built_in_kinds(api: Api, widgets: Widgets) -> None:
    created = await api.create(widgets.resource, widgets.named("a"))
    body = (await api.delete(api.at(widgets.resource, "a"))).expect(200)
    assert body["details"] == {
        "name": "a",
        "group": widgets.group,
        "kind": "widgets",
        "uid": created["metadata"]["uid"],
    }


# --- collections ----------------------------------------------------------------------------------------------------


async def test_a_collection_is_deleted_by_label(api: Api) -> None:
    for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
        await api.create("secrets", secret(name, labels={"color": color}))
    (await api.delete(api.at("secrets") + "?labelSelector=color%3Dred")).expect(200)
    assert await api.names(api.at("secrets")) == ["b"]


async def test_a_collection_is_deleted_by_field(api: Api) -> None:
    for name in "ab":
        await api.create("secrets", secret(name))
    (await api.delete(api.at("secrets") + "?fieldSelector=metadata.name%3Da")).expect(200)
    assert await api.names(api.at("secrets")) == ["b"]


async def test_deletecollection_returns_the_deleted_items(api: Api) -> None:
    await api.create("secrets", secret("a"))
    body = (await api.delete(api.at("secrets"))).expect(200)
    assert body["kind"] == "SecretList"
    assert [item["metadata"]["name"] for item in body["items"]] == ["a"]


async def test_finalizers_block_deletecollection(api: Api) -> None:
    held = secret("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create("secrets", held)
    await api.create("secrets", secret("free"))
    (await api.delete(api.at("secrets"))).expect(200)
    assert await api.names(api.at("secrets")) == ["held"]
    await api.patch(api.at("secrets", "held"), {"metadata": {"finalizers": None}})


async def test_a_collection_over_all_namespaces_cannot_be_deleted(api: Api) -> None:
    answer = await api.delete(api.cluster("secrets") + "?labelSelector=no%3Dbody")
    assert (answer.status, answer.reason) == (405, "MethodNotAllowed")
    assert answer.message == "the server does not allow this method on the requested resource"


async def test_some_kinds_do_not_support_deletecollection(api: Api) -> None:
    answer = await api.delete("/api/v1/namespaces?labelSelector=no%3Dbody")
    assert (answer.status, answer.reason) == (405, "MethodNotAllowed")


# --- owners ---------------------------------------------------------------------------------------------------------


def owned_by(owner: Any, name: str, *, blocks: bool = False) -> dict[str, Any]:
    obj = config_map(name)
    obj["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": blocks,
        }
    ]
    return obj


async def test_dependents_are_collected_in_the_background(api: Api) -> None:
    owner = await api.create("configmaps", config_map("owner"))
    child = await api.create("configmaps", owned_by(owner, "child"))
    await api.create("configmaps", owned_by(child, "grandchild"))
    body = (await api.delete(api.at("configmaps", "owner"), {"propagationPolicy": "Background"})).expect(200)
    assert body["status"] == "Success"
    assert (await api.get(api.at("configmaps", "owner"))).status == 404
    await api.until_gone(api.at("configmaps", "child"))
    await api.until_gone(api.at("configmaps", "grandchild"))


async def test_foreground_deletion_waits_for_dependents(api: Api) -> None:
    owner = await api.create("configmaps", config_map("owner"))
    child = owned_by(owner, "child", blocks=True)
    child["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create("configmaps", child)
    held = (await api.delete(api.at("configmaps", "owner"), {"propagationPolicy": "Foreground"})).expect(200)
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
    await api.until_object(api.at("configmaps", "child"), lambda found: "deletionTimestamp" in found["metadata"])
    assert (await api.get(api.at("configmaps", "owner"))).status == 200
    await api.patch(api.at("configmaps", "child"), {"metadata": {"finalizers": None}})
    await api.until_gone(api.at("configmaps", "owner"))


async def test_dependents_can_be_orphaned(api: Api) -> None:
    owner = await api.create("configmaps", config_map("owner"))
    await api.create("configmaps", owned_by(owner, "child"))
    held = (await api.delete(api.at("configmaps", "owner"), {"propagationPolicy": "Orphan"})).expect(200)
    assert held["metadata"]["finalizers"] == ["orphan"]
    await api.until_gone(api.at("configmaps", "owner"))
    child = await api.read(api.at("configmaps", "child"))
    assert "ownerReferences" not in child["metadata"]


async def test_an_object_with_two_owners_outlives_one_of_them(api: Api) -> None:
    first = await api.create("configmaps", config_map("first"))
    second = await api.create("configmaps", config_map("second"))
    child = owned_by(first, "child")
    child["metadata"]["ownerReferences"] += owned_by(second, "child")["metadata"]["ownerReferences"]
    await api.create("configmaps", child)
    await api.delete(api.at("configmaps", "first"), {"propagationPolicy": "Background"})
    left = await api.until_object(
        api.at("configmaps", "child"), lambda found: len(found["metadata"]["ownerReferences"]) == 1
    )
    assert left["metadata"]["ownerReferences"][0]["name"] == "second"


async def test_removing_one_owner_keeps_the_other_reference(api: Api) -> None:
    first = await api.create("configmaps", config_map("first"))
    second = await api.create("configmaps", config_map("second"))
    child = owned_by(first, "child")
    (kept,) = owned_by(second, "child", blocks=True)["metadata"]["ownerReferences"]
    child["metadata"]["ownerReferences"].append(kept | {"controller": True})
    await api.create("configmaps", child)
    await api.delete(api.at("configmaps", "first"), {"propagationPolicy": "Background"})
    left = await api.until_object(
        api.at("configmaps", "child"), lambda found: len(found["metadata"]["ownerReferences"]) == 1
    )
    assert left["metadata"]["ownerReferences"] == [kept | {"controller": True}]


async def test_a_cycle_of_owners_is_deleted_in_the_foreground(api: Api) -> None:
    ring = [await api.create("configmaps", config_map(name)) for name in ("a", "b", "c")]
    for before, obj in zip([ring[-1], *ring[:-1]], ring, strict=True):
        name = obj["metadata"]["name"]
        references = owned_by(before, name, blocks=True)["metadata"]["ownerReferences"]
        (await api.patch(api.at("configmaps", name), {"metadata": {"ownerReferences": references}})).expect(200)
    await api.delete(api.at("configmaps", "a"), {"propagationPolicy": "Foreground"})
    for name in ("a", "b", "c"):
        await api.until_gone(api.at("configmaps", name))


async def test_an_object_whose_owner_never_existed_is_collected(api: Api) -> None:
    owner = {"metadata": {"name": "ghost", "uid": "11111111-1111-1111-1111-111111111111"}}
    await api.create("configmaps", owned_by(owner, "child"))
    await api.until_gone(api.at("configmaps", "child"))


async def test_an_object_whose_owner_has_another_uid_is_collected(api: Api) -> None:
    owner = await api.create("configmaps", config_map("owner"))
    owner["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111"
    await api.create("configmaps", owned_by(owner, "child"))
    await api.until_gone(api.at("configmaps", "child"))
    assert (await api.get(api.at("configmaps", "owner"))).status == 200


# --- namespaces -----------------------------------------------------------------------------------------------------


async def test_a_namespace_is_active_with_a_label_of_its_name(api: Api) -> None:
    found = await api.read(api.cluster("namespaces", api.namespace))
    assert found["status"] == {"phase": "Active"}
    assert found["metadata"]["labels"] == {"kubernetes.io/metadata.name": api.namespace}
    assert found["spec"] == {"finalizers": ["kubernetes"]}


@pytest.fixture(scope="module")
async def ending(admin: Api) -> tuple[Api, Api]:
    """Two terminating namespaces, one of them blocked. Deleted together, because it takes seconds."""
    free, held = await admin.in_new_namespace(), await admin.in_new_namespace()
    await free.create("secrets", secret("a"))
    await free.create("configmaps", config_map("b"))
    obj = secret("held")
    obj["metadata"]["finalizers"] = ["example.com/hold"]
    await held.create("secrets", obj)
    for api in (free, held):
        body = (await api.delete(api.cluster("namespaces", api.namespace))).expect(200)
        assert body["status"]["phase"] == "Terminating"
        assert body["metadata"]["deletionTimestamp"]
    return free, held


async def test_nothing_is_created_in_a_terminating_namespace(ending: tuple[Api, Api]) -> None:
    _, api = ending
    answer = await api.post(api.at("secrets"), secret("late"))
    assert (answer.status, answer.reason) == (403, "Forbidden")
    assert answer.message == (
        f'secrets "late" is forbidden: unable to create new content in namespace {api.namespace} '
        "because it is being terminated"
    )
    cause = ("NamespaceTerminating", "metadata.namespace", f"namespace {api.namespace} is being terminated")
    assert answer.causes[0] == cause


async def test_a_namespace_is_deleted_with_its_content(ending: tuple[Api, Api]) -> None:
    api, _ = ending
    await api.until_gone(api.cluster("namespaces", api.namespace))
    assert await api.names(api.at("secrets")) == []
    assert await api.names(api.at("configmaps")) == []


async def test_a_terminating_namespace_reports_what_remains(ending: tuple[Api, Api]) -> None:
    _, api = ending

    def reports_remaining(namespace: Any) -> bool:
        conditions = namespace["status"].get("conditions") or []
        return any(c["type"] == "NamespaceFinalizersRemaining" and c["status"] == "True" for c in conditions)

    found = await api.until_object(api.cluster("namespaces", api.namespace), reports_remaining)
    by_type = {c["type"]: (c["status"], c["reason"], c["message"]) for c in found["status"]["conditions"]}
    assert by_type["NamespaceFinalizersRemaining"] == (
        "True",
        "SomeFinalizersRemain",
        "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
    )
    assert by_type["NamespaceContentRemaining"] == (
        "True",
        "SomeResourcesRemain",
        "Some resources are remaining: secrets. has 1 resource instances",
    )
    assert by_type["NamespaceDeletionDiscoveryFailure"][:2] == ("False", "ResourcesDiscovered")
    await api.patch(api.at("secrets", "held"), {"metadata": {"finalizers": None}})


async def test_finalizers_of_a_namespaces_spec_are_changed_by_finalize(api: Api) -> None:
    name = unique()
    created = await api.create_cluster("namespaces", {"metadata": {"name": name}})
    created["spec"]["finalizers"] = ["kubernetes", "example.com/hold"]
    changed = (await api.put(api.cluster("namespaces", name, "finalize"), created)).expect(200)
    assert changed["spec"]["finalizers"] == ["kubernetes", "example.com/hold"]
    changed["spec"]["finalizers"] = ["kubernetes"]
    (await api.put(api.cluster("namespaces", name, "finalize"), changed)).expect(200)


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
async def test_system_namespaces_cannot_be_deleted(api: Api, name: str) -> None:
    answer = await api.delete(api.cluster("namespaces", name))
    message = f'namespaces "{name}" is forbidden: this namespace may not be deleted'
    assert answer.failure == (403, "Forbidden", message)


@pytest.mark.parametrize("name", ["Upper", "dot.ted", "x" * 64])
async def test_namespace_names_must_be_dns_labels(api: Api, name: str) -> None:
    answer = await api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert f'metadata.name: Invalid value: "{name}": ' in answer.message
