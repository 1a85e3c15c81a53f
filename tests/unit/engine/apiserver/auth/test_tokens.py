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
from tests.unit.engine.apiserver.auth.fake_cluster import FakeCluster


@pytest.fixture
async def account(cluster: FakeCluster) -> Object:
    return await cluster.put("serviceaccounts", "builder", "ci")


def check(cluster: FakeCluster, token: str, audiences: Sequence[str] = ()) -> User:
    found = cluster.verifier.verify(token, audiences or cluster.issuer.audiences)
    assert found is not None
    return found[0]


def test_a_token_is_signed_and_verified_by_the_same_key() -> None:
    key = SigningKey(ec.generate_private_key(ec.SECP256R1()))
    token = key.sign({"sub": "me"})
    assert key.verify(token) == {"sub": "me"}
    with pytest.raises(TokenError):
        SigningKey(ec.generate_private_key(ec.SECP256R1())).verify(token)


def test_a_modified_token_is_rejected() -> None:
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


def test_signing_keys_can_be_rotated_without_invalidating_old_tokens() -> None:
    old = ec.generate_private_key(ec.SECP256R1())
    token = SigningKey(old).sign({"sub": "me"})
    both = SigningKey(ec.generate_private_key(ec.SECP256R1()), others=(old.public_key(),))
    assert both.verify(token) == {"sub": "me"}
    assert [key["alg"] for key in both.jwks()["keys"]] == ["ES256", "ES256"]


async def test_a_bound_token_has_the_claims_of_kube_apiserver(cluster: FakeCluster, account: Object) -> None:
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=3600)
    claims = unverified_claims(token)
    issued = int(cluster.now.timestamp())
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
    assert check(cluster, token) == User(
        "system:serviceaccount:ci:builder",
        account["metadata"]["uid"],
        ("system:serviceaccounts", "system:serviceaccounts:ci", "system:authenticated"),
        {"authentication.kubernetes.io/credential-id": (f"JTI={claims['jti']}",)},
    )


async def test_a_token_is_invalid_after_its_expiry(cluster: FakeCluster, account: Object) -> None:
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=3600)
    cluster.pass_time(seconds=3600)
    check(cluster, token)
    cluster.pass_time(minutes=2)
    with pytest.raises(TokenError, match="expired"):
        check(cluster, token)


async def test_a_token_from_the_future_is_not_valid_yet(cluster: FakeCluster, account: Object) -> None:
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=3600)
    cluster.pass_time(minutes=-5)
    with pytest.raises(TokenError, match="not valid yet"):
        check(cluster, token)


async def test_a_token_is_invalid_after_its_service_account_is_deleted(cluster: FakeCluster, account: Object) -> None:
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=3600)
    check(cluster, token)
    await cluster.delete("serviceaccounts", "builder", "ci")
    with pytest.raises(TokenError, match="invalidated"):
        check(cluster, token)
    await cluster.put("serviceaccounts", "builder", "ci")
    with pytest.raises(TokenError, match="invalidated"):
        check(cluster, token)


async def test_changes_to_the_account_do_not_invalidate_its_tokens(cluster: FakeCluster, account: Object) -> None:
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=3600)
    check(cluster, token)
    await cluster.put("serviceaccounts", "builder", "ci", secrets=[{"name": "x"}])
    check(cluster, token)


@pytest.mark.parametrize(("resource", "claim"), [("pods", "pod"), ("secrets", "secret"), ("nodes", "node")])
async def test_a_token_is_invalid_after_its_bound_object_is_deleted(
    cluster: FakeCluster, account: Object, resource: str, claim: str
) -> None:
    namespace = "" if resource == "nodes" else "ci"
    bound = await cluster.put(resource, "it", namespace)
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=3600, **{claim: bound})
    extra = check(cluster, token).extra
    if claim != "secret":
        assert extra[f"authentication.kubernetes.io/{claim}-name"] == ("it",)
        assert extra[f"authentication.kubernetes.io/{claim}-uid"] == (bound["metadata"]["uid"],)
    await cluster.delete(resource, "it", namespace)
    with pytest.raises(TokenError, match="invalidated"):
        check(cluster, token)


