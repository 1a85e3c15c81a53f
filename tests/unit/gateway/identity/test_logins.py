"""Logging in and out, and that guessing passwords does not get anywhere."""

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
from herder.gateway.identity import passwords as comparing
from tests.support.canaries import canary
from tests.unit.engine.runtime.world import until
from tests.unit.gateway.identity.people import People, asked, people, sent

PASSWORD = canary("password of alice")


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same work with less of it."""
    monkeypatch.setattr(passwords, "_LOG_N", 4)
    monkeypatch.setattr(passwords, "UNKNOWN", passwords.UNKNOWN.replace("$16$", "$4$"))


@pytest.fixture
async def here() -> AsyncIterator[People]:
    async with people() as made:
        made.world.client.field_manager = "herder"
        await made.parts.users.create("alice", PASSWORD, display_name="Alice")
        await until(lambda: made.identity.known.user_of_login("alice"))
        yield made


def login(username: str = "alice", password: str = PASSWORD, remote: str = "192.0.2.1", **more: Any) -> Request:
    body = {"type": "localProvider", "username": username, "password": password, **more}
    return sent("POST", "/v1-public/login", body, remote=remote)


async def handled(here: People, request: Request) -> Response:
    response = await here.parts.logins.handle(request)
    assert response is not None
    return response


def content(response: Response) -> Any:
    return msgspec.json.decode(response.content())


@pytest.mark.parametrize("path", ["/v1-public/login", "/v3-public/localProviders/local"])
async def test_who_knows_the_password_gets_a_token_that_lets_them_in(here: People, path: str) -> None:
    request = login(description="laptop")
    request.path = path
    response = await handled(here, request)
    made = content(response)
    assert response.status == 201
    assert response.headers["cache-control"] == "no-store"
    assert (made["type"], made["baseType"], made["description"]) == ("token", "token", "laptop")
    assert made["token"].startswith(made["id"] + ":")
    user = await here.identity.authenticate(asked(made["token"]))
    assert user.extra["username"] == ("alice",)
    stored = await here.world.outside.get(TOKEN.resource, made["id"])
    assert made["token"].split(":")[1] not in str(stored)


@pytest.mark.parametrize(
    ("asked_ms", "minutes"), [(0, 960), (60_000, 1), (10**12, 960), (-1, 960)], ids=["0", "1m", "long", "for ever"]
)
async def test_a_session_never_lasts_longer_than_the_setting(here: People, asked_ms: int, minutes: int) -> None:
    made = content(await handled(here, login(ttl=asked_ms)))
    assert made["ttl"] == minutes * 60_000
    assert made["expiresAt"]


async def test_a_browser_gets_a_cookie_that_no_script_can_read(here: People) -> None:
    response = await handled(here, login(responseType="cookie"))
    cookie = response.headers["set-cookie"]
    assert cookie.startswith("R_SESS=token-")
    assert cookie.endswith("; Path=/; Secure; HttpOnly; SameSite=Strict")
    assert "token" not in content(response)
    shown = Request("GET", "/v1", headers={"cookie": cookie.split(";")[0]})
    assert (await here.identity.authenticate(shown)).extra["username"] == ("alice",)


async def test_a_kubeconfig_token_for_one_cluster(here: People) -> None:
    made = content(await handled(here, login(responseType="kubeconfig_c-m-1")))
    assert made["ttl"] == 43200 * 60_000
    await here.identity.authenticate(asked(made["token"], "/k8s/clusters/c-m-1/api"))
    with pytest.raises(Unauthorized):
        await here.identity.authenticate(asked(made["token"], "/k8s/clusters/c-m-2/api"))


@pytest.mark.parametrize(
    ("username", "password"),
    [("alice", PASSWORD + "!"), ("alice", "x"), ("nobody", PASSWORD), ("Alice", PASSWORD), ("alice", "y" * 1000)],
)
async def test_a_wrong_password_and_an_unknown_user_are_told_apart_by_nobody(
    here: People, username: str, password: str
) -> None:
    with pytest.raises(Unauthorized, match=r"^authentication failed$"):
        await handled(here, login(username, password))


async def test_an_unknown_user_costs_the_same_work(here: People, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    real = passwords.matches
    monkeypatch.setattr(passwords, "matches", lambda password, kept: compared.append(kept) or real(password, kept))
    for name in ("alice", "nobody"):
        here.world.wire.requests.clear()
        with pytest.raises(Unauthorized):
            await handled(here, login(name, "something else"))
        assert here.world.wire.count("GET", f"{PASSWORDS_NAMESPACE}/secrets/") == 1
    assert [kept.split("$")[:4] for kept in compared] == [["scrypt", "4", "8", "1"]] * 2


@pytest.mark.parametrize(
    "body",
    [{}, {"username": "alice"}, {"password": "x"}, {"username": 1, "password": "x"}, [], {"type": "githubProvider"}],
)
async def test_bad_input_is_told_without_repeating_it(here: People, body: Any) -> None:
    with pytest.raises(BadRequest):
        await handled(here, sent("POST", "/v1-public/login", body))
    with pytest.raises(BadRequest) as caught:
        await handled(here, Request("POST", "/v1-public/login", body=b'{"password": "canary'))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("body", [b"[" * 50_000, b'{"password":"\xff"}', b'{"a\xfe":1}', b"\xff\xfe"])
async def test_a_body_that_no_parser_reads_is_refused_as_any_other(here: People, body: bytes) -> None:
    with pytest.raises(BadRequest):
        await handled(here, Request("POST", "/v1-public/login", body=body))


async def test_a_disabled_user_cannot_log_in(here: People) -> None:
    user = here.identity.known.user_of_login("alice")
    assert user is not None
    name = user["metadata"]["name"]
    await here.world.outside.patch(USER.resource, name, {"enabled": False})
    await until(lambda: (here.identity.known.user_of_login("alice") or {}).get("enabled") is False)
    with pytest.raises(Unauthorized, match=r"^authentication failed$"):
        await handled(here, login())


async def test_a_bcrypt_hash_in_the_user_object_is_refused_and_our_log_says_so(
    here: People, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Invalid, match="passwords are kept as Secrets"):
        await here.user("u-old", username="old", password="$2a$10$abcdefghijklmnopqrstuv")
    user = {"metadata": {"name": "u-old"}, "username": "old", "password": "$2a$10$abcdefghijklmnopqrstuv"}
    here.parts.logins._log_attempt("192.0.2.1", user, False)  # as another program's definition lets it in
    assert "bcrypt hash, which is not accepted; set a new password" in str(vars(caplog.records[-1]))


async def test_guesses_are_slowed_down_by_source_and_there_even_the_right_password_has_to_wait(here: People) -> None:
    for _ in range(5):
        with pytest.raises(Unauthorized):
            await handled(here, login(password="wrong"))
    with pytest.raises(TooManyRequests, match="too many failed logins; retry in") as caught:
        await handled(here, login())
    assert int(caught.value.headers["retry-after"]) >= 1
    for _ in range(5):  # of a user who does not exist, the same
        with pytest.raises(Unauthorized):
            await handled(here, login("nobody", remote="198.51.100.1"))
    with pytest.raises(TooManyRequests):
        await handled(here, login("nobody", remote="198.51.100.1"))


async def test_a_thousand_guesses_at_once_are_not_let_through_together(here: People) -> None:
    """Of one source five are compared; of many sources as many as may wait."""
    tries = (handled(here, login(password=f"guess {n}")) for n in range(200))
    ends = [type(end) for end in await asyncio.gather(*tries, return_exceptions=True)]
    assert (ends.count(Unauthorized), ends.count(TooManyRequests)) == (5, 195)
    tries = (handled(here, login(password=f"guess {n}", remote=f"10.0.{n}.1")) for n in range(200))
    ends = [type(end) for end in await asyncio.gather(*tries, return_exceptions=True)]
    assert (ends.count(Unauthorized), ends.count(TooManyRequests)) == (comparing.WAITING, 200 - comparing.WAITING)


async def test_a_full_line_has_room_for_users_who_log_in_where_they_did_before(
    here: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await handled(here, login())).status == 201
    monkeypatch.setattr(comparing, "WAITING", 0)
    with pytest.raises(TooManyRequests, match="too many concurrent logins"):
        await handled(here, login(remote="198.51.100.7"))
    assert (await handled(here, login())).status == 201


async def test_a_forwarded_address_counts_from_trusted_proxies_alone(here: People) -> None:
    """Else each guess would come from another address of the guesser's choice."""

    async def guess(number: int, *addresses: str) -> type[BaseException]:
        request = login(password="wrong", remote="192.0.2.1")
        request.headers = {"x-forwarded-for": ", ".join((*addresses, f"10.0.0.{number}"))}
        with pytest.raises((Unauthorized, TooManyRequests)) as caught:
            await handled(here, request)
        return caught.type

    assert [await guess(number) for number in range(6)] == [Unauthorized] * 5 + [TooManyRequests]
    here.settings["trusted-proxies"] = "192.0.2.0/24"
    assert [await guess(number, "1.2.3.4") for number in range(6)] == [Unauthorized] * 6
    assert [await guess(77, f"1.2.3.{number}") for number in range(6)] == [Unauthorized] * 5 + [TooManyRequests]


