"""From the token in a request to a user: what is let in, what is not, and what it costs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn.hashes import is_newest
from herder.api.management.kinds import TOKEN, USER
from herder.api.management.names import TOKENS_NAMESPACE
from herder.engine.meta.errors import Forbidden, Unauthorized
from herder.engine.wire import Request
from tests.unit.gateway.identity.people import People, asked, people


@pytest.fixture
async def here() -> AsyncIterator[People]:
    async with people() as made:
        await made.user("u-alice", username="alice", principalIds=["local://u-alice"])
        yield made


async def refused(here: People, request: Request) -> bool:
    """And nobody learns why."""
    try:
        await here.identity.authenticate(request)
    except Unauthorized as error:
        return error.message == "must authenticate"
    return False


async def until_refused(here: People, request: Request) -> None:
    async with asyncio.timeout(20):
        while not await refused(here, request):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_a_token_stands_for_its_user(here: People, ext: bool) -> None:
    bearer = await here.token("u-alice", ext=ext)
    user = await here.identity.authenticate(asked(bearer))
    assert (user.name, user.uid) == ("u-alice", "u-alice")
    assert user.groups == ("system:authenticated", "system:cattle:authenticated")
    assert user.extra == {
        "principalid": ("local://u-alice",),
        "username": ("alice",),
        "requesttokenid": (bearer.split(":")[0],),
        "requesthost": ("manager",),
    }


async def test_groups_of_the_token_count_but_those_of_the_system(here: People) -> None:
    bearer = await here.token("u-alice", name="token-groups")
    principals = [{"metadata": {"name": name}} for name in ("okta_group://dev", "local://u-x", "system:masters")]
    await here.world.outside.patch(TOKEN.resource, "token-groups", {"groupPrincipals": principals})
    user = await here.identity.authenticate(asked(bearer))
    assert user.groups == ("okta_group://dev", "system:authenticated", "system:cattle:authenticated")


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_nobody_gets_in_without_the_right_key(here: People, ext: bool) -> None:
    name, key = (await here.token("u-alice", ext=ext)).split(":")
    shown = ["", "nobody:" + key, f"{name}:{key[:-1]}", f"{name}:{key}x", f"{name}:", f"{name}:{name}"]
    other = name.removeprefix("ext/") if ext else f"ext/{name}"
    for bearer in [*shown, f"{other}:{key}"]:
        assert await refused(here, asked(bearer)), bearer
    assert await refused(here, Request("GET", "/v1"))
    assert await refused(here, Request("GET", "/v1", headers={"impersonate-user": "u-alice"}))


async def test_a_hash_that_somebody_read_opens_nothing(here: People) -> None:
    name = (await here.token("u-alice")).split(":")[0]
    kept = (await here.world.outside.get(TOKEN.resource, name))["token"]
    assert await refused(here, asked(f"{name}:{kept}"))
    assert await refused(here, asked(f"{name}:{kept.replace(':', '')}"))


async def test_only_secrets_that_are_tokens_are_tokens(here: People) -> None:
    """Other Secrets in the namespace are not a way in, also when asked for by name."""
    bearer = await here.token("u-alice", ext=True, name="token-plain")
    secret = await here.world.outside.get(SECRET.resource, "token-plain", namespace=TOKENS_NAMESPACE)
    labelled = {"name": "token-copy", "namespace": TOKENS_NAMESPACE, "labels": {"cattle.io/kind": "kubeconfig"}}
    copy = {"apiVersion": "v1", "kind": "Secret", "metadata": labelled, "data": secret["data"]}
    await here.world.outside.create(SECRET.resource, copy, namespace=TOKENS_NAMESPACE)
    assert await refused(here, asked(bearer.replace("token-plain", "token-copy")))


Change = Callable[[People, str], Any]
CHANGES: dict[str, Change] = {
    "deleted": lambda here, name: here.world.outside.delete(TOKEN.resource, name),
    "disabled": lambda here, name: here.world.outside.patch(TOKEN.resource, name, {"enabled": False}),
    "user disabled": lambda here, _: here.world.outside.patch(USER.resource, "u-alice", {"enabled": False}),
    "user deleted": lambda here, _: here.world.outside.delete(USER.resource, "u-alice"),
    "provider gone": lambda here, name: here.world.outside.patch(TOKEN.resource, name, {"authProvider": "okta"}),
    "given to nobody": lambda here, name: here.world.outside.patch(TOKEN.resource, name, {"userId": ""}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_is_revoked_counts_no_more_from_the_watch_on(here: People, change: str) -> None:
    """GHSA-c45c-39f6-6gw9, CVE-2023-22650: tokens that outlived their users."""
    bearer = await here.token("u-alice")
    await here.identity.authenticate(asked(bearer))
    await CHANGES[change](here, bearer.split(":")[0])
    await until_refused(here, asked(bearer))


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_a_token_ends_with_its_time(here: People, ext: bool) -> None:
    bearer = await here.token("u-alice", ext=ext, ttl_ms=60_000, kind="")
    assert not await refused(here, asked(bearer))
    here.ahead = timedelta(seconds=59)
    assert not await refused(here, asked(bearer))
    here.ahead = timedelta(seconds=61)
    assert await refused(here, asked(bearer))


async def test_a_session_ends_when_it_is_not_used(here: People) -> None:
    bearer, other = await here.token("u-alice"), await here.token("u-alice", kind="")
    here.settings["auth-user-session-idle-ttl-minutes"] = "10"
    for minutes in (9, 18, 27):  # each use counts
        here.ahead = timedelta(minutes=minutes)
        assert not await refused(here, asked(bearer))
        await here.settle()
    here.ahead = timedelta(minutes=38)
    assert await refused(here, asked(bearer))
    assert not await refused(here, asked(other)), "not a session"


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("/k8s/clusters/c-m-1/api/v1/pods", True),
        ("/k8s/clusters/c-m-1", True),
        ("/k8s/proxy/c-m-1/api", True),
        ("/k8s/clusters/c-m-2/api/v1/pods", False),
        ("/k8s/clusters/c-m-11/api", False),
        ("/k8s/clusters/c-m-2/k8s/clusters/c-m-1/api", False),
        ("//k8s/clusters/c-m-1/api", False),
        ("/v3/clusters/c-m-1", False),
        ("/apis/ext.cattle.io/v1/tokens", False),
        ("/", False),
    ],
)
async def test_a_token_of_one_cluster_opens_no_other(here: People, path: str, good: bool, ext: bool) -> None:
    """CVE-2026-44945: a credential of one cluster that was good for another. Upstream does not check ext tokens."""
    bearer = await here.token("u-alice", ext=ext, cluster="c-m-1")
    assert await refused(here, asked(bearer, path)) != good


async def test_whether_a_token_may_be_used_for_a_cluster(here: People) -> None:
    bound, free = await here.token("u-alice", ext=True, cluster="c-m-1"), await here.token("u-alice")
    await here.user("u-bob")
    user = await here.identity.authenticate(asked(free))
    bob = await here.identity.authenticate(asked(await here.token("u-bob")))
    await here.identity.authenticate(asked(bound, "/k8s/clusters/c-m-1"))
    may = here.identity.may_use
    assert may(user, bound.split(":")[0], "c-m-1")
    assert not may(user, bound.split(":")[0], "c-m-2")
    assert may(user, free.split(":")[0], "c-m-2")
    assert not may(bob, free.split(":")[0], "c-m-2"), "somebody else's"
    assert not may(user, "token-unknown", "c-m-1")


@pytest.mark.tells("tokens.management.cattle.io", because="old programs kept keys so")
@pytest.mark.parametrize("form", ["plain", "$2", "$1"])
async def test_keys_kept_in_an_old_way_are_good_and_hashed_at_their_first_use(here: People, form: str) -> None:
    bearer = await here.token("u-alice", kept="KEY")
    name, key = bearer.split(":")
    salt = bytes.fromhex("b85af19b8de081fc")
    if form != "plain":
        scrypt = hashlib.scrypt(key.encode(), salt=salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=64)
        digest = scrypt if form == "$1" else hashlib.sha256(salt + key.encode()).digest()
        head = "$1:b85af19b8de081fc:15:8:1:" if form == "$1" else "$2:uFrxm43ggfw:"
        kept = head + text(digest)
        annotated = {"annotations": {"authn.management.cattle.io/token-hashed": "true"}}
        await here.world.outside.patch(TOKEN.resource, name, {"token": kept, "metadata": annotated})
    await here.identity.authenticate(asked(bearer))
    await here.settle()
    stored = await here.world.outside.get(TOKEN.resource, name)
    assert is_newest(stored["token"])
    assert key not in str(stored)
    assert stored["metadata"]["annotations"]["authn.management.cattle.io/token-hashed"] == "true"
    assert not await refused(here, asked(bearer))


def text(digest: bytes) -> str:
    return base64.b64encode(digest).decode().rstrip("=")


async def test_requests_cost_no_call_and_their_use_is_noted_once_a_minute(here: People) -> None:
    bearer = await here.token("u-alice")
    await here.identity.authenticate(asked(bearer))
    await here.settle()
    name = bearer.split(":")[0]
    assert (await here.world.outside.get(TOKEN.resource, name))["lastUsedAt"]
    here.world.wire.requests.clear()
    for _ in range(100):
        await here.identity.authenticate(asked(bearer))
    await here.settle()
    assert here.world.wire.requests == []
    here.ahead = timedelta(seconds=61)
    for _ in range(10):
        await here.identity.authenticate(asked(bearer))
    await here.settle()
    assert here.world.wire.writes() == [("PATCH", f"/apis/management.cattle.io/v3/tokens/{name}")]


async def test_a_token_that_the_watch_has_not_brought_is_asked_for_once(here: People) -> None:
    here.world.wire.requests.clear()
    for _ in range(50):
        assert await refused(here, asked("token-none:" + "b" * 54))
    assert here.world.wire.count("GET", "tokens/token-none") == 1
    bearer = await here.token("u-alice", name="token-fresh")
    await here.identity.authenticate(asked(bearer))
    assert here.world.wire.count("GET", "tokens/token-fresh") <= 1


@pytest.mark.tells("tokens.management.cattle.io", because="old programs kept keys so")
async def test_the_use_of_a_token_is_not_noted_on_its_successor(here: People) -> None:
    """Else the hash of the old key would open the new token."""
    bearer = await here.token("u-alice", name="token-again", kept="KEY")
    await here.identity.ready()
    await here.identity.authenticate(asked(bearer))  # the patch is on its way only when this has returned
    await here.world.outside.delete(TOKEN.resource, "token-again")
    await here.token("u-alice", name="token-again")
    await here.settle()
    await until_refused(here, asked(bearer))


async def test_who_must_change_the_password_can_do_only_that(here: People) -> None:
    await here.user("u-new", mustChangePassword=True)
    session, program = await here.token("u-new"), await here.token("u-new", kind="")
    with pytest.raises(Forbidden, match="the password must be changed first"):
        await here.identity.authenticate(asked(session))
    path = "/apis/ext.cattle.io/v1/passwordchangerequests"
    assert (await here.identity.authenticate(asked(session, path, "POST"))).name == "u-new"
    assert (await here.identity.authenticate(asked(program))).name == "u-new"


async def test_keys_are_in_no_log(here: People, caplog: pytest.LogCaptureFixture) -> None:
    """CVE-2023-22649: tokens in logs."""
    caplog.set_level("DEBUG")
    bearer = await here.token("u-alice", ttl_ms=1)
    here.ahead = timedelta(seconds=1)
    key = bearer.split(":")[1]
    assert await refused(here, asked(bearer))
    assert await refused(here, asked(f"token-none:{key}"))
    told = "".join(str(vars(record)) for record in caplog.records)
    assert "the token has expired" in told
    assert key not in told


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_a_token_that_nobody_owns_is_its_users_from_its_first_use_on(here: People, ext: bool) -> None:
    """One that was made elsewhere: it goes with that user, and no later one of the name has it."""
    bearer = await here.token("u-alice", ext=ext)
    await here.identity.authenticate(asked(bearer))
    await here.settle()
    kind, namespace = (SECRET, TOKENS_NAMESPACE) if ext else (TOKEN, "")
    name = bearer.removeprefix("ext/").partition(":")[0]
    kept = await here.world.outside.get(kind.resource, name, namespace=namespace)
    alice = await here.world.outside.get(USER.resource, "u-alice")
    (owner,) = kept["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("User", alice["metadata"]["uid"])
