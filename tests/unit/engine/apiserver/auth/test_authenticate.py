from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import serialization

from herder.engine.apiserver.auth.authenticate import Authenticator, StaticTokens
from herder.engine.apiserver.pki import Pki
from herder.engine.meta.errors import Unauthorized
from herder.engine.wire import Request, User
from tests.unit.engine.apiserver.auth.fake_cluster import FakeCluster

ALICE = User("alice", "7", ("dev",))


def request(**headers: str) -> Request:
    return Request("GET", "/api", headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.fixture
def authenticator(cluster: FakeCluster) -> Authenticator:
    return Authenticator(tokens=[StaticTokens({"alices-token": ALICE}), cluster.verifier])


async def test_requests_without_credentials_are_anonymous(authenticator: Authenticator) -> None:
    assert await authenticator.authenticate(request()) is None
    assert await authenticator.authenticate(request(authorization="Basic YTpi")) is None
    assert await authenticator.authenticate(request(authorization="Bearer ")) is None


async def test_anonymous_requests_can_be_disabled() -> None:
    with pytest.raises(Unauthorized, match="Unauthorized"):
        await Authenticator(allow_anonymous=False).authenticate(request())


@pytest.mark.parametrize("header", ["Bearer alices-token", "bearer alices-token", "  Bearer alices-token extra"])
async def test_a_known_token_authenticates_its_user(authenticator: Authenticator, header: str) -> None:
    found = await authenticator.authenticate(request(authorization=header))
    assert found == User("alice", "7", ("dev", "system:authenticated"))


@pytest.mark.parametrize("token", ["unknown", "alices-toke", "alices-token1", "\ud800", "a.b.c"])
async def test_an_unknown_token_is_rejected_and_not_treated_as_anonymous(
    authenticator: Authenticator, token: str
) -> None:
    with pytest.raises(Unauthorized) as refusal:
        await authenticator.authenticate(request(authorization=f"Bearer {token}"))
    assert refusal.value.message == "Unauthorized"
    assert refusal.value.details is None


async def test_a_service_account_token_is_valid_until_its_account_is_deleted(
    cluster: FakeCluster, authenticator: Authenticator
) -> None:
    account = await cluster.put("serviceaccounts", "builder", "ci")
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=600)
    found = await authenticator.authenticate(request(authorization=f"Bearer {token}"))
    assert found is not None
    assert found.name == "system:serviceaccount:ci:builder"
    await cluster.delete("serviceaccounts", "builder", "ci")
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(request(authorization=f"Bearer {token}"))


async def test_a_later_authenticator_may_accept_a_token_that_an_earlier_one_rejects(
    cluster: FakeCluster, authenticator: Authenticator
) -> None:
    account = await cluster.put("serviceaccounts", "builder", "ci")
    token = cluster.issuer.bound_token(account, now=cluster.now, seconds=600, audiences=["elsewhere"])

    async def other_authenticator(bearer: str) -> User | None:
        return ALICE if bearer == token else None

    with pytest.raises(Unauthorized):
        await authenticator.authenticate(request(authorization=f"Bearer {token}"))
    authenticator.token_authenticators.append(other_authenticator)
    found = await authenticator.authenticate(request(authorization=f"Bearer {token}"))
    assert found is not None
    assert found.name == "alice"


async def test_a_browser_may_send_its_token_as_a_websocket_protocol(authenticator: Authenticator) -> None:
    encoded = base64.urlsafe_b64encode(b"alices-token").rstrip(b"=").decode()
    protocols = f"v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.{encoded}"
    found = await authenticator.authenticate(request(sec_websocket_protocol=protocols))
    assert found is not None
    assert found.name == "alice"
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(request(sec_websocket_protocol="base64url.bearer.authorization.k8s.io.*"))


async def test_a_client_certificate_provides_user_groups_and_uid(authenticator: Authenticator) -> None:
    now = datetime.now(UTC)
    pair = Pki.load_or_create(None, now=now).client_certificate("carol", ["ops", "dev"], now=now, uid="u-1")
    der = pair.certificate.public_bytes(serialization.Encoding.DER)
    found = await authenticator.authenticate(Request("GET", "/api", client_certificate=der))
    assert found is not None
    assert (found.name, found.uid, found.groups) == ("carol", "u-1", ("ops", "dev", "system:authenticated"))
    assert found.extra["authentication.kubernetes.io/credential-id"][0].startswith("X509SHA256=")


async def test_a_certificate_without_user_is_rejected(authenticator: Authenticator) -> None:
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(Request("GET", "/api", client_certificate=b"rubbish"))


async def test_in_process_clients_need_no_credentials(authenticator: Authenticator) -> None:
    assert await authenticator.authenticate(Request("GET", "/api", user=ALICE)) is ALICE
