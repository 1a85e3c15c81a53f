"""Acting as a service account of a cluster: by who may do so there, with a token of the account itself."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.machines.jobs import SERVICE_ACCOUNT
from herder.engine.client.client import Client
from herder.engine.meta.errors import BadRequest, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import Request, Response, User
from herder.gateway.proxy import Target
from herder.gateway.proxy.impersonation.service_accounts import TOKEN_SECONDS, Account, ServiceAccounts, account_of
from herder.sim import loop
from tests.support.engines import unique
from tests.unit.engine.runtime import world as worlds
from tests.unit.gateway.proxy.conftest import CLUSTER
from tests.unit.gateway.proxy.serving import Gateway

PREFIX = "system:serviceaccount:"


@pytest.mark.parametrize(
    ("wanted", "account"),
    [
        (None, None),
        (User("u-alice"), None),
        (User("system:serviceaccounts"), None),
        (User(f"{PREFIX}meadow:shepherd"), Account("meadow", "shepherd")),
        (User(f"{PREFIX}meadow:shepherd.of.sheep"), Account("meadow", "shepherd.of.sheep")),
    ],
)
def test_service_accounts_are_known_by_their_name(wanted: User | None, account: Account | None) -> None:
    assert account_of(wanted) == account


@pytest.mark.parametrize(
    "wanted",
    [
        User(PREFIX),
        User(f"{PREFIX}meadow"),
        User(f"{PREFIX}meadow:"),
        User(f"{PREFIX}:shepherd"),
        User(f"{PREFIX}meadow:a/b"),
        User(f"{PREFIX}meadow:a:b"),
        User(f"{PREFIX}..:shepherd"),
        User(f"{PREFIX}meadow:shepherd", groups=("system:masters",)),
        User(f"{PREFIX}meadow:shepherd", extra={"username": ("root",)}),
    ],
)
def test_what_is_no_account_or_more_than_one_is_refused(wanted: User) -> None:
    """The name becomes part of a path."""
    with pytest.raises(BadRequest):
        account_of(wanted)


@pytest.fixture
async def account(client: Client) -> str:
    meadow = unique("meadow")
    await client.create(NAMESPACE.resource, _object(NAMESPACE, meadow))
    shepherd = _object(SERVICE_ACCOUNT, "shepherd")
    await client.create(SERVICE_ACCOUNT.resource, shepherd, namespace=meadow)
    return f"{PREFIX}{meadow}:shepherd"


def _object(kind: Kind, name: str) -> dict[str, object]:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}


async def _until(gateway: Gateway, user: Path, account: str, *, code: int) -> str:
    """A real server hears of rights a little later, and remembers tokens for some seconds; what was told at last."""
    async with asyncio.timeout(30):
        while (done := await gateway.kubectl(user, "--as", account, "get", "--raw", "/version")).code != code:
            await asyncio.sleep(0.2)
    return done.errors


async def test_who_may_act_as_an_account_there_does_so_by_its_own_token(
    gateway: Gateway, alice: Path, account: str
) -> None:
    """Alice edits what is in namespaces, which in Kubernetes lets her act as their accounts."""
    await _until(gateway, alice, account, code=0)
    asked = await gateway.kubectl(alice, "--as", account, "auth", "whoami", "-o", "json")
    told = json.loads(asked.output)["status"]["userInfo"]
    assert told["username"] == account
    assert "system:serviceaccounts" in told["groups"]
    refused = await gateway.kubectl(alice, "--as", account, "get", "configmaps", "-n", "default")
    assert f'User "{account}" cannot list' in refused.errors, "the account's rights, not hers"


async def test_one_that_was_made_anew_is_acted_as_again(
    gateway: Gateway, alice: Path, account: str, client: Client
) -> None:
    await _until(gateway, alice, account, code=0)
    meadow = account.removeprefix(PREFIX).partition(":")[0]
    await client.delete(SERVICE_ACCOUNT.resource, "shepherd", namespace=meadow)
    assert '"shepherd" not found' in await _until(gateway, alice, account, code=1)
    await client.create(SERVICE_ACCOUNT.resource, _object(SERVICE_ACCOUNT, "shepherd"), namespace=meadow)
    await _until(gateway, alice, account, code=0)


async def test_who_may_not_act_as_it_there_is_refused(
    gateway: Gateway, account: str, tmp_path: Path, mallory: Path
) -> None:
    """Support may act as users, by rights in the manager's cluster: that says nothing about accounts of this one."""
    support = gateway.kubeconfig(tmp_path, CLUSTER, "token-support")
    version = ("--as", account, "get", "--raw", "/version")
    refused = await gateway.kubectl(support, *version)
    assert refused.code == 1
    assert "may not impersonate service account" in refused.errors
    unknown = await gateway.kubectl(mallory, *version)
    assert "may not use cluster" in unknown.errors


async def test_an_account_brings_its_own_groups(gateway: Gateway, alice: Path, account: str) -> None:
    widened = await gateway.kubectl(alice, "--as", account, "--as-group", "system:masters", "get", "--raw", "/version")
    assert widened.code == 1
    assert "not supported for service accounts" in widened.errors


def test_a_token_is_used_until_shortly_before_its_end() -> None:
    async def story() -> None:
        async with worlds.world() as here:
            await here.create("shepherd", SERVICE_ACCOUNT)
            accounts = ServiceAccounts(lambda _target, _token: here.client)
            one, other = Target(CLUSTER, "10.0.0.1:443", "a"), Target("c-m-other", "10.0.0.1:443", "a")
            shepherd = Account("default", "shepherd")

            async def requests(target: Target) -> int:
                await accounts.authorization(target, shepherd)
                return here.wire.count("POST", "/token")

            assert [await requests(one) for _ in range(3)] == [1, 1, 1]
            await asyncio.sleep(TOKEN_SECONDS * 0.7)
            assert await requests(one) == 1
            await asyncio.sleep(TOKEN_SECONDS * 0.2)
            assert await requests(one) == 2
            assert await requests(other) == 3, "a token is good for one cluster"
            accounts.forget(CLUSTER)
            assert [await requests(other), await requests(one)] == [3, 4]

    loop.run(story())


@dataclass
class Issuing:
    """A cluster that answers requests for tokens with this."""

    answer: object

    async def send(self, _request: Request) -> Response:
        return Response(201, {"content-type": "application/json"}, json.dumps(self.answer).encode())

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    "answer",
    [
        {"status": {"token": "x" * (1 << 20)}},
        {"status": {"token": "a\r\nImpersonate-User: admin"}},
        {"status": {"token": 7}},
        {"status": {}},
        {"status": {"token": "good"}, "spec": {"expirationSeconds": "soon"}},
    ],
    ids=["long", "lines", "number", "missing", "no time"],
)
async def test_what_is_no_token_is_not_kept(answer: Object) -> None:
    """Ten thousand are kept, and a hostile cluster writes answers of 16 MiB."""
    accounts = ServiceAccounts(lambda _target, _token: Client(Issuing({"metadata": {}, **answer})))
    with pytest.raises(StatusError, match="an invalid token") as caught:
        await accounts.authorization(Target("c-m-one", "10.43.0.1:443", "ca"), Account("meadow", "shepherd"))
    assert caught.value.code == 502
    assert not accounts._tokens
