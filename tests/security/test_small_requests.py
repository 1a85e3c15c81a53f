"""Requests of a few kilobytes that could cost the server far more than their senders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.attacks.attacker import Target, request

CONFIGMAPS = "/api/v1/namespaces/alice/configmaps"
RBAC = "rbac.authorization.k8s.io"
ROLES = f"/apis/{RBAC}/v1/namespaces/alice/roles"
REVIEWS = "/apis/authorization.k8s.io/v1/namespaces/alice/localsubjectaccessreviews"

HEADERS = {
    "media types": ["Accept: " + "a/b;q=1," * 31_000],
    "empty media types": ["Accept: " + "," * 250_000],
    "groups": ["Impersonate-Group: " + "a, " * 83_000],
    "spellings of one extra": [
        f"Impersonate-Extra-{''.join('%61' if n >> bit & 1 else 'a' for bit in range(10))}: " + "a, " * 60
        for n in range(900)
    ],
}


async def send(target: Target, content: bytes) -> tuple[int, bytes]:
    raw = await target.connect()
    raw.send(content)
    status, _, body = await raw.answer()
    raw.reset()
    target.connections.remove(raw)
    return status, body


async def post(target: Target, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    status, answer = await send(target, request("POST", path, "alice", json.dumps(body).encode()))
    return status, json.loads(answer)


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("path", [CONFIGMAPS, "/version", "/api"])
async def test_long_headers_of_anonymous_clients_are_not_parsed(target: Target, path: str, headers: list[str]) -> None:
    async with target.under_attack(grows_mib=16):
        _, body = await send(target, request("GET", path, "", None, *headers))
        assert len(body) < 64 << 10


async def test_caches_of_accept_headers_are_bounded(target: Target) -> None:
    async with target.under_attack(grows_mib=16):
        for number in range(150):
            accept = f"Accept: application/json,a/{number}" + "x" * 240_000
            await send(target, request("GET", CONFIGMAPS, "", None, accept))


async def test_caches_of_namespaces_of_anonymous_clients_are_bounded(target: Target) -> None:
    async with target.under_attack(grows_mib=16):
        for number in range(600):
            path = f"/api/v1/namespaces/n{number}{'x' * 60_000}/pods"
            assert (await send(target, request("GET", path)))[0] == 403


@pytest.mark.parametrize("query", [
    "labelSelector=" + ",".join(f"!a{n}" for n in range(8_000)),
    "labelSelector=" + ",".join(["k=v"] * 15_000),
    "labelSelector=k%20in%20(" + "v," * 20_000 + ")",
    "fieldSelector=" + ",".join(f"metadata.namespace!=x{n}" for n in range(2_300)),
])  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_selectors_have_a_limit(target: Target, method: str, query: str) -> None:
    async with target.under_attack(grows_mib=16):
        for watch in ("", "&watch=true&timeoutSeconds=1"):
            assert (await send(target, request(method, f"{CONFIGMAPS}?{query}{watch}", "alice")))[0] == 400


async def test_selectors_with_many_values_work(target: Target) -> None:
    await post(target, CONFIGMAPS, {"metadata": {"name": "selected", "labels": {"one-of-many": "v77"}}})
    values = ",".join(f"v{n}" for n in range(3_000))
    async with target.under_attack(grows_mib=16):
        path = f"{CONFIGMAPS}?labelSelector=one-of-many%20in%20({values})"
        status, body = await send(target, request("GET", path, "alice"))
    assert (status, [item["metadata"]["name"] for item in json.loads(body)["items"]]) == (200, ["selected"])


def role(name: str, rules: list[dict[str, list[str]]]) -> dict[str, Any]:
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules}


@pytest.mark.parametrize(("names", "status"), [(["a"], 201), ([f"n{n}" for n in range(9_000)], 400)])
async def test_the_size_of_an_expanded_rule_is_limited(target: Target, names: list[str], status: int) -> None:
    """The escalation check compares the product of a rule's lists with the rights of the author."""
    resources, verbs = ["configmaps", "secrets", "pods"] * 200, ["get", "list", "update", "create", "delete"] * 200
    rules = [{"apiGroups": [""], "resources": resources, "verbs": verbs, "resourceNames": names}]
    async with target.under_attack(grows_mib=16):
        assert (await post(target, ROLES, role(f"of-{len(names)}", rules)))[0] == status


