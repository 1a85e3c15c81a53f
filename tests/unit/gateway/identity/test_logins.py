"""Logins and logouts, and limits for clients that guess passwords."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn import passwords
from herder.api.identity.names import PASSWORDS_NAMESPACE
from herder.api.management.kinds import GLOBAL_ROLE, GLOBAL_ROLE_BINDING, TOKEN, USER
from herder.engine.meta.errors import (
    AlreadyExists,
    BadRequest,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    TooManyRequests,
    Unauthorized,
)
from herder.engine.wire import Request, Response
from herder.gateway.identity import passwords as password_checks
from tests.support.canaries import canary
from tests.unit.engine.runtime.envtest import until
from tests.unit.gateway.identity.harness import IdentityHarness, new_request, request_with_token, running_identity

PASSWORD = canary("password of alice")


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same work at a lower cost."""
    monkeypatch.setattr(passwords, "_LOG_N", 4)
    monkeypatch.setattr(passwords, "UNKNOWN", passwords.UNKNOWN.replace("$16$", "$4$"))


@pytest.fixture
async def harness() -> AsyncIterator[IdentityHarness]:
    async with running_identity() as created:
        created.env.client.field_manager = "herder"
        await created.parts.users.create("alice", PASSWORD, display_name="Alice")
        await until(lambda: created.identity.known.user_of_login("alice"))
        yield created


def login(username: str = "alice", password: str = PASSWORD, remote: str = "192.0.2.1", **extra: Any) -> Request:
    body = {"type": "localProvider", "username": username, "password": password, **extra}
    return new_request("POST", "/v1-public/login", body, remote=remote)


async def handle(harness: IdentityHarness, request: Request) -> Response:
    response = await harness.parts.logins.handle(request)
    assert response is not None
    return response


def content(response: Response) -> Any:
    return msgspec.json.decode(response.content())


@pytest.mark.parametrize("path", ["/v1-public/login", "/v3-public/localProviders/local"])
async def test_a_login_returns_a_token_that_authenticates_the_user(harness: IdentityHarness, path: str) -> None:
    request = login(description="laptop")
    request.path = path
    response = await handle(harness, request)
    created = content(response)
    assert response.status == 201
    assert response.headers["cache-control"] == "no-store"
    assert (created["type"], created["baseType"], created["description"]) == ("token", "token", "laptop")
    assert created["token"].startswith(created["id"] + ":")
    user = await harness.identity.authenticate(request_with_token(created["token"]))
    assert user.extra["username"] == ("alice",)
    stored = await harness.env.outside.get(TOKEN.resource, created["id"])
    assert created["token"].split(":")[1] not in str(stored)


@pytest.mark.parametrize(
    ("requested_ms", "minutes"), [(0, 960), (60_000, 1), (10**12, 960), (-1, 960)], ids=["0", "1m", "long", "for ever"]
)
async def test_the_ttl_of_a_session_is_limited_by_the_setting(
    harness: IdentityHarness, requested_ms: int, minutes: int
) -> None:
    created = content(await handle(harness, login(ttl=requested_ms)))
    assert created["ttl"] == minutes * 60_000
    assert created["expiresAt"]


async def test_a_cookie_login_sets_an_http_only_cookie(harness: IdentityHarness) -> None:
    response = await handle(harness, login(responseType="cookie"))
    cookie = response.headers["set-cookie"]
    assert cookie.startswith("R_SESS=token-")
    assert cookie.endswith("; Path=/; Secure; HttpOnly; SameSite=Strict")
    assert "token" not in content(response)
    request = Request("GET", "/v1", headers={"cookie": cookie.split(";")[0]})
    assert (await harness.identity.authenticate(request)).extra["username"] == ("alice",)


async def test_a_kubeconfig_token_for_one_cluster(harness: IdentityHarness) -> None:
    created = content(await handle(harness, login(responseType="kubeconfig_c-m-1")))
    assert created["ttl"] == 43200 * 60_000
    await harness.identity.authenticate(request_with_token(created["token"], "/k8s/clusters/c-m-1/api"))
    with pytest.raises(Unauthorized):
        await harness.identity.authenticate(request_with_token(created["token"], "/k8s/clusters/c-m-2/api"))


