"""A token that is no good is no good anywhere: on every path, however it is asked; and what was begun with a good one
ends when it is none any more."""

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
from tests.unit.gateway.front import Front, front

LOCAL, OTHER = "local", "c-m-other"
HOUR = 3_600_000


@dataclass
class Scene:
    front: Front
    users: int = 0
    bad: dict[str, str] = field(default_factory=dict)

    async def user(self) -> str:
        """With every right."""
        self.users += 1
        name = f"u-person{self.users}"
        await self.front.administrator(name)
        return name

    async def token(self, user: str, *, ext: bool = False, cluster: str = "", ttl_ms: int = HOUR) -> Issued:
        issuer = self.front.parts.identity.issuer
        wanted = NewToken(user, user, kind="kubeconfig", ttl_ms=ttl_ms, cluster=cluster)
        return await (issuer.issue_ext(wanted) if ext else issuer.issue(wanted))

    async def settled(self, bearer: str) -> None:
        """Until the gateway knows by its watches that it is none: what it has not heard of is not its fault."""
        async with asyncio.timeout(30):
            while True:
                try:
                    await self.front.as_holder_of(bearer).get(NAMESPACE.resource, "default")
                except Unauthorized:
                    return
                except StatusError:
                    pass
                await asyncio.sleep(0.02)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with front(request.param, tmp_path_factory.mktemp("front")) as made:
        scene = Scene(made)
        scene.bad = {name: await make(scene) for name, make in BAD.items()}
        yield scene


# --- tokens that are no good ------------------------------------------------------------------------------------------


async def revoked(scene: Scene) -> str:
    issued = await scene.token(await scene.user(), ext=True)
    own = scene.front.as_holder_of(issued.bearer)
    assert (await own.raw("DELETE", f"/apis/ext.cattle.io/v1/tokens/{issued.record.name}")).status == 200
    return issued.bearer


async def deleted_by_an_administrator(scene: Scene) -> str:
    issued = await scene.token(await scene.user())
    await scene.front.client.delete(TOKEN.resource, issued.record.name)
    await scene.settled(issued.bearer)
    return issued.bearer


async def expired(scene: Scene) -> str:
    return (await scene.token(await scene.user(), ttl_ms=1, ext=True)).bearer


async def disabled(scene: Scene) -> str:
    issued = await scene.token(await scene.user())
    await scene.front.client.patch(TOKEN.resource, issued.record.name, {"enabled": False})
    await scene.settled(issued.bearer)
    return issued.bearer


async def of_a_disabled_user(scene: Scene) -> str:
    user = await scene.user()
    issued = await scene.token(user)
    await scene.front.client.patch(USER.resource, user, {"enabled": False})
    await scene.settled(issued.bearer)
    return issued.bearer


async def of_a_user_who_is_gone(scene: Scene) -> str:
    user = await scene.user()
    issued = await scene.token(user)
    await scene.front.client.delete(USER.resource, user)
    await scene.settled(issued.bearer)
    return issued.bearer


async def of_who_had_the_name_before(scene: Scene) -> str:
    """The user is deleted and another one comes under the same name."""
    user = await scene.user()
    issued = await scene.token(user, ext=True)
    await scene.front.client.delete(USER.resource, user)
    await scene.settled(issued.bearer)
    scene.users -= 1
    assert await scene.user() == user
    successor = await scene.token(user)
    await scene.front.as_holder_of(successor.bearer).get(NAMESPACE.resource, "default")
    return issued.bearer


async def for_another_cluster(scene: Scene) -> str:
    return (await scene.token(await scene.user(), cluster=OTHER, ext=True)).bearer


async def with_another_key(scene: Scene) -> str:
    bearer = (await scene.token(await scene.user())).bearer
    return bearer[:-1] + ("b" if bearer[-1] != "b" else "c")


async def the_hash_instead_of_the_key(scene: Scene) -> str:
    issued = await scene.token(await scene.user())
    return f"{issued.record.name}:{base64.urlsafe_b64encode(issued.record.kept.encode()).decode().rstrip('=')}"


async def of_the_other_kind(scene: Scene) -> str:
    issued = await scene.token(await scene.user(), ext=True)
    return issued.bearer.removeprefix("ext/")


async def of_a_name_that_nobody_has(_scene: Scene) -> str:
    return "token-bcdfg:" + "b" * 54


