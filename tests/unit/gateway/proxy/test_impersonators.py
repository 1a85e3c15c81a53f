"""The objects that allow impersonating one user in a cluster, and their tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response, User
from herder.gateway.agents.displacement import AgentTokenReview, Answer
from herder.gateway.proxy import Target, dial_tcp
from herder.gateway.proxy.impersonation import impersonators, objects
from herder.gateway.proxy.impersonation.impersonators import Impersonators
from herder.gateway.proxy.relay import relay
from herder.gateway.proxy.rewrite import impersonated_request
from herder.gateway.proxy.targets import asked
from herder.gateway.proxy.upstream.connections import Connections
from herder.gateway.proxy.upstream.transport import DownstreamTransport
from tests.support.engines import unique

DEVS = ("devs", "system:authenticated", "system:cattle:authenticated")


# --- objects --------------------------------------------------------------------------------------------------------


def test_an_impersonator_may_impersonate_only_its_user() -> None:
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


def test_account_and_binding_are_owned_by_the_role() -> None:
    user = User("u-a", groups=DEVS)
    owner = objects.cluster_role(user) | {"metadata": {"name": "cattle-impersonation-u-a", "uid": "1"}}
    account, binding = objects.service_account(user, owner), objects.cluster_role_binding(user, owner)
    for obj in (account, binding):
        assert [reference["uid"] for reference in obj["metadata"]["ownerReferences"]] == ["1"]
    assert binding["roleRef"]["name"] == binding["subjects"][0]["name"] == account["metadata"]["name"]
    assert account["metadata"]["namespace"] == binding["subjects"][0]["namespace"] == "cattle-impersonation-system"


@pytest.mark.parametrize("name", ["Alice", "alice@example.com", "a/b", "u" * 60, "x-1", "-a", "käthe"])
def test_a_user_name_that_is_no_object_name_is_hashed(name: str) -> None:
    name_of_impersonator = objects.impersonator(name)
    assert name_of_impersonator.startswith("cattle-impersonation-x-")
    assert len(name_of_impersonator) <= 63
    assert (
        objects.impersonator(name_of_impersonator.removeprefix("cattle-impersonation-")) != name_of_impersonator
    )  # no user name leads to it


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
    ids=[
        "its own",
        "not filled in yet",
        "of another type",
        "of another account",
        "of its predecessor",
        "without annotations",
    ],
)
def test_a_token_is_read_only_from_a_secret_of_the_account(secret: Object, token: str) -> None:
    assert objects.token_in(secret, {"metadata": {"name": "a", "uid": "1"}}) == token


# --- in a cluster ---------------------------------------------------------------------------------------------------


class CountingTransport:
    """A transport that records its requests."""

    def __init__(self, inner: DownstreamTransport, requests: list[str]) -> None:
        self._inner = inner
        self.requests = requests

    async def send(self, request: Request) -> Response:
        self.requests.append(f"{request.method} {request.path}")
        return await self._inner.send(request)

    async def close(self) -> None:
        await self._inner.close()


class Harness:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.connections = Connections(dial_tcp)
        self.requests: list[str] = []
        self.client = self.client_with(target, target.token)
        self.impersonators = Impersonators(self.client_with)

    def client_with(self, target: Target, token: str) -> Client:
        return Client(CountingTransport(DownstreamTransport(self.connections, target, token), self.requests))

    async def whoami(self, authorization: str, user: User) -> Object:
        """The identity that the cluster reports for the authorization."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        headers = {"content-type": "application/json", "accept": "application/json"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        request = Request("POST", f"/k8s/clusters/{self.target.cluster}{path}", headers=headers)
        request.body = json.dumps(review).encode()
        outgoing = impersonated_request(request, asked(request), self.target, user, authorization)
        exchange = await self.connections.ask(self.target, outgoing)
        response = await relay(self.connections, self.target, exchange, {})
        review_result: Object = json.loads(response.content())
        return review_result


@pytest.fixture
async def harness(downstream: Target) -> AsyncIterator[Harness]:
    harness = Harness(downstream)
    yield harness
    harness.connections.close()


@pytest.fixture
def user() -> User:
    return User(unique("u"), groups=DEVS, extra={"username": ("alice",)})


async def test_a_token_makes_requests_as_its_user(harness: Harness, user: User) -> None:
    authorization = await harness.impersonators.authorization(harness.target, user)
    user_info = (await harness.whoami(authorization, user))["status"]["userInfo"]
    assert (user_info["username"], set(user_info["groups"]), user_info["extra"]) == (
        user.name,
        set(DEVS),
        {"username": ["alice"]},
    )


async def test_a_token_cannot_impersonate_other_identities(harness: Harness, user: User) -> None:
    authorization = await harness.impersonators.authorization(harness.target, user)
    for other in (
        replace(user, name="u-other"),
        replace(user, groups=("system:masters",)),
        replace(user, extra={"username": ("bob",)}),
        replace(user, extra={"scopes": ("all",)}),
    ):
        denial = await harness.whoami(authorization, other)
        assert (denial["code"], "cannot impersonate" in denial["message"]) == (403, True)


async def test_a_token_is_cached(harness: Harness, user: User) -> None:
    first = await harness.impersonators.authorization(harness.target, user)
    harness.requests.clear()
    assert await harness.impersonators.authorization(harness.target, user) == first
    assert harness.requests == []


async def test_concurrent_requests_share_one_token(harness: Harness, user: User) -> None:
    authorization = harness.impersonators.authorization
    cancelled = asyncio.create_task(authorization(harness.target, user))
    waiting = [asyncio.create_task(authorization(harness.target, user)) for _ in range(5)]
    await asyncio.sleep(0)
    cancelled.cancel()
    assert len(set(await asyncio.gather(*waiting))) == 1
    secrets = SECRET.resource.path(objects.IMPERSONATION_NAMESPACE)
    assert harness.requests.count(f"POST {secrets}") == 1