@pytest.mark.parametrize(("subject", "status"), [
    ({"user": "x", "groups": [f"g{n}" for n in range(100_000)]}, 422),
    ({"user": "x", "groups": [f"g{n}" for n in range(1_000)]}, 201),
    ({"user": "x" * 1_000_000}, 201),
])  # fmt: skip
async def test_caches_of_review_subjects_are_bounded(target: Target, subject: dict[str, Any], status: int) -> None:
    wanted = {"namespace": "alice", "verb": "get", "resource": "pods"}
    review = {"kind": "LocalSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
    async with target.under_attack(grows_mib=24):
        for number in range(25 if "groups" not in subject else 3):
            spec = {**subject, "user": f"{number}{subject['user']}", "resourceAttributes": wanted}
            assert (await post(target, REVIEWS, {**review, "spec": spec}))[0] == status


async def test_garbage_collection_of_many_dependents_yields_to_requests(target: Target) -> None:
    _, owner = await post(target, CONFIGMAPS, {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    raw = await target.connect()
    for number in range(300):
        body = {"metadata": {"name": f"dependent-{number}", "ownerReferences": [reference]}}
        raw.send(request("POST", CONFIGMAPS, "alice", json.dumps(body).encode()))
        assert (await raw.answer())[0] == 201
    async with target.under_attack(grows_mib=16):
        path = f"{CONFIGMAPS}/owner?propagationPolicy=Foreground"
        assert (await send(target, request("DELETE", path, "alice")))[0] == 200


@pytest.mark.parametrize("amount", ["1e999999999", "9" * 900 + "e2000", "1e2048"])
async def test_absurd_quantities_cause_no_internal_error(target: Target, amount: str) -> None:
    container = {"name": "c", "image": "i", "resources": {"requests": {"memory": amount}}}
    body = {"metadata": {"generateName": "p-"}, "spec": {"containers": [container]}}
    assert (await post(target, "/api/v1/namespaces/alice/pods", body))[0] in (201, 422)


async def test_caches_of_field_paths_are_bounded(target: Target) -> None:
    """The objects are rejected, so that the store does not grow."""
    async with target.under_attack(grows_mib=32):
        for number in range(40):
            metadata = {"name": "refused", "finalizers": [f"a.b/{number}{'x' * 700_000}"]}
            assert (await post(target, CONFIGMAPS, {"metadata": metadata}))[0] == 422


async def test_a_collection_of_large_objects_can_be_deleted(target: Target) -> None:
    """The computation limit of one user does not prevent the deletion of a collection."""
    for number in range(24):
        body = {"metadata": {"name": f"large-{number}", "labels": {"kind": "large"}}, "data": {"a": "x" * 70_000}}
        assert (await post(target, CONFIGMAPS, body))[0] == 201
    chosen = f"{CONFIGMAPS}?labelSelector=kind%3Dlarge"
    assert (await send(target, request("DELETE", chosen, "alice")))[0] == 200
    assert json.loads((await send(target, request("GET", chosen, "alice")))[1])["items"] == []


async def test_the_number_of_errors_in_a_response_is_limited(target: Target) -> None:
    """Unread responses stay in memory for minutes."""
    invalid = {"metadata": {"name": "invalid"}, "data": {f"/{number}": "" for number in range(60_000)}}
    async with target.under_attack(grows_mib=64):
        status, body = await send(target, request("POST", CONFIGMAPS, "alice", json.dumps(invalid).encode()))
    assert status == 422
    assert len(body) < 1 << 20
    answer = json.loads(body)
    assert answer["details"]["causes"][0]["field"] == "data[/0]"
    assert answer["message"].endswith("more errors]")
