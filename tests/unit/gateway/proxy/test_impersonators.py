"""The objects by which one user can be acted as in a cluster, and the tokens that come from them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response, User
from herder.gateway.proxy import Target, dial_tcp
from herder.gateway.proxy.impersonation import objects
from herder.gateway.proxy.impersonation.impersonators import Impersonators
from herder.gateway.proxy.relay import relay
from herder.gateway.proxy.rewrite import impersonated_request
from herder.gateway.proxy.targets import asked
from herder.gateway.proxy.upstream.connections import Connections
from herder.gateway.proxy.upstream.transport import DownstreamTransport
from tests.support.engines import unique

DEVS = ("devs", "system:authenticated", "system:cattle:authenticated")


# --- what they say ----------------------------------------------------------------------------------------------------


def test_an_impersonator_may_act_as_one_user_and_nobody_else() -> None:
    extra = {"principalid": ("local://u-a",), "username": ("alice",), "requesthost": ("h",)}
    role = objects.cluster_role(User("u-a", groups=DEVS, extra=extra))
    assert role["metadata"] == {"name": "cattle-impersonation-u-a", "labels": objects.LABELS}
    assert {rule["resources"][0]: rule.get("resourceNames") for rule in role["rules"]} == {
        "users": ["u-a"],
        "groups": list(DEVS),
        "userextras/requesttokenid": None,
        "userextras/requesthost": None,
        "userextras/principalid": ["local://u-a"],
        "userextras/username": ["alice"],
    }
    assert all(rule["verbs"] == ["impersonate"] for rule in role["rules"])


def test_account_and_binding_go_with_their_role() -> None:
    user = User("u-a", groups=DEVS)
    owner = objects.cluster_role(user) | {"metadata": {"name": "cattle-impersonation-u-a", "uid": "1"}}
    account, binding = objects.service_account(user, owner), objects.cluster_role_binding(user, owner)
    for made in (account, binding):
        assert [reference["uid"] for reference in made["metadata"]["ownerReferences"]] == ["1"]
    assert binding["roleRef"]["name"] == binding["subjects"][0]["name"] == account["metadata"]["name"]
    assert account["metadata"]["namespace"] == binding["subjects"][0]["namespace"] == "cattle-impersonation-system"


@pytest.mark.parametrize("name", ["Alice", "alice@example.com", "a/b", "u" * 60, "x-1", "-a", "käthe"])
def test_a_name_that_no_object_can_have_is_digested(name: str) -> None:
    made = objects.impersonator(name)
    assert made.startswith("cattle-impersonation-x-")
    assert len(made) <= 63
    assert objects.impersonator(made.removeprefix("cattle-impersonation-")) != made  # nobody can take it as a name


SECRET_OF_A: Object = {
    "metadata": {"annotations": {objects.ACCOUNT_NAME: "a", objects.ACCOUNT_UID: "1"}},
    "type": objects.TOKEN_TYPE,
    "data": {"token": "dA=="},
}


@pytest.mark.parametrize(
    ("secret", "token"),
    [
        (SECRET_OF_A, "dA=="),
        (SECRET_OF_A | {"data": None}, ""),
        (SECRET_OF_A | {"type": "Opaque"}, ""),
        (SECRET_OF_A | {"metadata": {"annotations": {objects.ACCOUNT_NAME: "b", objects.ACCOUNT_UID: "1"}}}, ""),
        (SECRET_OF_A | {"metadata": {"annotations": {objects.ACCOUNT_NAME: "a", objects.ACCOUNT_UID: "0"}}}, ""),
        (SECRET_OF_A | {"metadata": {}}, ""),
    ],
    ids=["its own", "not filled in yet", "of another type", "of another account", "of its predecessor", "of nobody"],
)
def test_a_token_is_taken_only_from_a_secret_of_this_very_account(secret: Object, token: str) -> None:
    assert objects.token_in(secret, {"metadata": {"name": "a", "uid": "1"}}) == token


# --- in a cluster -----------------------------------------------------------------------------------------------------


class Counted:
    """A transport that counts what it sends."""

    def __init__(self, below: DownstreamTransport, requests: list[str]) -> None:
        self._below = below
        self.requests = requests

    async def send(self, request: Request) -> Response:
        self.requests.append(f"{request.method} {request.path}")
        return await self._below.send(request)

    async def close(self) -> None:
        await self._below.close()


class World:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.connections = Connections(dial_tcp)
        self.requests: list[str] = []
        self.client = self.client_with(target, target.token)
        self.impersonators = Impersonators(self.client_with)

    def client_with(self, target: Target, token: str) -> Client:
        return Client(Counted(DownstreamTransport(self.connections, target, token), self.requests))

    async def whoami(self, authorization: str, user: User) -> Object:
        """The cluster's own word on who asks so."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        headers = {"content-type": "application/json", "accept": "application/json"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        request = Request("POST", f"/k8s/clusters/{self.target.cluster}{path}", headers=headers)
        request.body = json.dumps(review).encode()
        outgoing = impersonated_request(request, asked(request), self.target, user, authorization)
        exchange = await self.connections.ask(self.target, outgoing)
        response = await relay(self.connections, self.target, exchange, {})
        found: Object = json.loads(response.content())
        return found


