"""Authentication: from the token in a request to a user."""

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
from herder.api.identity.authn.tokens import TokenRecord
from herder.api.management.kinds import TOKEN, USER
from herder.api.management.names import TOKENS_NAMESPACE
from herder.engine.meta.errors import Forbidden, Unauthorized
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request
from herder.gateway.identity import identity
from tests.unit.engine.runtime.envtest import until
from tests.unit.gateway.identity.harness import IdentityHarness, request_with_token, running_identity


@pytest.fixture
async def harness() -> AsyncIterator[IdentityHarness]:
    async with running_identity() as created:
        await created.create_user("u-alice", username="alice", principalIds=["local://u-alice"])
        yield created


async def is_rejected(harness: IdentityHarness, request: Request) -> bool:
    """Whether the request is rejected, without a reason that the client could see."""
    try:
        await harness.identity.authenticate(request)
    except Unauthorized as error:
        return error.message == "must authenticate"
    return False


async def wait_until_rejected(harness: IdentityHarness, request: Request) -> None:
    async with asyncio.timeout(20):
        while not await is_rejected(harness, request):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_a_token_authenticates_its_user(harness: IdentityHarness, ext: bool) -> None:
    bearer = await harness.create_token("u-alice", ext=ext)
    user = await harness.identity.authenticate(request_with_token(bearer))
    assert (user.name, user.uid) == ("u-alice", "u-alice")
    assert user.groups == ("system:authenticated", "system:cattle:authenticated")
    assert user.extra == {
        "principalid": ("local://u-alice",),
        "username": ("alice",),
        "requesttokenid": (bearer.split(":")[0],),
        "requesthost": ("manager",),
    }


async def test_groups_of_the_token_apply_except_system_groups(harness: IdentityHarness) -> None:
    bearer = await harness.create_token("u-alice", name="token-groups")
    principals = [{"metadata": {"name": name}} for name in ("okta_group://dev", "local://u-x", "system:masters")]
    await harness.env.outside.patch(TOKEN.resource, "token-groups", {"groupPrincipals": principals})
    user = await harness.identity.authenticate(request_with_token(bearer))
    assert user.groups == ("okta_group://dev", "system:authenticated", "system:cattle:authenticated")


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_a_wrong_key_is_rejected(harness: IdentityHarness, ext: bool) -> None:
    name, key = (await harness.create_token("u-alice", ext=ext)).split(":")
    bearers = ["", "unknown:" + key, f"{name}:{key[:-1]}", f"{name}:{key}x", f"{name}:", f"{name}:{name}"]
    other = name.removeprefix("ext/") if ext else f"ext/{name}"
    for bearer in [*bearers, f"{other}:{key}"]:
        assert await is_rejected(harness, request_with_token(bearer)), bearer
    assert await is_rejected(harness, Request("GET", "/v1"))
    assert await is_rejected(harness, Request("GET", "/v1", headers={"impersonate-user": "u-alice"}))


async def test_a_stored_hash_is_not_a_key(harness: IdentityHarness) -> None:
    name = (await harness.create_token("u-alice")).split(":")[0]
    stored = (await harness.env.outside.get(TOKEN.resource, name))["token"]
    assert await is_rejected(harness, request_with_token(f"{name}:{stored}"))
    assert await is_rejected(harness, request_with_token(f"{name}:{stored.replace(':', '')}"))


async def test_other_secrets_are_not_tokens(harness: IdentityHarness) -> None:
    """Other Secrets in the namespace do not authenticate, even if requested by name."""
    bearer = await harness.create_token("u-alice", ext=True, name="token-plain")
    secret = await harness.env.outside.get(SECRET.resource, "token-plain", namespace=TOKENS_NAMESPACE)
    labelled = {"name": "token-copy", "namespace": TOKENS_NAMESPACE, "labels": {"cattle.io/kind": "kubeconfig"}}
    copy = {"apiVersion": "v1", "kind": "Secret", "metadata": labelled, "data": secret["data"]}
    await harness.env.outside.create(SECRET.resource, copy, namespace=TOKENS_NAMESPACE)
    assert await is_rejected(harness, request_with_token(bearer.replace("token-plain", "token-copy")))


