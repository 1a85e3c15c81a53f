"""Invalid tokens are rejected on every path and in every form, and streams end when their token becomes invalid."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from herder.api.capi.kinds import NAMESPACE, SECRET
from herder.api.identity.authn.tokens import NewToken, encoded
from herder.api.management.kinds import TOKEN, USER
from herder.api.management.names import TOKENS_NAMESPACE
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError, Unauthorized
from herder.engine.wire import Query
from herder.gateway.identity.issuer import Issued
from tests.unit.gateway.gateway_server import GatewayServer, running_gateway

LOCAL, OTHER = "local", "c-m-other"
HOUR = 3_600_000


@dataclass
class Harness:
    gateway: GatewayServer
    users: int = 0
    invalid_tokens: dict[str, str] = field(default_factory=dict)

    async def create_user(self) -> str:
        """Create a user with every right."""
        self.users += 1
        name = f"u-person{self.users}"
        await self.gateway.create_administrator(name)
        return name

    async def create_token(self, user: str, *, ext: bool = False, cluster: str = "", ttl_ms: int = HOUR) -> Issued:
        issuer = self.gateway.parts.identity.issuer
        wanted = NewToken(user, user, kind="kubeconfig", ttl_ms=ttl_ms, cluster=cluster)
        return await (issuer.issue_ext(wanted) if ext else issuer.issue(wanted))

    async def wait_until_rejected(self, bearer: str) -> None:
        """Wait until the gateway knows from its watches that the token is invalid."""
        async with asyncio.timeout(30):
            while True:
                try:
                    await self.gateway.client_with_token(bearer).get(NAMESPACE.resource, "default")
                except Unauthorized:
                    return
                except StatusError:
                    pass
                await asyncio.sleep(0.02)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Harness]:
    async with running_gateway(request.param, tmp_path_factory.mktemp("front")) as server:
        harness = Harness(server)
        harness.invalid_tokens = {name: await factory(harness) for name, factory in INVALID_TOKENS.items()}
        yield harness


# --- invalid tokens -------------------------------------------------------------------------------------------------


async def revoked(harness: Harness) -> str:
    issued = await harness.create_token(await harness.create_user(), ext=True)
    own = harness.gateway.client_with_token(issued.bearer)
    assert (await own.raw("DELETE", f"/apis/ext.cattle.io/v1/tokens/{issued.record.name}")).status == 200
    return issued.bearer


async def deleted_by_an_administrator(harness: Harness) -> str:
    issued = await harness.create_token(await harness.create_user())
    await harness.gateway.client.delete(TOKEN.resource, issued.record.name)
    await harness.wait_until_rejected(issued.bearer)
    return issued.bearer


async def expired(harness: Harness) -> str:
    return (await harness.create_token(await harness.create_user(), ttl_ms=1, ext=True)).bearer


async def disabled(harness: Harness) -> str:
    issued = await harness.create_token(await harness.create_user())
    await harness.gateway.client.patch(TOKEN.resource, issued.record.name, {"enabled": False})
    await harness.wait_until_rejected(issued.bearer)
    return issued.bearer


async def of_a_disabled_user(harness: Harness) -> str:
    user = await harness.create_user()
    issued = await harness.create_token(user)
    await harness.gateway.client.patch(USER.resource, user, {"enabled": False})
    await harness.wait_until_rejected(issued.bearer)
    return issued.bearer


async def of_a_deleted_user(harness: Harness) -> str:
    user = await harness.create_user()
    issued = await harness.create_token(user)
    await harness.gateway.client.delete(USER.resource, user)
    await harness.wait_until_rejected(issued.bearer)
    return issued.bearer


async def of_the_former_user_of_the_name(harness: Harness) -> str:
    """The user is deleted, and another one is created under the same name."""
    user = await harness.create_user()
    issued = await harness.create_token(user, ext=True)
    await harness.gateway.client.delete(USER.resource, user)
    await harness.wait_until_rejected(issued.bearer)
    harness.users -= 1
    assert await harness.create_user() == user
    successor = await harness.create_token(user)
    await harness.gateway.client_with_token(successor.bearer).get(NAMESPACE.resource, "default")
    return issued.bearer


async def for_another_cluster(harness: Harness) -> str:
    return (await harness.create_token(await harness.create_user(), cluster=OTHER, ext=True)).bearer


async def with_another_key(harness: Harness) -> str:
    bearer = (await harness.create_token(await harness.create_user())).bearer
    return bearer[:-1] + ("b" if bearer[-1] != "b" else "c")


async def with_the_hash_as_key(harness: Harness) -> str:
    issued = await harness.create_token(await harness.create_user())
    return f"{issued.record.name}:{base64.urlsafe_b64encode(issued.record.kept.encode()).decode().rstrip('=')}"


async def of_the_other_kind(harness: Harness) -> str:
    issued = await harness.create_token(await harness.create_user(), ext=True)
    return issued.bearer.removeprefix("ext/")


async def of_an_unknown_name(_harness: Harness) -> str:
    return "token-bcdfg:" + "b" * 54


INVALID_TOKENS: dict[str, Callable[[Harness], Awaitable[str]]] = {
    factory.__name__.replace("_", " "): factory
    for factory in (
        revoked,
        deleted_by_an_administrator,
        expired,
        disabled,
        of_a_disabled_user,
        of_a_deleted_user,
        of_the_former_user_of_the_name,
        for_another_cluster,
        with_another_key,
        with_the_hash_as_key,
        of_the_other_kind,
        of_an_unknown_name,
    )
}

NAMESPACES = "/api/v1/namespaces"
PATHS = {
    "the management API": ("GET", NAMESPACES, ""),
    "a watch of it": ("GET", NAMESPACES, "watch=true"),
    "its groups": ("GET", "/apis", ""),
    "a cluster": ("GET", f"/k8s/clusters/{LOCAL}{NAMESPACES}", ""),
    "a watch in a cluster": ("GET", f"/k8s/clusters/{LOCAL}{NAMESPACES}", "watch=true"),
    "a cluster by its other path": ("GET", f"/k8s/proxy/{LOCAL}{NAMESPACES}", ""),
    "a write in a cluster": ("POST", f"/k8s/clusters/{LOCAL}{NAMESPACES}", ""),
    "own tokens": ("GET", "/apis/ext.cattle.io/v1/tokens", ""),
    "a new token": ("POST", "/apis/ext.cattle.io/v1/tokens", ""),
    "a new kubeconfig": ("POST", "/apis/ext.cattle.io/v1/kubeconfigs", ""),
    "the own user": ("POST", "/apis/ext.cattle.io/v1/selfusers", ""),
    "own clusters": ("GET", "/v3/clusters", ""),
    "a cluster's kubeconfig": ("POST", f"/v3/clusters/{LOCAL}", "action=generateKubeconfig"),
    "a logout": ("POST", "/v1/logout", ""),
}
UPGRADES = (f"{NAMESPACES}?watch=true", f"/k8s/clusters/{LOCAL}{NAMESPACES}?watch=true")


@pytest.mark.parametrize("name", INVALID_TOKENS)
async def test_an_invalid_token_is_rejected_on_every_path(harness: Harness, name: str) -> None:
    client = harness.gateway.client_with_token(harness.invalid_tokens[name])
    for description, (method, path, query) in PATHS.items():
        headers = {"content-type": "application/json"}
        response = await client.raw(method, path, Query.parse(query), body=b"{}", headers=headers)
        assert response.status == 401, f"{description} with a token {name}: {response.status}"
        assert response.stream is None


@pytest.mark.parametrize("path", UPGRADES)
@pytest.mark.parametrize("name", INVALID_TOKENS)
async def test_an_invalid_token_is_rejected_for_upgrades(harness: Harness, name: str, path: str) -> None:
    stream = await harness.gateway.upgrade(path, harness.invalid_tokens[name])
    assert stream.status == 401
    await stream.close()


@pytest.mark.parametrize("name", INVALID_TOKENS)
async def test_an_invalid_token_is_rejected_in_a_cookie_and_in_basic_auth(harness: Harness, name: str) -> None:
    bearer, anonymous = harness.invalid_tokens[name], harness.gateway.client_with_token("")
    for headers in (
        {"cookie": f"R_SESS={bearer}"},
        {"authorization": f"Basic {base64.b64encode(bearer.encode()).decode()}"},
    ):
        for path in (NAMESPACES, f"/k8s/clusters/{LOCAL}{NAMESPACES}"):
            assert (await anonymous.raw("GET", path, headers=dict(headers))).status == 401


async def test_a_valid_token_is_accepted_on_every_path(harness: Harness) -> None:
    """This shows that the tokens were the reason for the rejections above."""
    user = await harness.create_user()
    for description, (method, path, query) in PATHS.items():
        client = harness.gateway.client_with_token((await harness.create_token(user)).bearer)
        response = await client.raw(method, path, Query.parse(query), body=b"{}", headers={})
        assert response.status != 401, description
        if response.stream is not None:
            async for _piece in response.stream:  # one piece is enough
                break
            await response.stream.aclose()  # type: ignore[attr-defined]
    if harness.gateway.engine == "real":  # the embedded server has no watches over WebSocket
        for path in UPGRADES:
            stream = await harness.gateway.upgrade(path, (await harness.create_token(user)).bearer)
            assert stream.status == 101, path
            await stream.close()


async def test_a_token_of_an_hour_expires_after_an_hour(harness: Harness) -> None:
    issued = await harness.create_token(await harness.create_user())
    client = harness.gateway.client_with_token(issued.bearer)
    await client.get(NAMESPACE.resource, "default")
    harness.gateway.clock_offset = timedelta(hours=1)
    try:
        with pytest.raises(Unauthorized):
            await client.get(NAMESPACE.resource, "default")
    finally:
        harness.gateway.clock_offset = timedelta(0)


# --- open streams ---------------------------------------------------------------------------------------------------


async def revoke(harness: Harness, issued: Issued) -> None:
    own = harness.gateway.client_with_token(issued.bearer)
    assert (await own.raw("DELETE", f"/apis/ext.cattle.io/v1/tokens/{issued.record.name}")).status == 200


async def log_out(harness: Harness, issued: Issued) -> None:
    assert (await harness.gateway.client_with_token(issued.bearer).raw("POST", "/v1/logout")).status == 200


async def delete_in_the_api(harness: Harness, issued: Issued) -> None:
    await harness.gateway.client.delete(SECRET.resource, issued.record.name, namespace=TOKENS_NAMESPACE)


async def disable(harness: Harness, issued: Issued) -> None:
    change = {"data": {"enabled": encoded("false")}}
    await harness.gateway.client.patch(SECRET.resource, issued.record.name, change, namespace=TOKENS_NAMESPACE)


async def expire(harness: Harness, issued: Issued) -> None:
    soon = datetime.now(UTC) - issued.record.created + timedelta(seconds=1)
    change = {"data": {"ttl": encoded(str(int(soon.total_seconds() * 1000)))}}
    await harness.gateway.client.patch(SECRET.resource, issued.record.name, change, namespace=TOKENS_NAMESPACE)


async def disable_the_user(harness: Harness, issued: Issued) -> None:
    await harness.gateway.client.patch(USER.resource, issued.record.user, {"enabled": False})


async def delete_the_user(harness: Harness, issued: Issued) -> None:
    await harness.gateway.client.delete(USER.resource, issued.record.user)


ENDS = {
    end.__name__.replace("_", " "): end
    for end in (
        revoke,
        log_out,
        delete_in_the_api,
        disable,
        expire,
        disable_the_user,
        delete_the_user,
    )
}


@pytest.mark.parametrize("prefix", ["", f"/k8s/clusters/{LOCAL}"], ids=["management API", "cluster"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_watch_ends_with_its_token(
    harness: Harness, end: Callable[[Harness, Issued], Awaitable[None]], prefix: str
) -> None:
    user = await harness.create_user()
    issued, another = (
        await harness.create_token(user, ext=True),
        await harness.create_token(await harness.create_user(), ext=True),
    )
    watching = [
        await _start_watch(harness.gateway.client_with_token(each.bearer, prefix)) for each in (issued, another)
    ]
    await end(harness, issued)
    async with asyncio.timeout(30):
        await watching[0]
    assert not watching[1].done(), "the watch of another user continues"
    watching[1].cancel()
    await asyncio.gather(watching[1], return_exceptions=True)
    await _wait_until_no_streams(harness)


async def _start_watch(client: Client) -> asyncio.Task[None]:
    """A started watch, until it ends by itself."""
    started = asyncio.Event()

    async def watch() -> None:
        try:
            async with aclosing(client.watch(NAMESPACE.resource, initial_events=True)) as events:
                async for _event in events:
                    started.set()
        except (StatusError, OSError):
            return

    task = asyncio.ensure_future(watch())
    async with asyncio.timeout(30):
        await started.wait()
    return task


async def _wait_until_no_streams(harness: Harness) -> None:
    running = harness.gateway.parts.identity.identity.running
    async with asyncio.timeout(30):
        while len(running):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", UPGRADES)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_an_upgraded_stream_ends_with_its_token(
    harness: Harness, end: Callable[[Harness, Issued], Awaitable[None]], path: str
) -> None:
    """For example a shell in a pod."""
    if harness.gateway.engine == "embedded":
        return  # it has no such streams
    issued = await harness.create_token(await harness.create_user(), ext=True)
    stream = await harness.gateway.upgrade(path, issued.bearer)
    assert stream.status == 101
    await end(harness, issued)
    await stream.read_to_end()
    await stream.close()
    await _wait_until_no_streams(harness)