async def test_a_pod_token_is_valid_for_a_minute_after_the_pods_deletion(cluster: FakeCluster, account: Object) -> None:
    pod = await cluster.put("pods", "it", "ci")
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=3600, pod=pod)
    check(cluster, token)
    await cluster.put("pods", "it", "ci", metadata={"deletionTimestamp": "2026-05-01T12:00:00Z"})
    cluster.pass_time(seconds=30)
    check(cluster, token)
    cluster.pass_time(seconds=31)
    with pytest.raises(TokenError, match="invalidated"):
        check(cluster, token)


async def test_a_token_is_valid_for_its_audiences_only(cluster: FakeCluster, account: Object) -> None:
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=3600, audiences=["vault"])
    assert cluster.verifier.verify(token, ["x", "vault"]) is not None
    with pytest.raises(TokenError) as refusal:
        check(cluster, token)
    assert str(refusal.value) == (
        'token audiences ["vault"] is invalid for the target audiences ["https://kubernetes.default.svc.cluster.local"]'
    )
    with pytest.raises(TokenError):
        await cluster.verifier(token)


async def test_tokens_of_other_issuers_are_ignored(cluster: FakeCluster, account: Object) -> None:
    other = TokenIssuer(SigningKey(ec.generate_private_key(ec.SECP256R1())), entropy=bytes, issuer="https://other")
    assert await cluster.verifier(other.bound_token(account, now=cluster.now, seconds=600)) is None
    assert await cluster.verifier("not-a-jwt") is None


async def test_a_token_with_our_issuer_and_another_key_is_rejected(cluster: FakeCluster, account: Object) -> None:
    forger = TokenIssuer(SigningKey(ec.generate_private_key(ec.SECP256R1())), entropy=bytes)
    with pytest.raises(TokenError):
        await cluster.verifier(forger.bound_token(account, now=cluster.now, seconds=600))


async def legacy(cluster: FakeCluster, account: Object) -> str:
    token = cluster.issuer.legacy_token(account, "builder-token")
    data = {"token": base64.b64encode(token.encode()).decode()}
    await cluster.put("secrets", "builder-token", "ci", data=data)
    return token


async def test_a_legacy_token_is_valid_while_its_secret_contains_it(cluster: FakeCluster, account: Object) -> None:
    token = await legacy(cluster, account)
    assert check(cluster, token).name == "system:serviceaccount:ci:builder"
    cluster.pass_time(days=4000)
    check(cluster, token)
    await cluster.put("secrets", "builder-token", "ci", data={"token": base64.b64encode(b"another").decode()})
    with pytest.raises(TokenError, match="does not match"):
        check(cluster, token)
    await cluster.delete("secrets", "builder-token", "ci")
    with pytest.raises(TokenError, match="invalidated"):
        check(cluster, token)


async def test_a_legacy_token_is_invalid_without_its_account_or_when_marked_invalid(
    cluster: FakeCluster, account: Object
) -> None:
    token = await legacy(cluster, account)
    await cluster.put("secrets", "builder-token", "ci", metadata={"labels": {INVALID_SINCE_LABEL: "2026-01-01"}},
                    data={"token": base64.b64encode(token.encode()).decode()})  # fmt: skip
    with pytest.raises(TokenError, match="marked invalid"):
        check(cluster, token)
    await legacy(cluster, account)
    await cluster.delete("serviceaccounts", "builder", "ci")
    with pytest.raises(TokenError):
        check(cluster, token)


async def test_errors_never_repeat_the_token(cluster: FakeCluster, account: Object) -> None:
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=600)
    await cluster.delete("serviceaccounts", "builder", "ci")
    with pytest.raises(TokenError) as refusal:
        check(cluster, token)
    assert token[:20] not in str(refusal.value)


async def test_a_cached_token_is_still_checked(cluster: FakeCluster, account: Object) -> None:
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=600)
    fresh = TokenVerifier(cluster.issuer, cluster.store, clock=lambda: cluster.now)
    for _ in range(3):
        assert await fresh(token) is not None
    cluster.pass_time(hours=1)
    with pytest.raises(TokenError, match="expired"):
        await fresh(token)


def test_oidc_discovery_contains_the_issuer_and_the_jwks_uri(cluster: FakeCluster) -> None:
    assert json.encode(cluster.issuer.openid_configuration("https://host:6443")).decode() == (
        '{"issuer":"https://kubernetes.default.svc.cluster.local","jwks_uri":"https://host:6443/openid/v1/jwks",'
        '"response_types_supported":["id_token"],"subject_types_supported":["public"],'
        '"id_token_signing_alg_values_supported":["ES256"]}'
    )