@pytest.mark.parametrize(
    ("username", "password"),
    [("alice", PASSWORD + "!"), ("alice", "x"), ("nobody", PASSWORD), ("Alice", PASSWORD), ("alice", "y" * 1000)],
)
async def test_a_wrong_password_and_an_unknown_user_get_the_same_error(
    harness: IdentityHarness, username: str, password: str
) -> None:
    with pytest.raises(Unauthorized, match=r"^authentication failed$"):
        await handle(harness, login(username, password))


async def test_an_unknown_user_costs_the_same_work(harness: IdentityHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    real = passwords.matches
    monkeypatch.setattr(
        passwords, "matches", lambda password, stored: compared.append(stored) or real(password, stored)
    )
    for name in ("alice", "nobody"):
        harness.env.wire.requests.clear()
        with pytest.raises(Unauthorized):
            await handle(harness, login(name, "something else"))
        assert harness.env.wire.count("GET", f"{PASSWORDS_NAMESPACE}/secrets/") == 1
    assert [stored.split("$")[:4] for stored in compared] == [["scrypt", "4", "8", "1"]] * 2


@pytest.mark.parametrize(
    "body",
    [{}, {"username": "alice"}, {"password": "x"}, {"username": 1, "password": "x"}, [], {"type": "githubProvider"}],
)
async def test_invalid_input_is_rejected_without_repeating_it(harness: IdentityHarness, body: Any) -> None:
    with pytest.raises(BadRequest):
        await handle(harness, new_request("POST", "/v1-public/login", body))
    with pytest.raises(BadRequest) as caught:
        await handle(harness, Request("POST", "/v1-public/login", body=b'{"password": "canary'))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("body", [b"[" * 50_000, b'{"password":"\xff"}', b'{"a\xfe":1}', b"\xff\xfe"])
async def test_an_unparsable_body_is_rejected(harness: IdentityHarness, body: bytes) -> None:
    with pytest.raises(BadRequest):
        await handle(harness, Request("POST", "/v1-public/login", body=body))


async def test_a_disabled_user_cannot_log_in(harness: IdentityHarness) -> None:
    user = harness.identity.known.user_of_login("alice")
    assert user is not None
    name = user["metadata"]["name"]
    await harness.env.outside.patch(USER.resource, name, {"enabled": False})
    await until(lambda: (harness.identity.known.user_of_login("alice") or {}).get("enabled") is False)
    with pytest.raises(Unauthorized, match=r"^authentication failed$"):
        await handle(harness, login())


async def test_a_bcrypt_hash_in_the_user_object_is_rejected_and_logged(
    harness: IdentityHarness, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Invalid, match="passwords are kept as Secrets"):
        await harness.create_user("u-old", username="old", password="$2a$10$abcdefghijklmnopqrstuv")
    user = {"metadata": {"name": "u-old"}, "username": "old", "password": "$2a$10$abcdefghijklmnopqrstuv"}
    harness.parts.logins._log_attempt("192.0.2.1", user, False)  # as if the definition of another program had let it in
    assert "bcrypt hash, which is not accepted; set a new password" in str(vars(caplog.records[-1]))


async def test_guesses_are_throttled_by_source_even_for_the_right_password(
    harness: IdentityHarness,
) -> None:
    for _ in range(5):
        with pytest.raises(Unauthorized):
            await handle(harness, login(password="wrong"))
    with pytest.raises(TooManyRequests, match="too many failed logins; retry in") as caught:
        await handle(harness, login())
    assert int(caught.value.headers["retry-after"]) >= 1
    for _ in range(5):  # the same for a user who does not exist
        with pytest.raises(Unauthorized):
            await handle(harness, login("nobody", remote="198.51.100.1"))
    with pytest.raises(TooManyRequests):
        await handle(harness, login("nobody", remote="198.51.100.1"))


async def test_concurrent_guesses_are_limited(harness: IdentityHarness) -> None:
    """Of one source five passwords are compared; of many sources as many as may wait."""
    attempts = (handle(harness, login(password=f"guess {n}")) for n in range(200))
    outcomes = [type(outcome) for outcome in await asyncio.gather(*attempts, return_exceptions=True)]
    assert (outcomes.count(Unauthorized), outcomes.count(TooManyRequests)) == (5, 195)
    attempts = (handle(harness, login(password=f"guess {n}", remote=f"10.0.{n}.1")) for n in range(200))
    outcomes = [type(outcome) for outcome in await asyncio.gather(*attempts, return_exceptions=True)]
    assert (outcomes.count(Unauthorized), outcomes.count(TooManyRequests)) == (
        password_checks.WAITING,
        200 - password_checks.WAITING,
    )


async def test_known_sources_can_log_in_while_the_queue_is_full(
    harness: IdentityHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await handle(harness, login())).status == 201
    monkeypatch.setattr(password_checks, "WAITING", 0)
    with pytest.raises(TooManyRequests, match="too many concurrent logins"):
        await handle(harness, login(remote="198.51.100.7"))
    assert (await handle(harness, login())).status == 201


async def test_a_forwarded_address_is_used_only_from_trusted_proxies(harness: IdentityHarness) -> None:
    """Otherwise each guess could come from another address."""

    async def guess(number: int, *addresses: str) -> type[BaseException]:
        request = login(password="wrong", remote="192.0.2.1")
        request.headers = {"x-forwarded-for": ", ".join((*addresses, f"10.0.0.{number}"))}
        with pytest.raises((Unauthorized, TooManyRequests)) as caught:
            await handle(harness, request)
        return caught.type

    assert [await guess(number) for number in range(6)] == [Unauthorized] * 5 + [TooManyRequests]
    harness.settings["trusted-proxies"] = "192.0.2.0/24"
    assert [await guess(number, "1.2.3.4") for number in range(6)] == [Unauthorized] * 6
    assert [await guess(77, f"1.2.3.{number}") for number in range(6)] == [Unauthorized] * 5 + [TooManyRequests]


async def test_wrong_passwords_from_other_sources_do_not_lock_out_the_owner(harness: IdentityHarness) -> None:
    for number in range(60):
        with pytest.raises((Unauthorized, TooManyRequests)):
            await handle(harness, login(password="wrong", remote=f"10.9.{number}.1"))
    assert (await handle(harness, login(remote="198.51.100.7"))).status == 201


async def test_wrong_passwords_in_one_session_do_not_lock_out_another(harness: IdentityHarness) -> None:
    own, stolen = [content(await handle(harness, login()))["token"] for _ in range(2)]
    name = (await harness.identity.authenticate(request_with_token(own))).name

    async def change(bearer: str, current: str) -> None:
        spec = {"userID": name, "currentPassword": current, "newPassword": canary("another password of alice")}
        body = {"apiVersion": "ext.cattle.io/v1", "kind": "PasswordChangeRequest", "spec": spec}
        user = await harness.identity.authenticate(request_with_token(bearer))
        request = new_request("POST", "/apis/ext.cattle.io/v1/passwordchangerequests", body)
        assert await harness.parts.ext.handle(request, user) is not None

    for _ in range(20):
        with pytest.raises((Forbidden, TooManyRequests)):
            await change(stolen, "wrong")
    await change(own, PASSWORD)


async def test_the_queue_of_logins_is_limited(harness: IdentityHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password_checks, "WAITING", 0)
    with pytest.raises(TooManyRequests, match="too many concurrent logins"):
        await handle(harness, login())


async def test_a_logout_invalidates_the_token(harness: IdentityHarness) -> None:
    bearer = content(await handle(harness, login()))["token"]
    other = content(await handle(harness, login()))["token"]
    response = await handle(harness, request_with_token(bearer, "/v1/logout", "POST"))
    assert "Max-Age=0" in response.headers["set-cookie"]
    with pytest.raises(Unauthorized):
        await harness.identity.authenticate(request_with_token(bearer))
    await harness.identity.authenticate(request_with_token(other))
    with pytest.raises(Unauthorized):
        await handle(harness, new_request("POST", "/v1/logout"))


async def test_auth_providers_are_public(harness: IdentityHarness) -> None:
    providers = content(await handle(harness, new_request("GET", "/v1-public/authproviders")))
    assert [provider["id"] for provider in providers["data"]] == ["local"]
    with pytest.raises(MethodNotAllowed):
        await handle(harness, new_request("GET", "/v1-public/login"))
    assert await harness.parts.logins.handle(new_request("GET", "/v1/other")) is None


async def test_passwords_are_stored_as_hashes_and_not_logged(
    harness: IdentityHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await handle(harness, login())
    secrets = (await harness.env.outside.list(SECRET.resource, namespace=PASSWORDS_NAMESPACE)).items
    users = (await harness.env.outside.list(USER.resource)).items
    assert len(secrets) == 1
    stored_and_logged = str(secrets) + str(users) + "".join(str(vars(record)) for record in caplog.records)
    assert PASSWORD not in stored_and_logged


# --- users ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", ["short", "administrator"])
async def test_an_invalid_password_is_rejected_without_repeating_it(harness: IdentityHarness, password: str) -> None:
    with pytest.raises(Invalid, match="password: Invalid value") as caught:
        await harness.parts.users.create("administrator", password)
    assert f'"{password}"' not in str(caught.value).replace('User.management.cattle.io "administrator"', "")
    assert len((await harness.env.outside.list(USER.resource)).items) == 1


@pytest.mark.parametrize("username", ["", "a b", "system:admin", "x/y", "-a", "a" * 300])
async def test_an_invalid_username_is_rejected(harness: IdentityHarness, username: str) -> None:
    with pytest.raises(Invalid, match="username: Invalid value"):
        await harness.parts.users.create(username, PASSWORD)


async def test_usernames_are_unique(harness: IdentityHarness) -> None:
    with pytest.raises(AlreadyExists):
        await harness.parts.users.create("alice", PASSWORD)


async def test_a_recreated_username_is_another_user(harness: IdentityHarness) -> None:
    """Otherwise tokens of the deleted user would become valid again."""
    bearer = content(await handle(harness, login()))["token"]
    before = harness.identity.known.user_of_login("alice")
    assert before is not None
    await harness.env.outside.delete(USER.resource, before["metadata"]["name"])
    after = await harness.parts.users.create("alice", PASSWORD)
    assert after["metadata"]["name"] != before["metadata"]["name"]
    await until(lambda: harness.identity.known.user_of_login("alice") not in (None, before))
    with pytest.raises(Unauthorized):
        await harness.identity.authenticate(request_with_token(bearer))


async def test_new_users_get_the_default_roles(harness: IdentityHarness) -> None:
    for name, default in (("base", True), ("other", False)):
        meta = {"apiVersion": GLOBAL_ROLE.api_version, "kind": GLOBAL_ROLE.kind, "metadata": {"name": name}}
        await harness.env.outside.create(GLOBAL_ROLE.resource, {**meta, "newUserDefault": default})
    user = await harness.parts.users.create("bob", PASSWORD)
    bindings = (await harness.env.outside.list(GLOBAL_ROLE_BINDING.resource)).items
    assert [(each["userName"], each["globalRoleName"]) for each in bindings] == [(user["metadata"]["name"], "base")]


async def test_the_first_admin_is_created_once_with_a_random_password() -> None:
    async with running_identity() as harness:
        created = [await harness.parts.users.bootstrap_admin() for _ in range(2)]
        assert len(created[0]) == 24
        assert created[1] == ""
        secret = await harness.env.outside.get(SECRET.resource, "bootstrap-secret", namespace="cattle-system")
        assert set(secret["data"]) == {"bootstrapPassword"}
        await until(lambda: harness.identity.known.user_of_login("admin"))
        assert content(await handle(harness, login("admin", created[0])))["token"]


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_a_recreated_admin_does_not_inherit_old_tokens(ext: bool) -> None:
    """The name of the first user is always the same. Tokens without an owner must not outlive their user either."""
    async with running_identity() as harness:
        await harness.parts.users.bootstrap_admin()
        (admin,) = (await harness.env.outside.list(USER.resource)).items
        bearer = await harness.create_token(admin["metadata"]["name"], ext=ext)
        await harness.env.outside.delete(USER.resource, admin["metadata"]["name"])
        await harness.parts.users.bootstrap_admin()
        await until(lambda: harness.identity.known.user_of_login("admin") not in (None, admin))
        name = bearer.removeprefix("ext/").partition(":")[0]
        await until(lambda: harness.identity.known.cached_token(name, ext=ext) is None)
        with pytest.raises(Unauthorized):
            await harness.identity.authenticate(request_with_token(bearer))


async def test_concurrent_managers_agree_on_the_first_password() -> None:
    async with running_identity() as harness:
        created = await asyncio.gather(*(harness.parts.users.bootstrap_admin() for _ in range(2)))
        assert len({password for password in created if password}) == 1
        assert len((await harness.env.outside.list(USER.resource)).items) == 1


async def test_a_session_expires(harness: IdentityHarness) -> None:
    bearer = content(await handle(harness, login(ttl=60_000)))["token"]
    harness.clock_offset = timedelta(minutes=2)
    with pytest.raises(Unauthorized):
        await harness.identity.authenticate(request_with_token(bearer))


async def test_a_user_who_must_change_the_password_gets_only_a_session(harness: IdentityHarness) -> None:
    await harness.parts.users.create("carol", PASSWORD, must_change=True)
    await until(lambda: harness.identity.known.user_of_login("carol"))
    for kind in ("kubeconfig", "kubeconfig_c-m-1"):
        with pytest.raises(Forbidden, match="the password must be changed first"):
            await handle(harness, login("carol", responseType=kind))
    assert (await handle(harness, login("carol"))).status == 201


async def test_derived_tokens_share_the_password_limit_of_their_session(harness: IdentityHarness) -> None:
    """The thief of a session could create any number of them."""
    stolen = content(await handle(harness, login()))["token"]
    user, results = await harness.identity.authenticate(request_with_token(stolen)), []
    for _ in range(4):
        created = await harness.parts.ext.handle(
            new_request("POST", "/apis/ext.cattle.io/v1/tokens", {"spec": {}}), user
        )
        assert created is not None
        derived = await harness.identity.authenticate(request_with_token(content(created)["status"]["bearerToken"]))
        for _ in range(4):
            spec = {"currentPassword": "wrong", "newPassword": canary("another password of alice")}
            request = new_request("POST", "/apis/ext.cattle.io/v1/passwordchangerequests", {"spec": spec})
            with pytest.raises((Forbidden, TooManyRequests)) as error:
                await harness.parts.ext.handle(request, derived)
            results.append(error.type)
    assert results.count(Forbidden) == 5


async def test_a_password_change_ends_all_tokens_of_the_old_password(harness: IdentityHarness) -> None:
    own = content(await handle(harness, login()))["token"]
    stolen = [content(await handle(harness, login(responseType=kind)))["token"] for kind in ("json", "kubeconfig")]
    spec = {"currentPassword": PASSWORD, "newPassword": canary("another password of alice")}
    request = new_request("POST", "/apis/ext.cattle.io/v1/passwordchangerequests", {"spec": spec})
    await harness.parts.ext.handle(request, await harness.identity.authenticate(request_with_token(own)))
    known, names = harness.identity.known, [bearer.split(":")[0] for bearer in stolen]
    await until(lambda: not any(known.cached_token(name, ext=False) for name in names))
    for bearer in stolen:
        with pytest.raises(Unauthorized):
            await harness.identity.authenticate(request_with_token(bearer))
    await harness.identity.authenticate(request_with_token(own))