BAD: dict[str, Callable[[Scene], Awaitable[str]]] = {
    make.__name__.replace("_", " "): make
    for make in (
        revoked,
        deleted_by_an_administrator,
        expired,
        disabled,
        of_a_disabled_user,
        of_a_user_who_is_gone,
        of_who_had_the_name_before,
        for_another_cluster,
        with_another_key,
        the_hash_instead_of_the_key,
        of_the_other_kind,
        of_a_name_that_nobody_has,
    )
}

NAMESPACES = "/api/v1/namespaces"
PATHS = {
    "the management API": ("GET", NAMESPACES, ""),
    "a watch of it": ("GET", NAMESPACES, "watch=true"),
    "its groups": ("GET", "/apis", ""),
    "a cluster": ("GET", f"/k8s/clusters/{LOCAL}{NAMESPACES}", ""),
    "a watch in a cluster": ("GET", f"/k8s/clusters/{LOCAL}{NAMESPACES}", "watch=true"),
    "a cluster by its other address": ("GET", f"/k8s/proxy/{LOCAL}{NAMESPACES}", ""),
    "a write in a cluster": ("POST", f"/k8s/clusters/{LOCAL}{NAMESPACES}", ""),
    "one's own tokens": ("GET", "/apis/ext.cattle.io/v1/tokens", ""),
    "a new token": ("POST", "/apis/ext.cattle.io/v1/tokens", ""),
    "a new kubeconfig": ("POST", "/apis/ext.cattle.io/v1/kubeconfigs", ""),
    "who one is": ("POST", "/apis/ext.cattle.io/v1/selfusers", ""),
    "one's clusters": ("GET", "/v3/clusters", ""),
    "a cluster's kubeconfig": ("POST", f"/v3/clusters/{LOCAL}", "action=generateKubeconfig"),
    "a logout": ("POST", "/v1/logout", ""),
}
UPGRADES = (f"{NAMESPACES}?watch=true", f"/k8s/clusters/{LOCAL}{NAMESPACES}?watch=true")


@pytest.mark.parametrize("name", BAD)
async def test_it_opens_nothing(scene: Scene, name: str) -> None:
    holder = scene.front.as_holder_of(scene.bad[name])
    for what, (method, path, query) in PATHS.items():
        headers = {"content-type": "application/json"}
        answer = await holder.raw(method, path, Query.parse(query), body=b"{}", headers=headers)
        assert answer.status == 401, f"{what} with a token {name}: {answer.status}"
        assert answer.stream is None


@pytest.mark.parametrize("path", UPGRADES)
@pytest.mark.parametrize("name", BAD)
async def test_it_opens_no_stream_of_another_protocol(scene: Scene, name: str, path: str) -> None:
    stream = await scene.front.upgraded(path, scene.bad[name])
    assert stream.status == 401
    await stream.close()


@pytest.mark.parametrize("name", BAD)
async def test_it_is_no_good_in_a_cookie_or_in_basic_either(scene: Scene, name: str) -> None:
    bearer, nobody = scene.bad[name], scene.front.as_holder_of("")
    for headers in (
        {"cookie": f"R_SESS={bearer}"},
        {"authorization": f"Basic {base64.b64encode(bearer.encode()).decode()}"},
    ):
        for path in (NAMESPACES, f"/k8s/clusters/{LOCAL}{NAMESPACES}"):
            assert (await nobody.raw("GET", path, headers=dict(headers))).status == 401


async def test_a_good_one_opens_all_of_them(scene: Scene) -> None:
    """So it was the tokens that were refused above."""
    user = await scene.user()
    for what, (method, path, query) in PATHS.items():
        holder = scene.front.as_holder_of((await scene.token(user)).bearer)
        answer = await holder.raw(method, path, Query.parse(query), body=b"{}", headers={})
        assert answer.status != 401, what
        if answer.stream is not None:
            async for _piece in answer.stream:  # one is enough
                break
            await answer.stream.aclose()  # type: ignore[attr-defined]
    if scene.front.engine == "real":  # the embedded server has no watches over WebSocket
        for path in UPGRADES:
            stream = await scene.front.upgraded(path, (await scene.token(user)).bearer)
            assert stream.status == 101, path
            await stream.close()