@pytest.fixture
async def world(downstream: Target) -> AsyncIterator[World]:
    world = World(downstream)
    yield world
    world.connections.close()


@pytest.fixture
def user() -> User:
    return User(unique("u"), groups=DEVS, extra={"username": ("alice",)})


async def test_a_users_token_makes_requests_that_users(world: World, user: User) -> None:
    authorization = await world.impersonators.authorization(world.target, user)
    found = (await world.whoami(authorization, user))["status"]["userInfo"]
    assert (found["username"], set(found["groups"]), found["extra"]) == (user.name, set(DEVS), {"username": ["alice"]})


async def test_it_makes_nothing_anybody_elses(world: World, user: User) -> None:
    authorization = await world.impersonators.authorization(world.target, user)
    for other in (
        replace(user, name="u-other"),
        replace(user, groups=("system:masters",)),
        replace(user, extra={"username": ("bob",)}),
        replace(user, extra={"scopes": ("all",)}),
    ):
        refusal = await world.whoami(authorization, other)
        assert (refusal["code"], "cannot impersonate" in refusal["message"]) == (403, True)


async def test_what_is_in_place_is_not_asked_for_again(world: World, user: User) -> None:
    first = await world.impersonators.authorization(world.target, user)
    world.requests.clear()
    assert await world.impersonators.authorization(world.target, user) == first
    assert world.requests == []


async def test_who_comes_at_the_same_time_waits_for_the_same(world: World, user: User) -> None:
    ask = world.impersonators.authorization
    leaving = asyncio.create_task(ask(world.target, user))
    staying = [asyncio.create_task(ask(world.target, user)) for _ in range(5)]
    await asyncio.sleep(0)
    leaving.cancel()
    assert len(set(await asyncio.gather(*staying))) == 1
    secrets = SECRET.resource.path(objects.IMPERSONATION_NAMESPACE)
    assert world.requests.count(f"POST {secrets}") == 1


async def test_a_user_whose_groups_changed_gets_new_rules_and_the_old_ones_end(world: World, user: User) -> None:
    await world.impersonators.authorization(world.target, user)
    moved = replace(user, groups=("ops", *DEVS[1:]))
    authorization = await world.impersonators.authorization(world.target, moved)
    assert set((await world.whoami(authorization, moved))["status"]["userInfo"]["groups"]) == set(moved.groups)
    assert (await world.whoami(authorization, user))["code"] == 403


async def test_two_users_and_two_clusters_never_share_a_token(world: World, user: User) -> None:
    other = replace(user, name=unique("u"))
    one = await world.impersonators.authorization(world.target, user)
    assert await world.impersonators.authorization(world.target, other) != one
    world.requests.clear()
    elsewhere = replace(world.target, cluster="c-m-elsewhere")
    await world.impersonators.authorization(elsewhere, user)
    assert world.requests  # asked of that cluster, not taken from memory


async def test_an_account_that_was_deleted_is_made_again(world: World, user: User) -> None:
    old = await world.impersonators.authorization(world.target, user)
    name = objects.impersonator(user.name)
    await world.client.delete(SERVICE_ACCOUNT.resource, name, namespace=objects.IMPERSONATION_NAMESPACE)
    world.impersonators.refused(world.target, user)
    new = await world.impersonators.authorization(world.target, user)
    assert new != old
    assert (await world.whoami(new, user))["status"]["userInfo"]["username"] == user.name


async def test_a_token_secret_that_is_there_is_used(world: World, user: User) -> None:
    first = await world.impersonators.authorization(world.target, user)
    assert await Impersonators(world.client_with).authorization(world.target, user) == first
    label = f"{objects.ACCOUNT_LABEL}={objects.impersonator(user.name)}"
    page = await world.client.list(SECRET.resource, namespace=objects.IMPERSONATION_NAMESPACE, labels=label)
    assert len(page.items) == 1


async def test_an_agent_without_rights_is_not_taken_for_the_users_fault(world: World, user: User) -> None:
    revoked = replace(world.target, token="no-longer-valid")
    with pytest.raises(StatusError, match="its agent may not create") as failure:
        await world.impersonators.authorization(revoked, user)
    assert failure.value.code == 502
    assert "no-longer-valid" not in str(failure.value)
