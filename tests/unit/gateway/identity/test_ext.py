"""ext.cattle.io/v1: tokens and kubeconfigs of one's own, whose keys are shown once."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import yaml

from herder.api.capi.kinds import SECRET
from herder.api.example import CONFIG_MAP
from herder.api.identity.authn import passwords
from herder.api.identity.names import PASSWORDS_NAMESPACE, STORED_KIND
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
from tests.unit.engine.runtime.world import until
from tests.unit.gateway.identity.people import People, asked, people, sent

PATH = "/apis/ext.cattle.io/v1"
PASSWORD = canary("password of carol")


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_LOG_N", 4)


@pytest.fixture
async def here() -> AsyncIterator[People]:
    async with people() as made:
        made.settings |= {"server-url": "https://manager:8443", "cacerts": "PEM"}
        for name in ("u-alice", "u-bob"):
            await made.user(name, username=name.removeprefix("u-"))
        made.clusters["u-alice"] = {"c-m-1": "meadow", "c-m-2": "hill"}
        yield made


async def someone(here: People, name: str = "u-alice") -> User:
    return await here.identity.authenticate(asked(await here.token(name)))


async def ask(here: People, user: User, method: str, path: str, body: Any = None, query: str = "") -> Any:
    response = await here.parts.ext.handle(sent(method, f"{PATH}{path}", body, query=query), user)
    assert response is not None
    assert response.headers["cache-control"] == "no-store"
    return msgspec.json.decode(response.content())


async def new_token(here: People, user: User, **spec: Any) -> Object:
    made: Object = await ask(here, user, "POST", "/tokens", {"spec": spec})
    return made


# --- the group ------------------------------------------------------------------------------------------------------


async def test_clients_find_the_kinds_by_discovery(here: People) -> None:
    alice = await someone(here)
    group = await here.parts.ext.handle(sent("GET", "/apis/ext.cattle.io"), alice)
    assert group is not None
    assert msgspec.json.decode(group.content())["preferredVersion"]["groupVersion"] == "ext.cattle.io/v1"
    kinds = {item["name"]: item["verbs"] for item in (await ask(here, alice, "GET", ""))["resources"]}
    assert kinds["tokens"] == kinds["kubeconfigs"] == ["create", "delete", "get", "list"]
    assert kinds["selfusers"] == ["create"]


@pytest.mark.parametrize("form", ["", ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"], ids=["old", "whole"])
async def test_the_group_is_among_those_of_the_server_in_either_form(here: People, form: str) -> None:
    theirs = await here.client.raw("GET", "/apis", headers={"accept": f"application/json{form}"})
    before = msgspec.json.decode(theirs.content())
    told = msgspec.json.decode(here.parts.ext.groups(theirs).content())
    listed = "items" if form else "groups"
    assert told[listed][:-1] == before[listed]
    ours = told[listed][-1]
    assert (ours["metadata"]["name"] if form else ours["name"]) == "ext.cattle.io"
    assert {name: value for name, value in told.items() if name != listed} == {
        name: value for name, value in before.items() if name != listed
    }


async def test_paths_of_others_are_left_to_others(here: People) -> None:
    for path in ("/apis/ext.cattle.io.evil/v1/tokens", "/apis/management.cattle.io/v3/tokens", "/v1"):
        assert await here.parts.ext.handle(sent("GET", path), await someone(here)) is None


@pytest.mark.parametrize(
    ("method", "path", "query", "refusal"),
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
async def test_what_is_not_offered(
    here: People, method: str, path: str, query: str, refusal: type[StatusError]
) -> None:
    with pytest.raises(refusal):
        await ask(here, await someone(here), method, path, {}, query)


async def test_who_am_i(here: People) -> None:
    assert (await ask(here, await someone(here), "POST", "/selfusers", {}))["status"] == {"userID": "u-alice"}


# --- tokens ---------------------------------------------------------------------------------------------------------


async def test_a_new_token_shows_its_key_once_and_lets_its_user_in(here: People) -> None:
    alice = await someone(here)
    made = await new_token(here, alice, description="robot")
    status, name = made["status"], made["metadata"]["name"]
    assert status["bearerToken"] == f"ext/{name}:{status['value']}"
    assert (await here.identity.authenticate(asked(status["bearerToken"]))).name == "u-alice"
    again = await ask(here, alice, "GET", f"/tokens/{name}")
    listed = (await ask(here, alice, "GET", "/tokens"))["items"]
    stored = await here.world.outside.get(SECRET.resource, name, namespace=TOKENS_NAMESPACE)
    assert status["value"] not in str([again, listed])
    assert status["value"] not in str({key: base64.b64decode(value) for key, value in stored["data"].items()})
    assert again["spec"] == {
        "userID": "u-alice",
        "userPrincipal": {"name": "local://u-alice", "loginName": "alice"},
        "kind": "",
        "description": "robot",
        "ttl": 129600 * 60_000,
        "enabled": True,
        "clusterName": "",
    }


@pytest.mark.parametrize(("ttl", "lives"), [(0, 129600 * 60_000), (5000, 5000), (-1, 129600 * 60_000)])
async def test_a_tokens_ttl_is_in_milliseconds(here: People, ttl: int, lives: int) -> None:
    assert (await new_token(here, await someone(here), ttl=ttl))["spec"]["ttl"] == lives


async def test_others_tokens_do_not_exist(here: People) -> None:
    alice, bob = await someone(here), await someone(here, "u-bob")
    name = (await new_token(here, alice))["metadata"]["name"]
    for method in ("GET", "DELETE"):
        with pytest.raises(NotFound, match=f'tokens.ext.cattle.io "{name}" not found'):
            await ask(here, bob, method, f"/tokens/{name}")
    assert (await ask(here, bob, "GET", "/tokens"))["items"] == []


async def test_nobody_makes_tokens_for_others(here: People) -> None:
    with pytest.raises(Forbidden, match=r"spec\.userID"):
        await new_token(here, await someone(here), userID="u-bob")
    with pytest.raises(Forbidden, match=r"spec\.kind"):
        await new_token(here, await someone(here), kind="session")
    with pytest.raises(Forbidden, match=r"spec\.kind"):
        await new_token(here, await someone(here), kind="provisioning")


async def test_a_label_does_not_make_another_users_token_ones_own(here: People) -> None:
    """Whose a token is, its data says; labels are for finding."""
    alice, bob = await someone(here), await someone(here, "u-bob")
    name = (await new_token(here, alice))["metadata"]["name"]
    labels = {"metadata": {"labels": {"cattle.io/user-id": "u-bob"}}}
    await here.world.outside.patch(SECRET.resource, name, labels, namespace=TOKENS_NAMESPACE)
    assert (await ask(here, bob, "GET", "/tokens"))["items"] == []


async def test_a_deleted_token_opens_nothing_at_once(here: People) -> None:
    alice = await someone(here)
    made = await new_token(here, alice)
    await ask(here, alice, "DELETE", f"/tokens/{made['metadata']['name']}")
    with pytest.raises(Unauthorized):
        await here.identity.authenticate(asked(made["status"]["bearerToken"]))


async def test_other_secrets_of_the_namespace_cannot_be_read_as_tokens(here: People) -> None:
    alice = await someone(here)
    name = (await new_token(here, alice))["metadata"]["name"]
    labels = {"metadata": {"labels": {STORED_KIND: "something"}}}
    await here.world.outside.patch(SECRET.resource, name, labels, namespace=TOKENS_NAMESPACE)
    with pytest.raises(NotFound):
        await ask(here, alice, "GET", f"/tokens/{name}")


# --- kubeconfigs ----------------------------------------------------------------------------------------------------


async def new_kubeconfig(here: People, user: User, **spec: Any) -> Object:
    made: Object = await ask(here, user, "POST", "/kubeconfigs", {"spec": spec})
    return made


def bearer_in(value: str) -> str:
    return str(yaml.safe_load(value)["users"][0]["user"]["token"])


async def test_a_kubeconfig_leads_to_its_clusters_through_the_manager(here: People) -> None:
    alice = await someone(here)
    made = await new_kubeconfig(here, alice, clusters=["c-m-1", "c-m-2"], currentContext="c-m-2", ttl=600)
    config = yaml.safe_load(made["status"]["value"])
    assert {entry["name"]: entry["cluster"] for entry in config["clusters"]} == {
        name: {"server": f"https://manager:8443/k8s/clusters/{id_}", "certificate-authority-data": "UEVN"}
        for id_, name in (("c-m-1", "meadow"), ("c-m-2", "hill"))
    }
    assert config["current-context"] == "hill"
    user = await here.identity.authenticate(asked(bearer_in(made["status"]["value"]), "/k8s/clusters/c-m-1/api"))
    assert user.name == "u-alice"
    token = await ask(here, alice, "GET", f"/tokens/{made['status']['tokens'][0]}")
    assert token["spec"]["ttl"] == 600_000, "a kubeconfig's ttl is in seconds"


async def test_one_for_a_single_cluster_opens_that_cluster_alone(here: People) -> None:
    made = await new_kubeconfig(here, await someone(here), clusters=["c-m-1"])
    bearer = bearer_in(made["status"]["value"])
    await here.identity.authenticate(asked(bearer, "/k8s/clusters/c-m-1/api"))
    for path in ("/k8s/clusters/c-m-2/api", "/", f"{PATH}/tokens"):
        with pytest.raises(Unauthorized):
            await here.identity.authenticate(asked(bearer, path))


async def test_all_clusters_are_all_that_one_may_reach(here: People) -> None:
    config = yaml.safe_load((await new_kubeconfig(here, await someone(here), clusters=["*"]))["status"]["value"])
    assert [entry["name"] for entry in config["contexts"]] == ["meadow", "hill"]
    bob = await someone(here, "u-bob")
    assert yaml.safe_load((await new_kubeconfig(here, bob, clusters=["*"]))["status"]["value"])["clusters"] == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"clusters": ["c-m-1"]}, r"spec.clusters\[0\]: cluster"),
        ({"clusters": ["*", "c-m-1"]}, r"spec.clusters\[0\]"),
        ({"clusters": "c-m-1"}, "must be a list"),
        ({}, "at least one"),
        ({"clusters": ["*"], "currentContext": "c-m-1"}, "spec.currentContext"),
        ({"clusters": ["*"], "ttl": "long"}, "ttl: must be a whole number"),
    ],
)
async def test_what_one_may_not_reach_is_in_no_kubeconfig_and_leaves_no_token(
    here: People, spec: Object, told: str
) -> None:
    bob = await someone(here, "u-bob")
    with pytest.raises(BadRequest, match=told):
        await new_kubeconfig(here, bob, **spec)
    assert (await ask(here, bob, "GET", "/tokens"))["items"] == []


async def test_the_manager_itself_is_an_entry_if_wanted(here: People) -> None:
    made = await new_kubeconfig(here, await someone(here), includeDefaultEntry=True, clusters=["c-m-1"])
    config = yaml.safe_load(made["status"]["value"])
    assert [entry["name"] for entry in config["clusters"]] == ["rancher", "meadow"]
    assert config["clusters"][0]["cluster"]["server"] == "https://manager:8443"
    await here.identity.authenticate(asked(bearer_in(made["status"]["value"]), "/"))


async def test_a_kubeconfig_is_kept_without_its_contents_and_goes_with_its_token(here: People) -> None:
    alice, bob = await someone(here), await someone(here, "u-bob")
    made = await new_kubeconfig(here, alice, clusters=["c-m-1"], description="mine")
    name, key = made["metadata"]["name"], bearer_in(made["status"]["value"]).split(":")[1]
    stored = await here.world.outside.get(CONFIG_MAP.resource, name, namespace=TOKENS_NAMESPACE)
    assert key not in str([stored, await ask(here, alice, "GET", f"/kubeconfigs/{name}")])
    assert [item["spec"]["description"] for item in (await ask(here, alice, "GET", "/kubeconfigs"))["items"]] == [
        "mine"
    ]
    assert (await ask(here, bob, "GET", "/kubeconfigs"))["items"] == []
    with pytest.raises(NotFound):
        await ask(here, bob, "DELETE", f"/kubeconfigs/{name}")
    await ask(here, alice, "DELETE", f"/kubeconfigs/{name}")
    with pytest.raises(Unauthorized):
        await here.identity.authenticate(asked(bearer_in(made["status"]["value"]), "/k8s/clusters/c-m-1"))
    with pytest.raises(NotFound):
        await ask(here, alice, "GET", f"/kubeconfigs/{name}")


async def test_without_tokens_kubectl_asks_for_one(here: People) -> None:
    here.settings["kubeconfig-generate-token"] = "false"
    made = await new_kubeconfig(here, await someone(here), clusters=["c-m-1"])
    assert made["status"]["tokens"] == []
    plugin = yaml.safe_load(made["status"]["value"])["users"][0]["user"]["exec"]
    assert [plugin["command"], *plugin["args"]] == ["rancher", "token", "--server=manager:8443", "--user=alice"]


async def test_where_the_manager_is_has_to_be_known(here: People) -> None:
    here.settings["server-url"] = ""
    with pytest.raises(ServiceUnavailable, match="setting server-url is empty"):
        await new_kubeconfig(here, await someone(here), clusters=["c-m-1"])


async def test_the_action_of_a_cluster(here: People) -> None:
    alice, bob = await someone(here), await someone(here, "u-bob")
    action: Request = sent("POST", "/v3/clusters/c-m-1", query="action=generateKubeconfig")
    response = await here.parts.kubeconfigs.handle(action, alice)
    assert response is not None
    made = msgspec.json.decode(response.content())
    assert made["type"] == "generateKubeconfigOutput"
    await here.identity.authenticate(asked(bearer_in(made["config"]), "/k8s/clusters/c-m-1/api"))
    with pytest.raises(NotFound):
        await here.parts.kubeconfigs.handle(action, bob)
    assert await here.parts.kubeconfigs.handle(sent("POST", "/v3/clusters/c-m-1"), alice) is None


# --- passwords ------------------------------------------------------------------------------------------------------


async def change(here: People, user: User, current: str, new: str, **more: Any) -> Any:
    spec = {"currentPassword": current, "newPassword": new, **more}
    return await ask(here, user, "POST", "/passwordchangerequests", {"spec": spec})


async def test_a_new_password_needs_the_one_before_and_ends_other_sessions(
    here: People,
) -> None:
    made = await here.parts.users.create("carol", PASSWORD, must_change=True)
    name = made["metadata"]["name"]
    session = await here.token(name)
    with pytest.raises(Forbidden):
        await here.identity.authenticate(asked(session))
    carol = await here.identity.authenticate(asked(session, f"{PATH}/passwordchangerequests", "POST"))
    with pytest.raises(Forbidden, match=r"spec\.currentPassword: wrong password"):
        await change(here, carol, "wrong", "another good password")
    for bad in ("short", PASSWORD):
        with pytest.raises((Invalid, BadRequest), match=r"spec\.newPassword"):
            await change(here, carol, PASSWORD, bad)
    with pytest.raises(Forbidden, match=r"spec\.userID"):
        await change(here, carol, PASSWORD, "another good password", userID="u-alice")
    stolen, program = await here.token(name), await here.token(name, kind="")
    await change(here, carol, PASSWORD, "another good password")
    await until(lambda: not (here.identity.known.user_of_login("carol") or {}).get("mustChangePassword", True))
    for kept in (session, program):
        assert (await here.identity.authenticate(asked(kept))).name == name
    await until(lambda: here.identity.known.cached_token(stolen.split(":")[0], ext=False) is None)
    with pytest.raises(Unauthorized):
        await here.identity.authenticate(asked(stolen))
    assert len((await here.world.outside.list(SECRET.resource, namespace=PASSWORDS_NAMESPACE)).items) == 1


async def test_a_list_of_many_tokens_leaves_turns_to_others(here: People, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users may have any number: 1,800 took 85 ms."""
    monkeypatch.setattr("herder.gateway.identity.ext.tokens.PAGE_SIZE", 2)
    user = await someone(here)
    for _ in range(10):
        await ask(here, user, "POST", "/tokens", {"spec": {}})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        listed = await ask(here, user, "GET", "/tokens")
    finally:
        counting.cancel()
    assert len(listed["items"]) == 10
    assert turns >= 4
