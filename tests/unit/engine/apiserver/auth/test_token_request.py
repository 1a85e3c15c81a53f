from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from herder.engine.apiserver.auth.jwt import unverified_claims
from herder.engine.apiserver.auth.token_request import TokenRequests
from herder.engine.apiserver.request.handler_call import SubresourceRequest
from herder.engine.meta.errors import BadRequest, Conflict, Invalid, NotFound, StatusError
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.store import Key
from herder.engine.wire import Request
from tests.unit.engine.apiserver.auth.fake_cluster import ADMIN, FakeCluster
from tests.unit.engine.apiserver.resources import resource


async def request_token(cluster: FakeCluster, body: Object, *, name: str = "builder") -> Any:
    def lookup(wanted: GroupResource, namespace: str, name: str) -> Object | None:
        record = cluster.store.get(Key(str(wanted), namespace, name))
        return json.decode(record.value) if record else None

    async def unused(*_: object) -> Object:
        raise AssertionError("a token request changes nothing")

    call = SubresourceRequest(
        request=Request("POST", "/"), user=ADMIN, resource=resource("serviceaccounts"), version="v1",
        subresource="token", verb="create", namespace="ci", name=name, body=body,
        parent=lookup(GroupResource("", "serviceaccounts"), "ci", name), now=cluster.now,
        entropy=cluster.random.randbytes, dry_run=False, warnings=[], path=(), lookup=lookup,
        list=lambda *_: (), update=unused, delete=unused,
    )  # fmt: skip
    return await TokenRequests(cluster.issuer).create(call)


@pytest.fixture
async def account(cluster: FakeCluster) -> Object:
    return await cluster.put("serviceaccounts", "builder", "ci")


async def test_a_token_expires_after_an_hour_by_default(cluster: FakeCluster, account: Object) -> None:
    answer = await request_token(cluster, {})
    token = answer["status"].pop("token")
    assert answer == {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": "builder",
            "namespace": "ci",
            "uid": account["metadata"]["uid"],
            "creationTimestamp": "2026-05-01T12:00:00Z",
        },
        "spec": {
            "audiences": ["https://kubernetes.default.svc.cluster.local"],
            "expirationSeconds": 3600,
            "boundObjectRef": None,
        },
        "status": {"expirationTimestamp": "2026-05-01T13:00:00Z"},
    }
    assert await cluster.verifier(token) is not None


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        ({"spec": {"expirationSeconds": 5}}, Invalid, 'TokenRequest.authentication.k8s.io "" is invalid: '
         "spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes"),
        ({"spec": {"expirationSeconds": 0}}, Invalid, 'TokenRequest.authentication.k8s.io "" is invalid: '
         "spec.expirationSeconds: Invalid value: 0: may not specify a duration less than 10 minutes"),
        ({"spec": {"expirationSeconds": 5294967296}}, Invalid, 'TokenRequest.authentication.k8s.io "" is invalid: '
         "spec.expirationSeconds: Invalid value: 5294967296: may not specify a duration larger than 2^32 seconds"),
        ({"metadata": {"name": "zz"}}, Invalid, 'TokenRequest.authentication.k8s.io "builder" is invalid: '
         'metadata.name: Invalid value: "zz": must match the service account name if specified'),
        ({"metadata": {"namespace": "zz"}}, BadRequest,
         "the namespace of the provided object does not match the namespace sent on the request"),
        ({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}}, NotFound,
         'pods "p" not found'),
        ({"spec": {"boundObjectRef": {"kind": "Job", "apiVersion": "batch/v1", "name": "p"}}}, BadRequest,
         "cannot bind token to object of type batch/v1, Kind=Job"),
    ],
)  # fmt: skip
async def test_invalid_token_requests_are_rejected(
    cluster: FakeCluster, account: Object, body: Object, kind: type[StatusError], expected: str
) -> None:
    with pytest.raises(kind) as refusal:
        await request_token(cluster, body)
    assert refusal.value.message == expected


async def test_the_account_must_exist_with_the_requested_uid(cluster: FakeCluster, account: Object) -> None:
    with pytest.raises(NotFound, match='serviceaccounts "nope" not found'):
        await request_token(cluster, {}, name="nope")
    with pytest.raises(Conflict) as refusal:
        await request_token(cluster, {"metadata": {"uid": "zz"}})
    assert refusal.value.message == (
        'Operation cannot be fulfilled on TokenRequest.authentication.k8s.io "builder": the UID in the token request '
        f"(zz) does not match the UID of the service account ({account['metadata']['uid']})"
    )


async def test_a_token_bound_to_a_pod_contains_its_node(cluster: FakeCluster, account: Object) -> None:
    node = await cluster.put("nodes", "worker")
    spec = {"serviceAccountName": "builder", "nodeName": "worker"}
    pod = await cluster.put("pods", "p", "ci", spec=spec)
    answer = await request_token(
        cluster, {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}}
    )
    private = unverified_claims(answer["status"]["token"])["kubernetes.io"]
    assert private["pod"] == {"name": "p", "uid": pod["metadata"]["uid"]}
    assert private["node"] == {"name": "worker", "uid": node["metadata"]["uid"]}


async def test_a_token_cannot_be_bound_to_a_pod_of_another_account(cluster: FakeCluster, account: Object) -> None:
    await cluster.put("pods", "p", "ci", spec={"serviceAccountName": "other"})
    with pytest.raises(BadRequest) as refusal:
        await request_token(cluster, {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}})
    assert refusal.value.message == (
        'cannot bind token for serviceaccount "builder" to pod running with different serviceaccount name.'
    )


async def test_a_token_cannot_be_bound_to_the_old_uid_of_a_recreated_object(
    cluster: FakeCluster, account: Object
) -> None:
    await cluster.put("secrets", "s", "ci")
    reference = {"kind": "Secret", "apiVersion": "v1", "name": "s", "uid": "u"}
    with pytest.raises(Conflict) as refusal:
        await request_token(cluster, {"spec": {"boundObjectRef": reference}})
    assert refusal.value.message == (
        'Operation cannot be fulfilled on Secret "s": the UID in the bound object reference (u) does not match the UID '
        "in record. The object might have been deleted and then recreated"
    )


async def test_a_pod_token_expires_after_a_year_and_contains_a_renewal_time(
    cluster: FakeCluster, account: Object
) -> None:
    await cluster.put("pods", "p", "ci", spec={"serviceAccountName": "builder"})
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
    answer = await request_token(cluster, {"spec": {"expirationSeconds": 3607, "boundObjectRef": reference}})
    claims = unverified_claims(answer["status"]["token"])
    assert claims["exp"] - claims["iat"] == 365 * 24 * 3600
    assert claims["kubernetes.io"]["warnafter"] - claims["iat"] == 3607
    assert answer["status"]["expirationTimestamp"] == "2026-05-01T13:00:07Z"
