"""Impersonation of a service account of a cluster, with a token of the account itself."""

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
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response, User
from herder.gateway.proxy import Target
from herder.gateway.proxy.impersonation.service_accounts import TOKEN_SECONDS, Account, ServiceAccounts, account_of
from herder.sim import loop
from tests.support.builders import new_manifest
from tests.support.engines import unique
from tests.unit.engine.runtime import envtest
from tests.unit.gateway.proxy.conftest import CLUSTER
from tests.unit.gateway.proxy.proxy_gateway import Gateway

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
def test_service_accounts_are_recognized_by_name(wanted: User | None, account: Account | None) -> None:
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
def test_invalid_accounts_are_rejected(wanted: User) -> None:
    """The name becomes part of a path."""
    with pytest.raises(BadRequest):
        account_of(wanted)


@pytest.fixture
async def account(client: Client) -> str:
    meadow = unique("meadow")
    await client.create(NAMESPACE.resource, new_manifest(NAMESPACE, meadow))
    shepherd = new_manifest(SERVICE_ACCOUNT, "shepherd")
    await client.create(SERVICE_ACCOUNT.resource, shepherd, namespace=meadow)
    return f"{PREFIX}{meadow}:shepherd"


async def _wait_for_exit_code(gateway: Gateway, user: Path, account: str, *, code: int) -> str:
    """Retry until the exit code matches, and return the errors. Real servers cache rights and tokens for a while."""
    async with asyncio.timeout(30):
        while (result := await gateway.kubectl(user, "--as", account, "get", "--raw", "/version")).code != code:
            await asyncio.sleep(0.2)
    return result.errors


async def test_an_impersonated_account_uses_its_own_token(gateway: Gateway, alice: Path, account: str) -> None:
    """Alice can edit namespaces, which in Kubernetes includes the right to impersonate their accounts."""
    await _wait_for_exit_code(gateway, alice, account, code=0)
    whoami = await gateway.kubectl(alice, "--as", account, "auth", "whoami", "-o", "json")
    user_info = json.loads(whoami.output)["status"]["userInfo"]
    assert user_info["username"] == account
    assert "system:serviceaccounts" in user_info["groups"]
    denied = await gateway.kubectl(alice, "--as", account, "get", "configmaps", "-n", "default")
    assert f'User "{account}" cannot list' in denied.errors, "the account's rights, not hers"


async def test_a_recreated_account_can_be_impersonated(
    gateway: Gateway, alice: Path, account: str, client: Client
) -> None:
    await _wait_for_exit_code(gateway, alice, account, code=0)
    meadow = account.removeprefix(PREFIX).partition(":")[0]
    await client.delete(SERVICE_ACCOUNT.resource, "shepherd", namespace=meadow)
    assert '"shepherd" not found' in await _wait_for_exit_code(gateway, alice, account, code=1)
    await client.create(SERVICE_ACCOUNT.resource, new_manifest(SERVICE_ACCOUNT, "shepherd"), namespace=meadow)
    await _wait_for_exit_code(gateway, alice, account, code=0)


async def test_impersonation_without_the_right_is_rejected(
    gateway: Gateway, account: str, tmp_path: Path, mallory: Path
) -> None:
    """Support may impersonate users in the manager's cluster, which does not include accounts of this one."""
    support = gateway.kubeconfig(tmp_path, CLUSTER, "token-support")
    version = ("--as", account, "get", "--raw", "/version")
    denied = await gateway.kubectl(support, *version)
    assert denied.code == 1
    assert "may not impersonate service account" in denied.errors
    unknown = await gateway.kubectl(mallory, *version)
    assert "may not use cluster" in unknown.errors


async def test_groups_cannot_be_added_to_an_account(gateway: Gateway, alice: Path, account: str) -> None:
    widened = await gateway.kubectl(alice, "--as", account, "--as-group", "system:masters", "get", "--raw", "/version")
    assert widened.code == 1
    assert "not supported for service accounts" in widened.errors


def test_a_token_is_reused_until_shortly_before_its_expiry() -> None:
    async def scenario() -> None:
        async with envtest.environment() as env:
            await env.create("shepherd", SERVICE_ACCOUNT)
            accounts = ServiceAccounts(lambda _target, _token: env.client)
            one, other = Target(CLUSTER, "10.0.0.1:443", "a"), Target("c-m-other", "10.0.0.1:443", "a")
            shepherd = Account("default", "shepherd")

            async def requests(target: Target) -> int:
                await accounts.authorization(target, shepherd)
                return env.wire.count("POST", "/token")

            assert [await requests(one) for _ in range(3)] == [1, 1, 1]
            await asyncio.sleep(TOKEN_SECONDS * 0.7)
            assert await requests(one) == 1
            await asyncio.sleep(TOKEN_SECONDS * 0.2)
            assert await requests(one) == 2
            assert await requests(other) == 3, "a token is valid for one cluster"
            accounts.forget(CLUSTER)
            assert [await requests(other), await requests(one)] == [3, 4]

    loop.run(scenario())


@dataclass
class TokenIssuer:
    """A cluster that answers every TokenRequest with this object."""

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
async def test_an_invalid_token_is_not_cached(answer: Object) -> None:
    """Up to ten thousand tokens are cached, and a hostile cluster can send responses of 16 MiB."""
    accounts = ServiceAccounts(lambda _target, _token: Client(TokenIssuer({"metadata": {}, **answer})))
    with pytest.raises(StatusError, match="an invalid token") as caught:
        await accounts.authorization(Target("c-m-one", "10.43.0.1:443", "ca"), Account("meadow", "shepherd"))
    assert caught.value.code == 502
    assert not accounts._tokens
