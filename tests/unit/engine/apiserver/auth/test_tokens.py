from __future__ import annotations

import base64
from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import json

from herder.engine.apiserver.auth.jwt import SigningKey, TokenError, unverified_claims
from herder.engine.apiserver.auth.tokens import INVALID_SINCE_LABEL, TokenIssuer, TokenVerifier
from herder.engine.meta.kinds import Object
from herder.engine.wire import User
from tests.unit.engine.apiserver.auth.world import World


@pytest.fixture
async def account(world: World) -> Object:
    return await world.put("serviceaccounts", "builder", "ci")


def check(world: World, token: str, audiences: Sequence[str] = ()) -> User:
    found = world.verifier.verify(token, audiences or world.issuer.audiences)
    assert found is not None
    return found[0]


def test_a_token_is_signed_and_verified_by_the_same_key() -> None:
    key = SigningKey(ec.generate_private_key(ec.SECP256R1()))
    token = key.sign({"sub": "me"})
    assert key.verify(token) == {"sub": "me"}
    with pytest.raises(TokenError):
        SigningKey(ec.generate_private_key(ec.SECP256R1())).verify(token)


def test_a_changed_token_is_refused() -> None:
    key = SigningKey(ec.generate_private_key(ec.SECP256R1()))
    header, claims, signature = key.sign({"sub": "me"}).split(".")
    forged = base64.urlsafe_b64encode(b'{"sub":"you"}').rstrip(b"=").decode()
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    for bad in (
        f"{header}.{forged}.{signature}",
        f"{header}.{claims}.",
        f"{header}.{claims}.{'A' * len(signature)}",
        f"{unsigned}.{claims}.{signature}",
        f"{unsigned}.{claims}.",
        f"{header}.{claims}",
        "..",
        "a.b.c",
        "ä.ö.ü",
        "",
        f"{header}.{claims}.{signature}.{signature}",
    ):
        with pytest.raises(TokenError):
            key.verify(bad)


def test_keys_can_be_changed_without_ending_old_tokens() -> None:
    old = ec.generate_private_key(ec.SECP256R1())
    token = SigningKey(old).sign({"sub": "me"})
    both = SigningKey(ec.generate_private_key(ec.SECP256R1()), others=(old.public_key(),))
    assert both.verify(token) == {"sub": "me"}
    assert [key["alg"] for key in both.jwks()["keys"]] == ["ES256", "ES256"]


async def test_a_bound_token_says_what_the_real_server_s_say(world: World, account: Object) -> None:
    token = world.issuer.bound_token(account, now=world.now, seconds=3600)
    claims = unverified_claims(token)
    issued = int(world.now.timestamp())
    assert claims == {
        "aud": ["https://kubernetes.default.svc.cluster.local"],
        "exp": issued + 3600,
        "iat": issued,
        "iss": "https://kubernetes.default.svc.cluster.local",
        "jti": claims["jti"],
        "kubernetes.io": {
            "namespace": "ci",
            "serviceaccount": {"name": "builder", "uid": account["metadata"]["uid"]},
        },
        "nbf": issued,
        "sub": "system:serviceaccount:ci:builder",
    }
    assert check(world, token) == User(
        "system:serviceaccount:ci:builder",
        account["metadata"]["uid"],
        ("system:serviceaccounts", "system:serviceaccounts:ci", "system:authenticated"),
        {"authentication.kubernetes.io/credential-id": (f"JTI={claims['jti']}",)},
    )


async def test_a_token_ends_with_its_time(world: World, account: Object) -> None:
    token = world.issuer.bound_token(account, now=world.now, seconds=3600)
    world.pass_time(seconds=3600)
    check(world, token)
    world.pass_time(minutes=2)
    with pytest.raises(TokenError, match="expired"):
        check(world, token)


async def test_a_token_from_the_future_is_not_valid_yet(world: World, account: Object) -> None:
    token = world.issuer.bound_token(account, now=world.now, seconds=3600)
    world.pass_time(minutes=-5)
    with pytest.raises(TokenError, match="not valid yet"):
        check(world, token)


async def test_a_token_ends_with_its_service_account(world: World, account: Object) -> None:
    token = world.issuer.bound_token(account, now=world.now, seconds=3600)
    check(world, token)
    await world.delete("serviceaccounts", "builder", "ci")
    with pytest.raises(TokenError, match="invalidated"):
        check(world, token)
    await world.put("serviceaccounts", "builder", "ci")
    with pytest.raises(TokenError, match="invalidated"):
        check(world, token)


async def test_changes_to_the_account_do_not_end_its_tokens(world: World, account: Object) -> None:
    token = world.issuer.bound_token(account, now=world.now, seconds=3600)
    check(world, token)
    await world.put("serviceaccounts", "builder", "ci", secrets=[{"name": "x"}])
    check(world, token)


