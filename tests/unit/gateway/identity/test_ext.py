"""ext.cattle.io/v1: a user's own tokens and kubeconfigs, whose keys are shown once."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import yaml

from herder.api.capi.kinds import SECRET
from herder.api.example import CONFIG_MAP
from herder.api.identity.authn import passwords
from herder.api.identity.names import PASSWORDS_NAMESPACE, STORED_KIND
from herder.api.management.kinds import TOKEN, USER
from herder.api.management.names import TOKENS_NAMESPACE
from herder.engine.meta.errors import (
    BadRequest,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    NotFound,
    ServiceUnavailable,
    StatusError,
    Unauthorized,
)
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, User
from tests.support.canaries import canary
from tests.unit.engine.runtime.envtest import until
from tests.unit.gateway.identity.harness import IdentityHarness, new_request, request_with_token, running_identity

PATH = "/apis/ext.cattle.io/v1"
PASSWORD = canary("password of carol")


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_LOG_N", 4)


@pytest.fixture
async def harness() -> AsyncIterator[IdentityHarness]:
    async with running_identity() as created:
        created.settings |= {"server-url": "https://manager:8443", "cacerts": "PEM"}
        for name in ("u-alice", "u-bob"):
            await created.create_user(name, username=name.removeprefix("u-"))
        created.clusters["u-alice"] = {"c-m-1": "meadow", "c-m-2": "hill"}
        yield created


async def authenticated_user(harness: IdentityHarness, name: str = "u-alice") -> User:
    return await harness.identity.authenticate(request_with_token(await harness.create_token(name)))


async def call(harness: IdentityHarness, user: User, method: str, path: str, body: Any = None, query: str = "") -> Any:
    response = await harness.parts.ext.handle(new_request(method, f"{PATH}{path}", body, query=query), user)
    assert response is not None
    assert response.headers["cache-control"] == "no-store"
    return msgspec.json.decode(response.content())


async def new_token(harness: IdentityHarness, user: User, **spec: Any) -> Object:
    created: Object = await call(harness, user, "POST", "/tokens", {"spec": spec})
    return created


# --- the group ------------------------------------------------------------------------------------------------------


async def test_discovery_lists_the_kinds(harness: IdentityHarness) -> None:
    alice = await authenticated_user(harness)
    group = await harness.parts.ext.handle(new_request("GET", "/apis/ext.cattle.io"), alice)
    assert group is not None
    assert msgspec.json.decode(group.content())["preferredVersion"]["groupVersion"] == "ext.cattle.io/v1"
    kinds = {item["name"]: item["verbs"] for item in (await call(harness, alice, "GET", ""))["resources"]}
    assert kinds["tokens"] == kinds["kubeconfigs"] == ["create", "delete", "get", "list"]
    assert kinds["selfusers"] == ["create"]


@pytest.mark.parametrize("form", ["", ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"], ids=["old", "whole"])
async def test_group_discovery_includes_the_group_in_both_formats(harness: IdentityHarness, form: str) -> None:
    response = await harness.client.raw("GET", "/apis", headers={"accept": f"application/json{form}"})
    before = msgspec.json.decode(response.content())
    after = msgspec.json.decode(harness.parts.ext.groups(response).content())
    listed = "items" if form else "groups"
    assert after[listed][:-1] == before[listed]
    group = after[listed][-1]
    assert (group["metadata"]["name"] if form else group["name"]) == "ext.cattle.io"
    assert {name: value for name, value in after.items() if name != listed} == {
        name: value for name, value in before.items() if name != listed
    }


async def test_other_paths_are_not_handled(harness: IdentityHarness) -> None:
    for path in ("/apis/ext.cattle.io.evil/v1/tokens", "/apis/management.cattle.io/v3/tokens", "/v1"):
        assert await harness.parts.ext.handle(new_request("GET", path), await authenticated_user(harness)) is None


@pytest.mark.parametrize(
    ("method", "path", "query", "error"),
    [
        ("POST", "/tokens", "dryRun=All", BadRequest),
        ("DELETE", "/tokens/x", "dryRun=All", BadRequest),
        ("POST", "/passwordchangerequests", "dryRun=All", BadRequest),
        ("PUT", "/tokens/x", "", MethodNotAllowed),
        ("PATCH", "/tokens/x", "", MethodNotAllowed),
        ("DELETE", "/tokens", "", MethodNotAllowed),
        ("GET", "/tokens", "watch=true", MethodNotAllowed),
        ("GET", "/selfusers", "", MethodNotAllowed),
        ("GET", "/others", "", NotFound),
        ("GET", "/tokens/x/y", "", NotFound),
        ("GET", "/tokens/../secrets", "", NotFound),
        ("GET", "/tokens/..", "", NotFound),
    ],
)
async def test_unsupported_requests_are_rejected(
    harness: IdentityHarness, method: str, path: str, query: str, error: type[StatusError]
) -> None:
    with pytest.raises(error):
        await call(harness, await authenticated_user(harness), method, path, {}, query)


async def test_selfusers_returns_the_users_id(harness: IdentityHarness) -> None:
    assert (await call(harness, await authenticated_user(harness), "POST", "/selfusers", {}))["status"] == {
        "userID": "u-alice"
    }


# --- tokens ---------------------------------------------------------------------------------------------------------


async def test_a_new_token_shows_its_key_once_and_authenticates_its_user(harness: IdentityHarness) -> None:
    alice = await authenticated_user(harness)
    created = await new_token(harness, alice, description="robot")
    status, name = created["status"], created["metadata"]["name"]
    assert status["bearerToken"] == f"ext/{name}:{status['value']}"
    assert (await harness.identity.authenticate(request_with_token(status["bearerToken"]))).name == "u-alice"
    read_back = await call(harness, alice, "GET", f"/tokens/{name}")
    listed = (await call(harness, alice, "GET", "/tokens"))["items"]
    stored = await harness.env.outside.get(SECRET.resource, name, namespace=TOKENS_NAMESPACE)
    assert status["value"] not in str([read_back, listed])
    assert status["value"] not in str({key: base64.b64decode(value) for key, value in stored["data"].items()})
    assert read_back["spec"] == {
        "userID": "u-alice",
        "userPrincipal": {"name": "local://u-alice", "loginName": "alice"},
        "kind": "",
        "description": "robot",
        "ttl": 129600 * 60_000,
        "enabled": True,
        "clusterName": "",
    }


@pytest.mark.parametrize(("ttl", "expected"), [(0, 129600 * 60_000), (5000, 5000), (-1, 129600 * 60_000)])
async def test_the_ttl_of_a_token_is_in_milliseconds(harness: IdentityHarness, ttl: int, expected: int) -> None:
    assert (await new_token(harness, await authenticated_user(harness), ttl=ttl))["spec"]["ttl"] == expected


async def test_tokens_of_other_users_are_not_found(harness: IdentityHarness) -> None:
    alice, bob = await authenticated_user(harness), await authenticated_user(harness, "u-bob")
    name = (await new_token(harness, alice))["metadata"]["name"]
    for method in ("GET", "DELETE"):
        with pytest.raises(NotFound, match=f'tokens.ext.cattle.io "{name}" not found'):
            await call(harness, bob, method, f"/tokens/{name}")
    assert (await call(harness, bob, "GET", "/tokens"))["items"] == []


async def test_a_user_cannot_create_tokens_for_others(harness: IdentityHarness) -> None:
    with pytest.raises(Forbidden, match=r"spec\.userID"):
        await new_token(harness, await authenticated_user(harness), userID="u-bob")
    with pytest.raises(Forbidden, match=r"spec\.kind"):
        await new_token(harness, await authenticated_user(harness), kind="session")
    with pytest.raises(Forbidden, match=r"spec\.kind"):
        await new_token(harness, await authenticated_user(harness), kind="provisioning")


async def test_labels_do_not_change_the_owner_of_a_token(harness: IdentityHarness) -> None:
    """The data of a token determines its user; labels are only for lookups."""
    alice, bob = await authenticated_user(harness), await authenticated_user(harness, "u-bob")
    name = (await new_token(harness, alice))["metadata"]["name"]
    labels = {"metadata": {"labels": {"cattle.io/user-id": "u-bob"}}}
    await harness.env.outside.patch(SECRET.resource, name, labels, namespace=TOKENS_NAMESPACE)
    assert (await call(harness, bob, "GET", "/tokens"))["items"] == []


async def test_a_deleted_token_is_rejected_at_once(harness: IdentityHarness) -> None:
    alice = await authenticated_user(harness)
    created = await new_token(harness, alice)
    await call(harness, alice, "DELETE", f"/tokens/{created['metadata']['name']}")
    with pytest.raises(Unauthorized):
        await harness.identity.authenticate(request_with_token(created["status"]["bearerToken"]))


async def test_other_secrets_of_the_namespace_cannot_be_read_as_tokens(harness: IdentityHarness) -> None:
    alice = await authenticated_user(harness)
    name = (await new_token(harness, alice))["metadata"]["name"]
    labels = {"metadata": {"labels": {STORED_KIND: "something"}}}
    await harness.env.outside.patch(SECRET.resource, name, labels, namespace=TOKENS_NAMESPACE)
    with pytest.raises(NotFound):
        await call(harness, alice, "GET", f"/tokens/{name}")


# --- kubeconfigs ----------------------------------------------------------------------------------------------------


async def new_kubeconfig(harness: IdentityHarness, user: User, **spec: Any) -> Object:
    created: Object = await call(harness, user, "POST", "/kubeconfigs", {"spec": spec})
    return created


def token_in_kubeconfig(value: str) -> str:
    return str(yaml.safe_load(value)["users"][0]["user"]["token"])


async def test_a_kubeconfig_points_to_its_clusters_through_the_manager(harness: IdentityHarness) -> None:
    alice = await authenticated_user(harness)
    created = await new_kubeconfig(harness, alice, clusters=["c-m-1", "c-m-2"], currentContext="c-m-2", ttl=600)
    config = yaml.safe_load(created["status"]["value"])
    assert {entry["name"]: entry["cluster"] for entry in config["clusters"]} == {
        name: {"server": f"https://manager:8443/k8s/clusters/{id_}", "certificate-authority-data": "UEVN"}
        for id_, name in (("c-m-1", "meadow"), ("c-m-2", "hill"))
    }
    assert config["current-context"] == "hill"
    user = await harness.identity.authenticate(
        request_with_token(token_in_kubeconfig(created["status"]["value"]), "/k8s/clusters/c-m-1/api")
    )
    assert user.name == "u-alice"
    token = await call(harness, alice, "GET", f"/tokens/{created['status']['tokens'][0]}")
    assert token["spec"]["ttl"] == 600_000, "a kubeconfig's ttl is in seconds"


async def test_a_kubeconfig_for_one_cluster_is_valid_only_there(harness: IdentityHarness) -> None:
    created = await new_kubeconfig(harness, await authenticated_user(harness), clusters=["c-m-1"])
    bearer = token_in_kubeconfig(created["status"]["value"])
    await harness.identity.authenticate(request_with_token(bearer, "/k8s/clusters/c-m-1/api"))
    for path in ("/k8s/clusters/c-m-2/api", "/", f"{PATH}/tokens"):
        with pytest.raises(Unauthorized):
            await harness.identity.authenticate(request_with_token(bearer, path))


async def test_a_wildcard_selects_the_clusters_that_the_user_can_reach(harness: IdentityHarness) -> None:
    config = yaml.safe_load(
        (await new_kubeconfig(harness, await authenticated_user(harness), clusters=["*"]))["status"]["value"]
    )
    assert [entry["name"] for entry in config["contexts"]] == ["meadow", "hill"]
    bob = await authenticated_user(harness, "u-bob")
    assert yaml.safe_load((await new_kubeconfig(harness, bob, clusters=["*"]))["status"]["value"])["clusters"] == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"clusters": ["c-m-1"]}, r"spec.clusters\[0\]: cluster"),
        ({"clusters": ["*", "c-m-1"]}, r"spec.clusters\[0\]"),
        ({"clusters": "c-m-1"}, "must be a list"),
        ({}, "at least one"),
        ({"clusters": ["*"], "currentContext": "c-m-1"}, "spec.currentContext"),
        ({"clusters": ["*"], "ttl": "long"}, "ttl: must be a whole number"),
    ],
)
async def test_a_rejected_kubeconfig_leaves_no_token(harness: IdentityHarness, spec: Object, message: str) -> None:
    bob = await authenticated_user(harness, "u-bob")
    with pytest.raises(BadRequest, match=message):
        await new_kubeconfig(harness, bob, **spec)
    assert (await call(harness, bob, "GET", "/tokens"))["items"] == []


@pytest.mark.parametrize("ext", [False, True])
@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "disabled"])
async def test_no_kubeconfig_outlasts_the_token_that_requested_it(
    harness: IdentityHarness, ext: bool, is_deleted: bool
) -> None:
    """On other API servers, it takes seconds to find the clusters of a user among thousands."""
    bearer = await harness.create_token("u-alice", name="token-stolen", ext=ext)
    user = await harness.identity.authenticate(request_with_token(bearer))
    kind, namespace = (SECRET, TOKENS_NAMESPACE) if ext else (TOKEN, "")
    disabled = await harness.env.outside.get(kind.resource, "token-stolen", namespace=namespace)
    disabled |= {"apiVersion": kind.api_version, "kind": kind.kind}
    if ext:
        disabled["data"]["enabled"] = base64.b64encode(b"false").decode()
    else:
        disabled["enabled"] = False
    disabled["metadata"]["resourceVersion"] = str(int(disabled["metadata"]["resourceVersion"]) + 1)

    class RevokedMeanwhile(dict[str, str]):
        def __contains__(self, cluster: object) -> bool:
            if is_deleted:
                harness.identity.known.removed(revoked)
            else:
                harness.identity.known.wrote(disabled)
            return True

        def __getitem__(self, cluster: str) -> str:
            return cluster

    revoked = harness.identity.known.cached_token("token-stolen", ext=ext)
    assert revoked is not None
    harness.clusters["u-alice"] = RevokedMeanwhile()
    with pytest.raises(Unauthorized):
        await call(harness, user, "POST", "/kubeconfigs", {"spec": {"clusters": ["c-m-one"]}})
    kept = await harness.env.outside.list(SECRET.resource, namespace=TOKENS_NAMESPACE)
    assert {each["metadata"]["name"] for each in kept.items} <= {"token-stolen"}


Meanwhile = Callable[[IdentityHarness], Awaitable[Any]]


async def _expire(harness: IdentityHarness) -> None:
    harness.clock_offset = timedelta(hours=2)


MEANWHILE: dict[str, Meanwhile] = {
    "disabled": lambda harness: harness.env.outside.patch(TOKEN.resource, "token-stolen", {"enabled": False}),
    "expired": _expire,
    "user disabled": lambda harness: harness.env.outside.patch(USER.resource, "u-alice", {"enabled": False}),
    "new password required": lambda harness: harness.env.outside.patch(
        USER.resource, "u-alice", {"mustChangePassword": True}
    ),
}


@pytest.mark.parametrize("change", MEANWHILE)
async def test_no_token_is_issued_to_a_request_that_would_be_refused_now(harness: IdentityHarness, change: str) -> None:
    bearer = await harness.create_token("u-alice", name="token-stolen", ttl_ms=3_600_000)
    request = request_with_token(bearer, f"{PATH}/kubeconfigs", "POST")
    user = await harness.identity.authenticate(request)
    reachable = harness.reachable

    async def slowly(user: User) -> dict[str, str]:
        found = await reachable(user)
        await MEANWHILE[change](harness)
        for _ in range(100):
            try:
                await harness.identity.authenticate(request)
            except (Unauthorized, Forbidden):
                return found
            await asyncio.sleep(0.01)
        raise AssertionError("the change has not arrived")

    harness.parts.kubeconfigs.reachable = slowly
    with pytest.raises((Unauthorized, Forbidden)):
        await call(harness, user, "POST", "/kubeconfigs", {"spec": {"clusters": ["c-m-1"]}})
    assert (await harness.env.outside.list(SECRET.resource, namespace=TOKENS_NAMESPACE)).items == []


async def test_a_kubeconfig_may_include_the_manager(harness: IdentityHarness) -> None:
    created = await new_kubeconfig(
        harness, await authenticated_user(harness), includeDefaultEntry=True, clusters=["c-m-1"]
    )
    config = yaml.safe_load(created["status"]["value"])
    assert [entry["name"] for entry in config["clusters"]] == ["rancher", "meadow"]
    assert config["clusters"][0]["cluster"]["server"] == "https://manager:8443"
    await harness.identity.authenticate(request_with_token(token_in_kubeconfig(created["status"]["value"]), "/"))


async def test_a_kubeconfig_is_stored_without_keys_and_deleted_with_its_token(harness: IdentityHarness) -> None:
    alice, bob = await authenticated_user(harness), await authenticated_user(harness, "u-bob")
    created = await new_kubeconfig(harness, alice, clusters=["c-m-1"], description="mine")
    name, key = created["metadata"]["name"], token_in_kubeconfig(created["status"]["value"]).split(":")[1]
    stored = await harness.env.outside.get(CONFIG_MAP.resource, name, namespace=TOKENS_NAMESPACE)
    assert key not in str([stored, await call(harness, alice, "GET", f"/kubeconfigs/{name}")])
    assert [item["spec"]["description"] for item in (await call(harness, alice, "GET", "/kubeconfigs"))["items"]] == [
        "mine"
    ]
    assert (await call(harness, bob, "GET", "/kubeconfigs"))["items"] == []
    with pytest.raises(NotFound):
        await call(harness, bob, "DELETE", f"/kubeconfigs/{name}")
    await call(harness, alice, "DELETE", f"/kubeconfigs/{name}")
    with pytest.raises(Unauthorized):
        await harness.identity.authenticate(
            request_with_token(token_in_kubeconfig(created["status"]["value"]), "/k8s/clusters/c-m-1")
        )
    with pytest.raises(NotFound):
        await call(harness, alice, "GET", f"/kubeconfigs/{name}")


async def test_without_generated_tokens_a_kubeconfig_uses_the_exec_plugin(harness: IdentityHarness) -> None:
    harness.settings["kubeconfig-generate-token"] = "false"
    created = await new_kubeconfig(harness, await authenticated_user(harness), clusters=["c-m-1"])
    assert created["status"]["tokens"] == []
    plugin = yaml.safe_load(created["status"]["value"])["users"][0]["user"]["exec"]
    assert [plugin["command"], *plugin["args"]] == ["rancher", "token", "--server=manager:8443", "--user=alice"]


async def test_kubeconfigs_need_the_server_url(harness: IdentityHarness) -> None:
    harness.settings["server-url"] = ""
    with pytest.raises(ServiceUnavailable, match="setting server-url is empty"):
        await new_kubeconfig(harness, await authenticated_user(harness), clusters=["c-m-1"])


async def test_the_generate_kubeconfig_action_of_a_cluster(harness: IdentityHarness) -> None:
    alice, bob = await authenticated_user(harness), await authenticated_user(harness, "u-bob")
    action: Request = new_request("POST", "/v3/clusters/c-m-1", query="action=generateKubeconfig")
    response = await harness.parts.kubeconfigs.handle(action, alice)
    assert response is not None
    created = msgspec.json.decode(response.content())
    assert created["type"] == "generateKubeconfigOutput"
    await harness.identity.authenticate(
        request_with_token(token_in_kubeconfig(created["config"]), "/k8s/clusters/c-m-1/api")
    )
    with pytest.raises(NotFound):
        await harness.parts.kubeconfigs.handle(action, bob)
    assert await harness.parts.kubeconfigs.handle(new_request("POST", "/v3/clusters/c-m-1"), alice) is None


# --- passwords ------------------------------------------------------------------------------------------------------


async def change(harness: IdentityHarness, user: User, current: str, new: str, **extra: Any) -> Any:
    spec = {"currentPassword": current, "newPassword": new, **extra}
    return await call(harness, user, "POST", "/passwordchangerequests", {"spec": spec})


async def test_a_password_change_needs_the_current_password_and_ends_other_sessions(
    harness: IdentityHarness,
) -> None:
    created = await harness.parts.users.create("carol", PASSWORD, must_change=True)
    name = created["metadata"]["name"]
    session = await harness.create_token(name)
    with pytest.raises(Forbidden):
        await harness.identity.authenticate(request_with_token(session))
    carol = await harness.identity.authenticate(request_with_token(session, f"{PATH}/passwordchangerequests", "POST"))
    with pytest.raises(Forbidden, match=r"spec\.currentPassword: wrong password"):
        await change(harness, carol, "wrong", "another good password")
    for bad in ("short", PASSWORD):
        with pytest.raises((Invalid, BadRequest), match=r"spec\.newPassword"):
            await change(harness, carol, PASSWORD, bad)
    with pytest.raises(Forbidden, match=r"spec\.userID"):
        await change(harness, carol, PASSWORD, "another good password", userID="u-alice")
    stolen, program = await harness.create_token(name), await harness.create_token(name, kind="")
    await change(harness, carol, PASSWORD, "another good password")
    await until(lambda: not (harness.identity.known.user_of_login("carol") or {}).get("mustChangePassword", True))
    for bearer in (session, program):
        assert (await harness.identity.authenticate(request_with_token(bearer))).name == name
    await until(lambda: harness.identity.known.cached_token(stolen.split(":")[0], ext=False) is None)
    with pytest.raises(Unauthorized):
        await harness.identity.authenticate(request_with_token(stolen))
    assert len((await harness.env.outside.list(SECRET.resource, namespace=PASSWORDS_NAMESPACE)).items) == 1


async def test_a_list_of_many_tokens_yields_to_other_tasks(
    harness: IdentityHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users may have any number of tokens: 1,800 took 85 ms."""
    monkeypatch.setattr("herder.gateway.identity.ext.tokens.PAGE_SIZE", 2)
    user = await authenticated_user(harness)
    for _ in range(10):
        await call(harness, user, "POST", "/tokens", {"spec": {}})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        listed = await call(harness, user, "GET", "/tokens")
    finally:
        counting.cancel()
    assert len(listed["items"]) == 10
    assert turns >= 4