async def test_changed_groups_replace_the_rules_of_the_impersonator(harness: Harness, user: User) -> None:
    await harness.impersonators.authorization(harness.target, user)
    moved = replace(user, groups=("ops", *DEVS[1:]))
    authorization = await harness.impersonators.authorization(harness.target, moved)
    assert set((await harness.whoami(authorization, moved))["status"]["userInfo"]["groups"]) == set(moved.groups)
    assert (await harness.whoami(authorization, user))["code"] == 403


async def test_two_users_and_two_clusters_never_share_a_token(harness: Harness, user: User) -> None:
    other = replace(user, name=unique("u"))
    one = await harness.impersonators.authorization(harness.target, user)
    assert await harness.impersonators.authorization(harness.target, other) != one
    harness.requests.clear()
    other_cluster = replace(harness.target, cluster="c-m-elsewhere")
    await harness.impersonators.authorization(other_cluster, user)
    assert harness.requests  # sent to that cluster, not taken from the cache


async def test_a_deleted_account_is_recreated(harness: Harness, user: User) -> None:
    old = await harness.impersonators.authorization(harness.target, user)
    name = objects.impersonator(user.name)
    await harness.client.delete(SERVICE_ACCOUNT.resource, name, namespace=objects.IMPERSONATION_NAMESPACE)
    harness.impersonators.refused(harness.target, user)
    new = await harness.impersonators.authorization(harness.target, user)
    assert new != old
    assert (await harness.whoami(new, user))["status"]["userInfo"]["username"] == user.name


async def test_an_existing_token_secret_is_reused(harness: Harness, user: User) -> None:
    first = await harness.impersonators.authorization(harness.target, user)
    assert await Impersonators(harness.client_with).authorization(harness.target, user) == first
    label = f"{objects.ACCOUNT_LABEL}={objects.impersonator(user.name)}"
    page = await harness.client.list(SECRET.resource, namespace=objects.IMPERSONATION_NAMESPACE, labels=label)
    assert len(page.items) == 1


async def test_missing_rights_of_the_agent_are_not_reported_as_the_users(harness: Harness, user: User) -> None:
    revoked = replace(harness.target, token="no-longer-valid")
    with pytest.raises(StatusError, match="its agent may not create") as failure:
        await harness.impersonators.authorization(revoked, user)
    assert failure.value.code == 502
    assert "no-longer-valid" not in str(failure.value)


# --- hostile clusters -------------------------------------------------------------------------------------------------


ACCEPTED: Object = {
    "apiVersion": "v1",
    "kind": "Any",
    "metadata": {"name": "a", "uid": "1", "namespace": "x", "resourceVersion": "1"},
    "status": {"resourceRules": []},
    "items": [SECRET_OF_A | {"kind": "Secret"}],
}
ODD_ANSWERS: list[Object] = [
    {"metadata": 1},
    {"metadata": {}},
    {"metadata": {"name": [], "uid": {}}},
    {"items": [SECRET_OF_A | {"metadata": {"annotations": 1}}]},
    {"items": [SECRET_OF_A | {"data": "x"}]},
    {"items": [SECRET_OF_A | {"data": {"token": "\u00e4"}}]},
    {"status": 1},
    {"status": {"resourceRules": 1}},
    {"status": {"resourceRules": [1]}},
    {"status": {"resourceRules": [{"verbs": ["impersonate"]}]}},
    {"status": {"resourceRules": [{"verbs": ["impersonate"], "resources": [{}], "resourceNames": [[]]}]}},
]


class Hostile:
    """Transport to a cluster that gives one answer to all requests."""

    def __init__(self, answer: Object) -> None:
        self._answer = json.dumps(answer).encode()

    async def send(self, _request: Request) -> Response:
        return Response(200, {"content-type": "application/json"}, self._answer)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("answer", ODD_ANSWERS, ids=str)
async def test_a_cluster_that_sends_invalid_objects_is_a_bad_gateway(
    answer: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impersonators, "AUTHORIZER_DELAYS", (0.0,))
    monkeypatch.setattr(impersonators, "TOKEN_SECONDS", 0.05)
    source = Impersonators(lambda _target, _token: Client(Hostile(ACCEPTED | answer)))
    with pytest.raises(StatusError) as refused:
        await source.authorization(Target("c-m-x", "10.0.0.1:443", ""), User("u-a", groups=DEVS))
    assert refused.value.code in (502, 503)


def test_a_list_of_too_many_rules_is_not_compared() -> None:
    user = User("u-a", groups=DEVS)
    rules = objects.cluster_role(user)["rules"]
    others = [{"verbs": ["get"], "resources": ["pods"]}]
    assert objects.rules_cover([*rules, *others * 1_000], user)
    assert not objects.rules_cover([*rules, *others * objects.MAX_RULES], user)


REVIEWS: list[Object] = [
    {"status": 1},
    {"status": [1]},
    {"status": {"authenticated": True}},
    {"status": {"authenticated": True, "user": "x"}},
    {"status": {"authenticated": True, "user": {"username": 1, "uid": 1}}},
    {"status": {"authenticated": "true", "user": {"username": "x", "uid": "1"}}},
]


@pytest.mark.parametrize("answer", REVIEWS, ids=str)
async def test_a_review_without_a_user_vouches_for_no_agent(answer: Object) -> None:
    async def client_of(_cluster: str, _ca: str) -> tuple[Callable[[str], Client], str]:
        return lambda _token: Client(Hostile(ACCEPTED | answer)), "recorded"

    review = AgentTokenReview(client_of, lambda: datetime.now(UTC))
    assert await review("c-m-x", "token", "") is Answer.DENIES
