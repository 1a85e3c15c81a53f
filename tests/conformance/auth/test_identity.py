"""Authentication: service accounts, tokens, token reviews, impersonation and anonymous requests."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.api import Api

REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@asynccontextmanager
async def bearer(api: Api, token: str) -> AsyncIterator[Api]:
    caller = api.with_token(token)
    try:
        yield caller
    finally:
        await caller.close()


async def whoami(api: Api) -> Any:
    return (await api.post(WHOAMI, {})).expect(201)["status"]["userInfo"]


async def account(api: Api, name: str = "robot") -> Any:
    return await api.create("serviceaccounts", {"metadata": {"name": name}})


async def token_for(api: Api, name: str = "robot", **spec: Any) -> Any:
    return (await api.post(api.at("serviceaccounts", name, "token"), {"spec": spec})).expect(201)


def claims(token: str) -> Any:
    body = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


async def test_the_administrator_authenticates_by_certificate(api: Api) -> None:
    user = await whoami(api)
    assert set(user["groups"]) == {"system:masters", "system:authenticated"}


async def test_every_namespace_gets_a_default_account(api: Api) -> None:
    answer = await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    assert answer.body["metadata"]["namespace"] == api.namespace


async def test_the_default_account_is_recreated(api: Api) -> None:
    first = (await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)).body
    await api.delete(api.at("serviceaccounts", "default"))
    uid = first["metadata"]["uid"]
    await api.until(
        api.at("serviceaccounts", "default"),
        lambda answer: answer.status == 200 and answer.body["metadata"]["uid"] != uid,
    )


async def test_every_namespace_gets_the_root_certificate(api: Api) -> None:
    answer = await api.until(api.at("configmaps", "kube-root-ca.crt"), lambda answer: answer.status == 200)
    assert answer.body["data"]["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")


async def test_a_requested_token_authenticates_the_account(api: Api) -> None:
    created = await account(api)
    request = await token_for(api)
    assert request["kind"] == "TokenRequest"
    assert request["spec"]["expirationSeconds"] == 3600
    assert request["status"]["expirationTimestamp"]
    async with bearer(api, request["status"]["token"]) as robot:
        user = await whoami(robot)
    assert user["username"] == f"system:serviceaccount:{api.namespace}:robot"
    assert user["uid"] == created["metadata"]["uid"]
    assert set(user["groups"]) == {
        "system:serviceaccounts",
        f"system:serviceaccounts:{api.namespace}",
        "system:authenticated",
    }


async def test_the_claims_of_a_token(api: Api) -> None:
    created = await account(api)
    token = (await token_for(api, expirationSeconds=700))["status"]["token"]
    found = claims(token)
    assert found["sub"] == f"system:serviceaccount:{api.namespace}:robot"
    assert found["exp"] - found["iat"] == 700
    assert found["kubernetes.io"]["namespace"] == api.namespace
    assert found["kubernetes.io"]["serviceaccount"] == {"name": "robot", "uid": created["metadata"]["uid"]}
    assert isinstance(found["aud"], list)
    assert found["jti"]


async def test_a_token_for_another_audience_is_rejected(api: Api) -> None:
    await account(api)
    request = await token_for(api, audiences=["vault"])
    assert claims(request["status"]["token"])["aud"] == ["vault"]
    async with bearer(api, request["status"]["token"]) as robot:
        answer = await robot.get(api.at("configmaps"))
    assert answer.failure == (401, "Unauthorized", "Unauthorized")


async def test_a_token_lives_at_least_ten_minutes(api: Api) -> None:
    await account(api)
    answer = await api.post(api.at("serviceaccounts", "robot", "token"), {"spec": {"expirationSeconds": 5}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes" in answer.message


async def test_no_token_for_an_account_that_does_not_exist(api: Api) -> None:
    answer = await api.post(api.at("serviceaccounts", "nobody", "token"), {"spec": {}})
    assert answer.failure == (404, "NotFound", 'serviceaccounts "nobody" not found')


async def test_a_token_is_invalid_after_its_account_is_deleted(api: Api) -> None:
    await account(api)
    token = (await token_for(api))["status"]["token"]
    await api.delete(api.at("serviceaccounts", "robot"))
    async with bearer(api, token) as robot:
        answer = await robot.get("/api")
    assert answer.failure == (401, "Unauthorized", "Unauthorized")


async def test_a_bound_token_is_invalid_after_its_secret_is_deleted(api: Api) -> None:
    await account(api)
    created = await api.create("secrets", {"metadata": {"name": "anchor"}})
    bound = {"kind": "Secret", "apiVersion": "v1", "name": "anchor", "uid": created["metadata"]["uid"]}
    token = (await token_for(api, boundObjectRef=bound))["status"]["token"]
    await api.delete(api.at("secrets", "anchor"))
    async with bearer(api, token) as robot:
        assert (await robot.get("/api")).status == 401


async def test_a_token_is_not_bound_to_an_object_of_another_uid(api: Api) -> None:
    await account(api)
    await api.create("secrets", {"metadata": {"name": "anchor"}})
    bound = {"kind": "Secret", "apiVersion": "v1", "name": "anchor", "uid": "other"}
    url = api.at("serviceaccounts", "robot", "token")
    answer = await api.post(url, {"spec": {"boundObjectRef": bound}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert "the UID in the bound object reference (other) does not match the UID in record" in answer.message


async def test_a_token_secret_is_filled(api: Api) -> None:
    created = await account(api)
    annotations = {"kubernetes.io/service-account.name": "robot"}
    obj = {"metadata": {"name": "t", "annotations": annotations}, "type": "kubernetes.io/service-account-token"}
    await api.create("secrets", obj)
    filled = await api.until_object(api.at("secrets", "t"), lambda found: "token" in (found.get("data") or {}))
    assert set(filled["data"]) == {"token", "ca.crt", "namespace"}
    assert base64.b64decode(filled["data"]["namespace"]).decode() == api.namespace
    assert filled["metadata"]["annotations"]["kubernetes.io/service-account.uid"] == created["metadata"]["uid"]
    async with bearer(api, base64.b64decode(filled["data"]["token"]).decode()) as robot:
        assert (await whoami(robot))["username"] == f"system:serviceaccount:{api.namespace}:robot"


async def test_a_token_secret_is_deleted_with_its_account(api: Api) -> None:
    await account(api)
    annotations = {"kubernetes.io/service-account.name": "robot"}
    obj = {"metadata": {"name": "t", "annotations": annotations}, "type": "kubernetes.io/service-account-token"}
    await api.create("secrets", obj)
    await api.until_object(api.at("secrets", "t"), lambda found: "token" in (found.get("data") or {}))
    await api.delete(api.at("serviceaccounts", "robot"))
    await api.until_gone(api.at("secrets", "t"))


async def test_a_token_secret_must_name_its_account(api: Api) -> None:
    obj = {"metadata": {"name": "t"}, "type": "kubernetes.io/service-account-token"}
    answer = await api.post(api.at("secrets"), obj)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "metadata.annotations[kubernetes.io/service-account.name]: Required value" in answer.message


# --- reviews --------------------------------------------------------------------------------------------------------


async def test_a_good_token_is_reviewed(api: Api) -> None:
    created = await account(api)
    token = (await token_for(api))["status"]["token"]
    status = (await api.post(REVIEW, {"spec": {"token": token}})).expect(201)["status"]
    assert status["authenticated"] is True
    assert status["user"]["username"] == f"system:serviceaccount:{api.namespace}:robot"
    assert status["user"]["uid"] == created["metadata"]["uid"]
    assert "authentication.kubernetes.io/credential-id" in status["user"]["extra"]


async def test_a_bad_token_is_reviewed(api: Api) -> None:
    status = (await api.post(REVIEW, {"spec": {"token": "nonsense"}})).expect(201)["status"]
    assert not status.get("authenticated")
    assert status["user"] == {}


async def test_a_token_is_reviewed_for_an_audience(api: Api) -> None:
    await account(api)
    token = (await token_for(api, audiences=["vault"]))["status"]["token"]
    good = (await api.post(REVIEW, {"spec": {"token": token, "audiences": ["vault"]}})).expect(201)["status"]
    assert good["authenticated"] is True
    assert good["audiences"] == ["vault"]
    bad = (await api.post(REVIEW, {"spec": {"token": token, "audiences": ["other"]}})).expect(201)["status"]
    assert not bad.get("authenticated")


async def test_a_review_needs_a_token(api: Api) -> None:
    answer = await api.post(REVIEW, {"spec": {}})
    assert answer.failure == (400, "BadRequest", "token is required for TokenReview in authentication")


# --- anonymous users and impersonation --------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["nonsense", "a.b.c", "eyJhbGciOiJub25lIn0.e30."])
async def test_an_invalid_token_is_unauthorized(api: Api, token: str) -> None:
    async with bearer(api, token) as stranger:
        answer = await stranger.get("/api/v1/namespaces")
    assert answer.failure == (401, "Unauthorized", "Unauthorized")


async def test_anonymous_users_have_few_permissions(api: Api) -> None:
    async with bearer(api, "") as anonymous:
        assert (await anonymous.get("/version")).status == 200
        assert (await anonymous.get("/healthz")).status == 200
        answer = await anonymous.get(api.at("configmaps"))
    assert answer.failure == (
        403,
        "Forbidden",
        f'configmaps is forbidden: User "system:anonymous" cannot list resource "configmaps" in API group "" '
        f'in the namespace "{api.namespace}"',
    )


async def test_impersonation_changes_the_user(api: Api) -> None:
    user = await whoami(api.as_user("alice", "wonderland"))
    assert user["username"] == "alice"
    assert set(user["groups"]) == {"wonderland", "system:authenticated"}


async def test_impersonation_of_an_account_has_its_groups(api: Api) -> None:
    user = await whoami(api.as_user(f"system:serviceaccount:{api.namespace}:robot"))
    assert set(user["groups"]) == {
        "system:serviceaccounts",
        f"system:serviceaccounts:{api.namespace}",
        "system:authenticated",
    }


async def test_impersonation_of_anonymous_has_its_group(api: Api) -> None:
    assert (await api.as_user("system:anonymous").get("/version")).status == 200  # unauthenticated users, too
    answer = await api.as_user("system:anonymous").post(WHOAMI, {})  # authenticated users only
    assert answer.status == 403


async def test_impersonation_carries_extra_and_uid(api: Api) -> None:
    caller = api.with_headers(impersonate_user="alice", impersonate_uid="42", **{"impersonate-extra-scopes": "view"})
    user = await whoami(caller)
    assert user["uid"] == "42"
    assert user["extra"]["scopes"] == ["view"]


async def test_impersonated_groups_need_a_user(api: Api) -> None:
    answer = await api.with_headers(impersonate_group="wonderland").get(api.at("configmaps"))
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert answer.message.endswith("without impersonating a user name")


async def test_impersonation_needs_the_right_to_impersonate(api: Api) -> None:
    await account(api)
    token = (await token_for(api))["status"]["token"]
    async with bearer(api, token) as robot:
        answer = await robot.as_user("alice").get(api.at("configmaps"))
    assert (answer.status, answer.reason) == (403, "Forbidden")
    assert answer.message == (
        f'configmaps is forbidden: User "system:serviceaccount:{api.namespace}:robot" cannot '
        f'impersonate-on:user-info:list resource "configmaps" in API group "" in the namespace "{api.namespace}"'
    )