async def test_wrong_passwords_from_elsewhere_do_not_lock_the_owner_out(here: People) -> None:
    for number in range(60):
        with pytest.raises((Unauthorized, TooManyRequests)):
            await handled(here, login(password="wrong", remote=f"10.9.{number}.1"))
    assert (await handled(here, login(remote="198.51.100.7"))).status == 201


async def test_wrong_passwords_in_one_session_do_not_lock_out_another(here: People) -> None:
    own, stolen = [content(await handled(here, login()))["token"] for _ in range(2)]
    name = (await here.identity.authenticate(asked(own))).name

    async def change(bearer: str, current: str) -> None:
        spec = {"userID": name, "currentPassword": current, "newPassword": canary("another password of alice")}
        wanted = {"apiVersion": "ext.cattle.io/v1", "kind": "PasswordChangeRequest", "spec": spec}
        user = await here.identity.authenticate(asked(bearer))
        request = sent("POST", "/apis/ext.cattle.io/v1/passwordchangerequests", wanted)
        assert await here.parts.ext.handle(request, user) is not None

    for _ in range(20):
        with pytest.raises((Forbidden, TooManyRequests)):
            await change(stolen, "wrong")
    await change(own, PASSWORD)


async def test_logins_wait_in_a_line_that_has_an_end(here: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "WAITING", 0)
    with pytest.raises(TooManyRequests, match="too many concurrent logins"):
        await handled(here, login())