Change = Callable[[IdentityHarness, str], Any]
CHANGES: dict[str, Change] = {
    "deleted": lambda harness, name: harness.env.outside.delete(TOKEN.resource, name),
    "disabled": lambda harness, name: harness.env.outside.patch(TOKEN.resource, name, {"enabled": False}),
    "user disabled": lambda harness, _: harness.env.outside.patch(USER.resource, "u-alice", {"enabled": False}),
    "user deleted": lambda harness, _: harness.env.outside.delete(USER.resource, "u-alice"),
    "unknown provider": lambda harness, name: harness.env.outside.patch(TOKEN.resource, name, {"authProvider": "okta"}),
    "without a user": lambda harness, name: harness.env.outside.patch(TOKEN.resource, name, {"userId": ""}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_revoked_token_is_rejected_once_the_watch_reports_it(harness: IdentityHarness, change: str) -> None:
    """GHSA-c45c-39f6-6gw9, CVE-2023-22650: tokens that outlived their users."""
    bearer = await harness.create_token("u-alice")
    await harness.identity.authenticate(request_with_token(bearer))
    await CHANGES[change](harness, bearer.split(":")[0])
    await wait_until_rejected(harness, request_with_token(bearer))


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_a_token_expires(harness: IdentityHarness, ext: bool) -> None:
    bearer = await harness.create_token("u-alice", ext=ext, ttl_ms=60_000, kind="")
    assert not await is_rejected(harness, request_with_token(bearer))
    harness.clock_offset = timedelta(seconds=59)
    assert not await is_rejected(harness, request_with_token(bearer))
    harness.clock_offset = timedelta(seconds=61)
    assert await is_rejected(harness, request_with_token(bearer))


async def test_an_idle_session_expires(harness: IdentityHarness) -> None:
    bearer, other = await harness.create_token("u-alice"), await harness.create_token("u-alice", kind="")
    harness.settings["auth-user-session-idle-ttl-minutes"] = "10"
    for minutes in (9, 18, 27):  # each use extends it
        harness.clock_offset = timedelta(minutes=minutes)
        assert not await is_rejected(harness, request_with_token(bearer))
        await harness.finish_background_tasks()
    harness.clock_offset = timedelta(minutes=38)
    assert await is_rejected(harness, request_with_token(bearer))
    assert not await is_rejected(harness, request_with_token(other)), "not a session"


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
@pytest.mark.parametrize(
    ("path", "accepted"),
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
async def test_a_token_of_one_cluster_is_rejected_elsewhere(
    harness: IdentityHarness, path: str, accepted: bool, ext: bool
) -> None:
    """CVE-2026-44945: a credential of one cluster was valid for another. Upstream does not check ext tokens."""
    bearer = await harness.create_token("u-alice", ext=ext, cluster="c-m-1")
    assert await is_rejected(harness, request_with_token(bearer, path)) != accepted


async def test_a_bound_token_may_be_used_only_by_its_user_for_its_cluster(harness: IdentityHarness) -> None:
    bound, free = (
        await harness.create_token("u-alice", ext=True, cluster="c-m-1"),
        await harness.create_token("u-alice"),
    )
    await harness.create_user("u-bob")
    user = await harness.identity.authenticate(request_with_token(free))
    bob = await harness.identity.authenticate(request_with_token(await harness.create_token("u-bob")))
    await harness.identity.authenticate(request_with_token(bound, "/k8s/clusters/c-m-1"))
    may_use = harness.identity.may_use
    assert may_use(user, bound.split(":")[0], "c-m-1")
    assert not may_use(user, bound.split(":")[0], "c-m-2")
    assert may_use(user, free.split(":")[0], "c-m-2")
    assert not may_use(bob, free.split(":")[0], "c-m-2"), "a token of another user"
    assert not may_use(user, "token-unknown", "c-m-1")


@pytest.mark.allow_secret_in("tokens.management.cattle.io", because="old programs kept keys so")
@pytest.mark.parametrize("form", ["plain", "$2", "$1"])
async def test_keys_in_old_formats_are_rehashed_at_first_use(harness: IdentityHarness, form: str) -> None:
    bearer = await harness.create_token("u-alice", stored="KEY")
    name, key = bearer.split(":")
    salt = bytes.fromhex("b85af19b8de081fc")
    if form != "plain":
        scrypt = hashlib.scrypt(key.encode(), salt=salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=64)
        digest = scrypt if form == "$1" else hashlib.sha256(salt + key.encode()).digest()
        head = "$1:b85af19b8de081fc:15:8:1:" if form == "$1" else "$2:uFrxm43ggfw:"
        old_hash = head + text(digest)
        annotated = {"annotations": {"authn.management.cattle.io/token-hashed": "true"}}
        await harness.env.outside.patch(TOKEN.resource, name, {"token": old_hash, "metadata": annotated})
    await harness.identity.authenticate(request_with_token(bearer))
    await harness.finish_background_tasks()
    stored = await harness.env.outside.get(TOKEN.resource, name)
    assert is_newest(stored["token"])
    assert key not in str(stored)
    assert stored["metadata"]["annotations"]["authn.management.cattle.io/token-hashed"] == "true"
    assert not await is_rejected(harness, request_with_token(bearer))


@pytest.mark.parametrize("change", ["deleted", "disabled", "user disabled"])
async def test_a_token_that_ends_while_its_key_is_compared_is_rejected(
    harness: IdentityHarness, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of tokens from Rancher take their turn: wrong keys in front of the right one delay it by seconds."""
    bearer = await harness.create_token("u-alice", stored="$1:b85af19b8de081fc:15:8:1:")
    name = bearer.split(":")[0]
    loop = asyncio.get_running_loop()

    async def end() -> None:
        await CHANGES[change](harness, name)
        known = harness.identity.known
        await until(lambda: not _is_valid(known.cached_token(name, ext=False), known.cached_user("u-alice")))

    def compare(_record: object, _key: str) -> bool:
        asyncio.run_coroutine_threadsafe(end(), loop).result(5)
        return True

    monkeypatch.setattr(identity, "key_matches", compare)
    assert await is_rejected(harness, request_with_token(bearer))


def _is_valid(token: TokenRecord | None, user: Object | None) -> bool:
    return token is not None and token.enabled and (user or {}).get("enabled") is not False


def text(digest: bytes) -> str:
    return base64.b64encode(digest).decode().rstrip("=")


async def test_authentication_makes_no_api_calls_and_records_use_once_a_minute(harness: IdentityHarness) -> None:
    bearer = await harness.create_token("u-alice")
    await harness.identity.authenticate(request_with_token(bearer))
    await harness.finish_background_tasks()
    name = bearer.split(":")[0]
    assert (await harness.env.outside.get(TOKEN.resource, name))["lastUsedAt"]
    harness.env.wire.requests.clear()
    for _ in range(100):
        await harness.identity.authenticate(request_with_token(bearer))
    await harness.finish_background_tasks()
    assert harness.env.wire.requests == []
    harness.clock_offset = timedelta(seconds=61)
    for _ in range(10):
        await harness.identity.authenticate(request_with_token(bearer))
    await harness.finish_background_tasks()
    assert harness.env.wire.writes() == [("PATCH", f"/apis/management.cattle.io/v3/tokens/{name}")]


async def test_a_token_missing_in_the_cache_is_fetched_once(harness: IdentityHarness) -> None:
    harness.env.wire.requests.clear()
    for _ in range(50):
        assert await is_rejected(harness, request_with_token("token-none:" + "b" * 54))
    assert harness.env.wire.count("GET", "tokens/token-none") == 1
    bearer = await harness.create_token("u-alice", name="token-fresh")
    await harness.identity.authenticate(request_with_token(bearer))
    assert harness.env.wire.count("GET", "tokens/token-fresh") <= 1


@pytest.mark.allow_secret_in("tokens.management.cattle.io", because="old programs kept keys so")
async def test_the_use_of_a_token_is_not_recorded_on_its_successor(harness: IdentityHarness) -> None:
    """Otherwise the hash of the old key would be stored in the new token."""
    bearer = await harness.create_token("u-alice", name="token-again", stored="KEY")
    await harness.identity.ready()
    await harness.identity.authenticate(request_with_token(bearer))  # the patch is sent only after this returns
    await harness.env.outside.delete(TOKEN.resource, "token-again")
    await harness.create_token("u-alice", name="token-again")
    await harness.finish_background_tasks()
    await wait_until_rejected(harness, request_with_token(bearer))


async def test_a_user_who_must_change_the_password_can_do_only_that(harness: IdentityHarness) -> None:
    await harness.create_user("u-new", mustChangePassword=True)
    session, program = await harness.create_token("u-new"), await harness.create_token("u-new", kind="")
    with pytest.raises(Forbidden, match="the password must be changed first"):
        await harness.identity.authenticate(request_with_token(session))
    path = "/apis/ext.cattle.io/v1/passwordchangerequests"
    assert (await harness.identity.authenticate(request_with_token(session, path, "POST"))).name == "u-new"
    assert (await harness.identity.authenticate(request_with_token(program))).name == "u-new"


async def test_keys_are_not_logged(harness: IdentityHarness, caplog: pytest.LogCaptureFixture) -> None:
    """CVE-2023-22649: tokens in logs."""
    caplog.set_level("DEBUG")
    bearer = await harness.create_token("u-alice", ttl_ms=1)
    harness.clock_offset = timedelta(seconds=1)
    key = bearer.split(":")[1]
    assert await is_rejected(harness, request_with_token(bearer))
    assert await is_rejected(harness, request_with_token(f"token-none:{key}"))
    logged = "".join(str(vars(record)) for record in caplog.records)
    assert "the token has expired" in logged
    assert key not in logged


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_a_token_without_owner_gets_its_user_as_owner_at_first_use(harness: IdentityHarness, ext: bool) -> None:
    """A token that another program created is deleted with its user, and no later user of that name can use it."""
    bearer = await harness.create_token("u-alice", ext=ext)
    await harness.identity.authenticate(request_with_token(bearer))
    await harness.finish_background_tasks()
    kind, namespace = (SECRET, TOKENS_NAMESPACE) if ext else (TOKEN, "")
    name = bearer.removeprefix("ext/").partition(":")[0]
    stored = await harness.env.outside.get(kind.resource, name, namespace=namespace)
    alice = await harness.env.outside.get(USER.resource, "u-alice")
    (owner,) = stored["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("User", alice["metadata"]["uid"])
