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
from tests.unit.engine.apiserver.auth.world import ADMIN, World
from tests.unit.engine.apiserver.resources import resource


async def ask(world: World, body: Object, *, name: str = "builder") -> Any:
    def lookup(wanted: GroupResource, namespace: str, name: str) -> Object | None:
        record = world.store.get(Key(str(wanted), namespace, name))
        return json.decode(record.value) if record else None

    async def unused(*_: object) -> Object:
        raise AssertionError("a token request changes nothing")

    call = SubresourceRequest(
        request=Request("POST", "/"), user=ADMIN, resource=resource("serviceaccounts"), version="v1",
        subresource="token", verb="create", namespace="ci", name=name, body=body,
        parent=lookup(GroupResource("", "serviceaccounts"), "ci", name), now=world.now,
        entropy=world.random.randbytes, dry_run=False, warnings=[], path=(), lookup=lookup,
        list=lambda *_: (), update=unused, delete=unused,
    )  # fmt: skip
    return await TokenRequests(world.issuer).create(call)


@pytest.fixture
async def account(world: World) -> Object:
    return await world.put("serviceaccounts", "builder", "ci")


async def test_a_token_for_an_hour_unless_asked_otherwise(world: World, account: Object) -> None:
    answer = await ask(world, {})
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
    assert await world.verifier(token) is not None


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
async def test_what_cannot_be_granted_is_refused(
    world: World, account: Object, body: Object, kind: type[StatusError], expected: str
) -> None:
    with pytest.raises(kind) as refusal:
        await ask(world, body)
    assert refusal.value.message == expected


async def test_the_account_must_be_there_and_be_the_one_meant(world: World, account: Object) -> None:
    with pytest.raises(NotFound, match='serviceaccounts "nope" not found'):
        await ask(world, {}, name="nope")
    with pytest.raises(Conflict) as refusal:
        await ask(world, {"metadata": {"uid": "zz"}})
    assert refusal.value.message == (
        'Operation cannot be fulfilled on TokenRequest.authentication.k8s.io "builder": the UID in the token request '
        f"(zz) does not match the UID of the service account ({account['metadata']['uid']})"
    )


async def test_a_token_bound_to_a_pod_knows_its_node(world: World, account: Object) -> None:
    node = await world.put("nodes", "worker")
    spec = {"serviceAccountName": "builder", "nodeName": "worker"}
    pod = await world.put("pods", "p", "ci", spec=spec)
    answer = await ask(world, {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}})
    private = unverified_claims(answer["status"]["token"])["kubernetes.io"]
    assert private["pod"] == {"name": "p", "uid": pod["metadata"]["uid"]}
    assert private["node"] == {"name": "worker", "uid": node["metadata"]["uid"]}


async def test_a_pod_of_another_account_cannot_be_bound_to(world: World, account: Object) -> None:
    await world.put("pods", "p", "ci", spec={"serviceAccountName": "other"})
    with pytest.raises(BadRequest) as refusal:
        await ask(world, {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}})
    assert refusal.value.message == (
        'cannot bind token for serviceaccount "builder" to pod running with different serviceaccount name.'
    )


async def test_an_object_that_was_made_anew_cannot_be_bound_to_by_its_old_uid(world: World, account: Object) -> None:
    await world.put("secrets", "s", "ci")
    reference = {"kind": "Secret", "apiVersion": "v1", "name": "s", "uid": "u"}
    with pytest.raises(Conflict) as refusal:
        await ask(world, {"spec": {"boundObjectRef": reference}})
    assert refusal.value.message == (
        'Operation cannot be fulfilled on Secret "s": the UID in the bound object reference (u) does not match the UID '
        "in record. The object might have been deleted and then recreated"
    )


async def test_what_pods_ask_for_lives_a_year_but_says_when_to_renew(world: World, account: Object) -> None:
    await world.put("pods", "p", "ci", spec={"serviceAccountName": "builder"})
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
    answer = await ask(world, {"spec": {"expirationSeconds": 3607, "boundObjectRef": reference}})
    claims = unverified_claims(answer["status"]["token"])
    assert claims["exp"] - claims["iat"] == 365 * 24 * 3600
    assert claims["kubernetes.io"]["warnafter"] - claims["iat"] == 3607
    assert answer["status"]["expirationTimestamp"] == "2026-05-01T13:00:07Z"
