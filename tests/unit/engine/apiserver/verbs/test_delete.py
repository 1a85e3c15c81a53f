from __future__ import annotations

import pytest

from tests.unit.engine.apiserver.api import Api, config_map


async def created(api: Api, name: str = "a", finalizers: tuple[str, ...] = ()) -> dict:
    obj = config_map(name)
    if finalizers:
        obj["metadata"]["finalizers"] = list(finalizers)
    return (await api.post(api.path("configmaps"), obj)).body


async def test_delete_removes_and_returns_a_status(api: Api) -> None:
    obj = await created(api)
    url = api.path("configmaps", "a")
    response = await api.delete(url)
    assert response.status == 200
    assert response.body == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": "a", "kind": "configmaps", "uid": obj["metadata"]["uid"]},
    }  # fmt: skip
    assert (await api.get(url)).status == (await api.delete(url)).status == 404


async def test_some_kinds_return_the_deleted_object(api: Api) -> None:
    url = api.path("serviceaccounts")
    await api.post(url, {"metadata": {"name": "s"}})
    assert (await api.delete(f"{url}/s")).body["kind"] == "ServiceAccount"


@pytest.mark.parametrize(
    ("precondition", "expected"),
    [
        ({"uid": "other"}, "the UID in the precondition (other)"),
        ({"resourceVersion": "1"}, "the ResourceVersion in the"),
    ],
)
async def test_unmet_preconditions_reject_a_delete(api: Api, precondition: dict, expected: str) -> None:
    await created(api)
    rejected = await api.delete(api.path("configmaps", "a"), {"preconditions": precondition})
    assert (rejected.status, rejected.reason) == (409, "Conflict")
    assert expected in rejected.message


async def test_met_preconditions_allow_a_delete(api: Api) -> None:
    metadata = (await created(api))["metadata"]
    conditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    assert (await api.delete(api.path("configmaps", "a"), {"preconditions": conditions})).status == 200


async def test_finalizers_hold_a_deleted_object(api: Api) -> None:
    await created(api, finalizers=("example.com/hold",))
    url = api.path("configmaps", "a")
    marked = await api.delete(url)
    assert (marked.status, marked.body["kind"]) == (200, "ConfigMap")
    assert marked.body["metadata"]["deletionTimestamp"]
    assert marked.body["metadata"]["deletionGracePeriodSeconds"] == 0
    assert (await api.delete(url)).body["metadata"]["resourceVersion"] == marked.body["metadata"]["resourceVersion"]
    rejected = await api.patch(url, {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}})
    assert (rejected.status, rejected.reason) == (422, "Invalid")
    assert 'found new finalizers []string{"example.com/more"}' in rejected.message
    assert (await api.patch(url, {"metadata": {"finalizers": None}})).status == 200
    assert (await api.get(url)).status == 404


async def test_a_delete_increments_the_generation_of_an_object_with_finalizers(api: Api, widgets: str) -> None:
    metadata = {"name": "w", "finalizers": ["example.com/hold"]}
    await api.post(widgets, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata})
    assert (await api.delete(f"{widgets}/w")).body["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("query", "finalizer"),
    [
        ("propagationPolicy=Foreground", "foregroundDeletion"),
        ("propagationPolicy=Orphan", "orphan"),
        ("orphanDependents=true", "orphan"),
    ],
)
async def test_propagation_policies_set_finalizers(api: Api, query: str, finalizer: str) -> None:
    await created(api, finalizers=("example.com/hold",))
    marked = await api.delete(f"{api.path('configmaps', 'a')}?{query}")
    assert marked.body["metadata"]["finalizers"] == ["example.com/hold", finalizer]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("propagationPolicy=Unheard", "propagationPolicy"),
        ("propagationPolicy=Orphan&orphanDependents=true", "propagationPolicy"),
        ("dryRun=Some", "dryRun"),
    ],
)
async def test_invalid_options_are_reported_with_their_field(api: Api, options: str, field: str) -> None:
    await created(api)
    rejected = await api.delete(f"{api.path('configmaps', 'a')}?{options}")
    assert (rejected.status, rejected.body["details"]["causes"][0]["field"]) == (422, field)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"gracePeriodSeconds":"x"}', b'{"kind":"Other"}', b'{"preconditions":5}']
)
async def test_a_body_that_is_not_delete_options_is_rejected(api: Api, body: bytes) -> None:
    await created(api)
    assert (await api.ask("DELETE", api.path("configmaps", "a"), body)).status == 400


async def test_a_dry_run_deletes_nothing(api: Api) -> None:
    await created(api)
    url = api.path("configmaps", "a")
    assert (await api.delete(f"{url}?dryRun=All")).body["status"] == "Success"
    assert (await api.get(url)).status == 200


async def test_an_unscheduled_pod_is_deleted_at_once_and_a_scheduled_one_gracefully(api: Api) -> None:
    url = api.path("pods")
    account = api.path("serviceaccounts", "default")
    if (await api.get(account)).status == 404:
        await api.post(api.path("serviceaccounts"), {"metadata": {"name": "default"}})
    for name, node in (("free", ""), ("bound", "n1")):
        spec = {"containers": [{"name": "c", "image": "i"}]} | ({"nodeName": node} if node else {})
        made_pod = await api.post(url, {"metadata": {"name": name}, "spec": spec})
        assert made_pod.status == 201, made_pod.body
        assert (await api.delete(f"{url}/{name}")).status == 200
    assert (await api.get(f"{url}/free")).status == 404
    bound = (await api.get(f"{url}/bound")).body["metadata"]
    assert (bound["deletionGracePeriodSeconds"], bound["deletionTimestamp"]) == (30, "2026-01-02T03:04:35Z")
    shorter = await api.delete(f"{url}/bound", {"gracePeriodSeconds": 5})
    assert shorter.body["metadata"]["deletionTimestamp"] == "2026-01-02T03:04:10Z"
    await api.delete(f"{url}/bound", {"gracePeriodSeconds": 0})
    assert (await api.get(f"{url}/bound")).status == 404


# --- collections --------------------------------------------------------------------------------------------------


async def test_a_collection_is_deleted_by_its_selectors(api: Api) -> None:
    url = api.path("secrets")
    for name in ("a", "b", "c"):
        await api.post(url, {"metadata": {"name": name, "labels": {"keep": str(name == "b").lower()}}})
    gone = await api.delete(f"{url}?labelSelector=keep%3Dfalse")
    assert (gone.status, [item["metadata"]["name"] for item in gone.body["items"]]) == (200, ["a", "c"])
    assert [item["metadata"]["name"] for item in (await api.get(url)).body["items"]] == ["b"]
    assert (await api.delete(f"{url}?dryRun=All")).status == 200
    assert len((await api.get(url)).body["items"]) == 1