async def test_after_logging_out_the_token_opens_nothing(here: People) -> None:
    bearer = content(await handled(here, login()))["token"]
    other = content(await handled(here, login()))["token"]
    response = await handled(here, asked(bearer, "/v1/logout", "POST"))
    assert "Max-Age=0" in response.headers["set-cookie"]
    with pytest.raises(Unauthorized):
        await here.identity.authenticate(asked(bearer))
    await here.identity.authenticate(asked(other))
    with pytest.raises(Unauthorized):
        await handled(here, sent("POST", "/v1/logout"))


async def test_which_providers_there_are_is_told_to_everybody(here: People) -> None:
    told = content(await handled(here, sent("GET", "/v1-public/authproviders")))
    assert [provider["id"] for provider in told["data"]] == ["local"]
    with pytest.raises(MethodNotAllowed):
        await handled(here, sent("GET", "/v1-public/login"))
    assert await here.parts.logins.handle(sent("GET", "/v1/other")) is None


async def test_passwords_are_in_their_secrets_alone_and_hashed(here: People, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    await handled(here, login())
    secrets = (await here.world.outside.list(SECRET.resource, namespace=PASSWORDS_NAMESPACE)).items
    users = (await here.world.outside.list(USER.resource)).items
    assert len(secrets) == 1
    told = str(secrets) + str(users) + "".join(str(vars(record)) for record in caplog.records)
    assert PASSWORD not in told


# --- users ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", ["short", "administrator"])
async def test_a_bad_password_is_refused_without_repeating_it(here: People, password: str) -> None:
    with pytest.raises(Invalid, match="password: Invalid value") as caught:
        await here.parts.users.create("administrator", password)
    assert f'"{password}"' not in str(caught.value).replace('User.management.cattle.io "administrator"', "")
    assert len((await here.world.outside.list(USER.resource)).items) == 1


@pytest.mark.parametrize("username", ["", "a b", "system:admin", "x/y", "-a", "a" * 300])
async def test_a_username_that_could_be_taken_for_something_else_is_refused(here: People, username: str) -> None:
    with pytest.raises(Invalid, match="username: Invalid value"):
        await here.parts.users.create(username, PASSWORD)


async def test_no_two_users_log_in_by_the_same_name(here: People) -> None:
    with pytest.raises(AlreadyExists):
        await here.parts.users.create("alice", PASSWORD)


async def test_who_comes_later_by_the_same_name_is_another_user(here: People) -> None:
    """Else the tokens of who is gone would come back to life."""
    bearer = content(await handled(here, login()))["token"]
    before = here.identity.known.user_of_login("alice")
    assert before is not None
    await here.world.outside.delete(USER.resource, before["metadata"]["name"])
    after = await here.parts.users.create("alice", PASSWORD)
    assert after["metadata"]["name"] != before["metadata"]["name"]
    await until(lambda: here.identity.known.user_of_login("alice") not in (None, before))
    with pytest.raises(Unauthorized):
        await here.identity.authenticate(asked(bearer))


async def test_new_users_get_the_roles_that_are_for_new_users(here: People) -> None:
    for name, default in (("base", True), ("other", False)):
        meta = {"apiVersion": GLOBAL_ROLE.api_version, "kind": GLOBAL_ROLE.kind, "metadata": {"name": name}}
        await here.world.outside.create(GLOBAL_ROLE.resource, {**meta, "newUserDefault": default})
    user = await here.parts.users.create("bob", PASSWORD)
    bindings = (await here.world.outside.list(GLOBAL_ROLE_BINDING.resource)).items
    assert [(each["userName"], each["globalRoleName"]) for each in bindings] == [(user["metadata"]["name"], "base")]


async def test_the_first_admin_is_made_once_with_a_random_password() -> None:
    async with people() as here:
        made = [await here.parts.users.bootstrap_admin() for _ in range(2)]
        assert len(made[0]) == 24
        assert made[1] == ""
        secret = await here.world.outside.get(SECRET.resource, "bootstrap-secret", namespace="cattle-system")
        assert set(secret["data"]) == {"bootstrapPassword"}
        await until(lambda: here.identity.known.user_of_login("admin"))
        assert content(await handled(here, login("admin", made[0])))["token"]


@pytest.mark.parametrize("ext", [False, True], ids=["token", "ext"])
async def test_an_admin_who_comes_back_under_the_old_name_has_none_of_the_old_tokens(ext: bool) -> None:
    """The first user's name is always the same; also tokens that nothing ties to a user must not outlive theirs."""
    async with people() as here:
        await here.parts.users.bootstrap_admin()
        (admin,) = (await here.world.outside.list(USER.resource)).items
        bearer = await here.token(admin["metadata"]["name"], ext=ext)
        await here.world.outside.delete(USER.resource, admin["metadata"]["name"])
        await here.parts.users.bootstrap_admin()
        await until(lambda: here.identity.known.user_of_login("admin") not in (None, admin))
        name = bearer.removeprefix("ext/").partition(":")[0]
        await until(lambda: here.identity.known.cached_token(name, ext=ext) is None)
        with pytest.raises(Unauthorized):
            await here.identity.authenticate(asked(bearer))


async def test_two_managers_that_start_at_once_agree_on_the_first_password() -> None:
    async with people() as here:
        made = await asyncio.gather(*(here.parts.users.bootstrap_admin() for _ in range(2)))
        assert len({password for password in made if password}) == 1
        assert len((await here.world.outside.list(USER.resource)).items) == 1


async def test_a_session_is_over_when_its_time_is(here: People) -> None:
    bearer = content(await handled(here, login(ttl=60_000)))["token"]
    here.ahead = timedelta(minutes=2)
    with pytest.raises(Unauthorized):
        await here.identity.authenticate(asked(bearer))


async def test_who_must_change_the_password_gets_no_other_token_than_a_session(here: People) -> None:
    await here.parts.users.create("carol", PASSWORD, must_change=True)
    await until(lambda: here.identity.known.user_of_login("carol"))
    for kind in ("kubeconfig", "kubeconfig_c-m-1"):
        with pytest.raises(Forbidden, match="the password must be changed first"):
            await handled(here, login("carol", responseType=kind))
    assert (await handled(here, login("carol"))).status == 201


async def test_tokens_of_a_session_are_good_for_no_more_guesses(here: People) -> None:
    """Whoever stole a session can create any number of them."""
    stolen = content(await handled(here, login()))["token"]
    user, results = await here.identity.authenticate(asked(stolen)), []
    for _ in range(4):
        made = await here.parts.ext.handle(sent("POST", "/apis/ext.cattle.io/v1/tokens", {"spec": {}}), user)
        assert made is not None
        derived = await here.identity.authenticate(asked(content(made)["status"]["bearerToken"]))
        for _ in range(4):
            spec = {"currentPassword": "wrong", "newPassword": canary("another password of alice")}
            request = sent("POST", "/apis/ext.cattle.io/v1/passwordchangerequests", {"spec": spec})
            with pytest.raises((Forbidden, TooManyRequests)) as error:
                await here.parts.ext.handle(request, derived)
            results.append(error.type)
    assert results.count(Forbidden) == 5


async def test_a_new_password_ends_every_token_that_the_old_one_was_exchanged_for(here: People) -> None:
    own = content(await handled(here, login()))["token"]
    stolen = [content(await handled(here, login(responseType=kind)))["token"] for kind in ("json", "kubeconfig")]
    spec = {"currentPassword": PASSWORD, "newPassword": canary("another password of alice")}
    request = sent("POST", "/apis/ext.cattle.io/v1/passwordchangerequests", {"spec": spec})
    await here.parts.ext.handle(request, await here.identity.authenticate(asked(own)))
    known, names = here.identity.known, [bearer.split(":")[0] for bearer in stolen]
    await until(lambda: not any(known.cached_token(name, ext=False) for name in names))
    for bearer in stolen:
        with pytest.raises(Unauthorized):
            await here.identity.authenticate(asked(bearer))
    await here.identity.authenticate(asked(own))