@pytest.mark.parametrize(("resource", "claim"), [("pods", "pod"), ("secrets", "secret"), ("nodes", "node")])
async def test_a_token_ends_with_the_object_it_is_bound_to(
    world: World, account: Object, resource: str, claim: str
) -> None:
    namespace = "" if resource == "nodes" else "ci"
    bound = await world.put(resource, "it", namespace)
    token = world.issuer.bound_token(account, now=world.now, seconds=3600, **{claim: bound})
    extra = check(world, token).extra
    if claim != "secret":
        assert extra[f"authentication.kubernetes.io/{claim}-name"] == ("it",)
        assert extra[f"authentication.kubernetes.io/{claim}-uid"] == (bound["metadata"]["uid"],)
    await world.delete(resource, "it", namespace)
    with pytest.raises(TokenError, match="invalidated"):
        check(world, token)


async def test_a_pod_s_token_outlives_the_pod_s_deletion_by_a_minute_only(world: World, account: Object) -> None:
    pod = await world.put("pods", "it", "ci")
    token = world.issuer.bound_token(account, now=world.now, seconds=3600, pod=pod)
    check(world, token)
    await world.put("pods", "it", "ci", metadata={"deletionTimestamp": "2026-05-01T12:00:00Z"})
    world.pass_time(seconds=30)
    check(world, token)
    world.pass_time(seconds=31)
    with pytest.raises(TokenError, match="invalidated"):
        check(world, token)


async def test_a_token_is_good_for_its_audiences_only(world: World, account: Object) -> None:
    token = world.issuer.bound_token(account, now=world.now, seconds=3600, audiences=["vault"])
    assert world.verifier.verify(token, ["x", "vault"]) is not None
    with pytest.raises(TokenError) as refusal:
        check(world, token)
    assert str(refusal.value) == (
        'token audiences ["vault"] is invalid for the target audiences ["https://kubernetes.default.svc.cluster.local"]'
    )
    with pytest.raises(TokenError):
        await world.verifier(token)


async def test_tokens_of_other_issuers_are_ignored(world: World, account: Object) -> None:
    other = TokenIssuer(SigningKey(ec.generate_private_key(ec.SECP256R1())), entropy=bytes, issuer="https://other")
    assert await world.verifier(other.bound_token(account, now=world.now, seconds=600)) is None
    assert await world.verifier("not-a-jwt") is None


async def test_a_token_that_only_claims_to_be_ours_is_refused(world: World, account: Object) -> None:
    forger = TokenIssuer(SigningKey(ec.generate_private_key(ec.SECP256R1())), entropy=bytes)
    with pytest.raises(TokenError):
        await world.verifier(forger.bound_token(account, now=world.now, seconds=600))


async def legacy(world: World, account: Object) -> str:
    token = world.issuer.legacy_token(account, "builder-token")
    data = {"token": base64.b64encode(token.encode()).decode()}
    await world.put("secrets", "builder-token", "ci", data=data)
    return token


async def test_a_legacy_token_is_good_while_its_secret_holds_it(world: World, account: Object) -> None:
    token = await legacy(world, account)
    assert check(world, token).name == "system:serviceaccount:ci:builder"
    world.pass_time(days=4000)
    check(world, token)
    await world.put("secrets", "builder-token", "ci", data={"token": base64.b64encode(b"another").decode()})
    with pytest.raises(TokenError, match="does not match"):
        check(world, token)
    await world.delete("secrets", "builder-token", "ci")
    with pytest.raises(TokenError, match="invalidated"):
        check(world, token)


async def test_a_legacy_token_ends_with_its_account_or_when_marked_invalid(world: World, account: Object) -> None:
    token = await legacy(world, account)
    await world.put("secrets", "builder-token", "ci", metadata={"labels": {INVALID_SINCE_LABEL: "2026-01-01"}},
                    data={"token": base64.b64encode(token.encode()).decode()})  # fmt: skip
    with pytest.raises(TokenError, match="marked invalid"):
        check(world, token)
    await legacy(world, account)
    await world.delete("serviceaccounts", "builder", "ci")
    with pytest.raises(TokenError):
        check(world, token)


async def test_errors_never_repeat_the_token(world: World, account: Object) -> None:
    token = world.issuer.bound_token(account, now=world.now, seconds=600)
    await world.delete("serviceaccounts", "builder", "ci")
    with pytest.raises(TokenError) as refusal:
        check(world, token)
    assert token[:20] not in str(refusal.value)


async def test_a_verifier_that_remembers_a_token_still_checks_it(world: World, account: Object) -> None:
    token = world.issuer.bound_token(account, now=world.now, seconds=600)
    fresh = TokenVerifier(world.issuer, world.store, clock=lambda: world.now)
    for _ in range(3):
        assert await fresh(token) is not None
    world.pass_time(hours=1)
    with pytest.raises(TokenError, match="expired"):
        await fresh(token)


def test_discovery_names_the_issuer_and_where_the_keys_are(world: World) -> None:
    assert json.encode(world.issuer.openid_configuration("https://host:6443")).decode() == (
        '{"issuer":"https://kubernetes.default.svc.cluster.local","jwks_uri":"https://host:6443/openid/v1/jwks",'
        '"response_types_supported":["id_token"],"subject_types_supported":["public"],'
        '"id_token_signing_alg_values_supported":["ES256"]}'
    )