async def test_an_hour_later_a_token_of_an_hour_is_none(scene: Scene) -> None:
    issued = await scene.token(await scene.user())
    holder = scene.front.as_holder_of(issued.bearer)
    await holder.get(NAMESPACE.resource, "default")
    scene.front.ahead = timedelta(hours=1)
    try:
        with pytest.raises(Unauthorized):
            await holder.get(NAMESPACE.resource, "default")
    finally:
        scene.front.ahead = timedelta(0)


# --- what goes on -----------------------------------------------------------------------------------------------------


async def revokes(scene: Scene, issued: Issued) -> None:
    own = scene.front.as_holder_of(issued.bearer)
    assert (await own.raw("DELETE", f"/apis/ext.cattle.io/v1/tokens/{issued.record.name}")).status == 200


async def logs_out(scene: Scene, issued: Issued) -> None:
    assert (await scene.front.as_holder_of(issued.bearer).raw("POST", "/v1/logout")).status == 200


async def deletes_it_in_the_api(scene: Scene, issued: Issued) -> None:
    await scene.front.client.delete(SECRET.resource, issued.record.name, namespace=TOKENS_NAMESPACE)


async def disables_it(scene: Scene, issued: Issued) -> None:
    change = {"data": {"enabled": encoded("false")}}
    await scene.front.client.patch(SECRET.resource, issued.record.name, change, namespace=TOKENS_NAMESPACE)


async def makes_its_time_run_out(scene: Scene, issued: Issued) -> None:
    soon = datetime.now(UTC) - issued.record.created + timedelta(seconds=1)
    change = {"data": {"ttl": encoded(str(int(soon.total_seconds() * 1000)))}}
    await scene.front.client.patch(SECRET.resource, issued.record.name, change, namespace=TOKENS_NAMESPACE)


async def disables_the_user(scene: Scene, issued: Issued) -> None:
    await scene.front.client.patch(USER.resource, issued.record.user, {"enabled": False})


async def deletes_the_user(scene: Scene, issued: Issued) -> None:
    await scene.front.client.delete(USER.resource, issued.record.user)


ENDS = {
    end.__name__.replace("_", " "): end
    for end in (
        revokes,
        logs_out,
        deletes_it_in_the_api,
        disables_it,
        makes_its_time_run_out,
        disables_the_user,
        deletes_the_user,
    )
}


@pytest.mark.parametrize("prefix", ["", f"/k8s/clusters/{LOCAL}"], ids=["management API", "cluster"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_watch_ends_with_its_token(
    scene: Scene, end: Callable[[Scene, Issued], Awaitable[None]], prefix: str
) -> None:
    user = await scene.user()
    issued, another = await scene.token(user, ext=True), await scene.token(await scene.user(), ext=True)
    watching = [await _watching(scene.front.as_holder_of(each.bearer, prefix)) for each in (issued, another)]
    await end(scene, issued)
    async with asyncio.timeout(30):
        await watching[0]
    assert not watching[1].done(), "that of somebody else goes on"
    watching[1].cancel()
    await asyncio.gather(watching[1], return_exceptions=True)
    await _nothing_is_left(scene)


async def _watching(client: Client) -> asyncio.Task[None]:
    """A watch that has begun, until it ends of itself."""
    begun = asyncio.Event()

    async def watch() -> None:
        try:
            async with aclosing(client.watch(NAMESPACE.resource, initial_events=True)) as events:
                async for _event in events:
                    begun.set()
        except (StatusError, OSError):
            return

    task = asyncio.ensure_future(watch())
    async with asyncio.timeout(30):
        await begun.wait()
    return task


async def _nothing_is_left(scene: Scene) -> None:
    running = scene.front.parts.identity.identity.running
    async with asyncio.timeout(30):
        while len(running):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", UPGRADES)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_stream_of_another_protocol_ends_with_its_token(
    scene: Scene, end: Callable[[Scene, Issued], Awaitable[None]], path: str
) -> None:
    """As a shell in a pod does."""
    if scene.front.engine == "embedded":
        return  # has none
    issued = await scene.token(await scene.user(), ext=True)
    stream = await scene.front.upgraded(path, issued.bearer)
    assert stream.status == 101
    await end(scene, issued)
    await stream.until_its_end()
    await stream.close()
    await _nothing_is_left(scene)
