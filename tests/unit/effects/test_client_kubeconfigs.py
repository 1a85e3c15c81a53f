"""Client kubeconfigs of workload clusters: signer, lifetime, and errors of unusable CAs."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from herder.effects.client_kubeconfig import Kubeconfigs, UnusableAuthority
from herder.engine.certificates import authority, is_issued_by
from herder.engine.client import kubeconfig
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ARGUMENTS = {"namespace": "ns", "cluster": "c", "server": "https://10.0.0.1:6443"}


class Secrets:
    """The part of a client that the effect uses."""

    def __init__(self, data: dict[str, bytes] | None) -> None:
        self._data = data

    async def get(self, _resource: Any, name: str, *, namespace: str) -> Object:
        if self._data is None:
            raise NotFound(f'secrets "{name}" not found')
        assert (namespace, name) == ("ns", "c-ca")
        data = {field: base64.b64encode(value).decode() for field, value in self._data.items()}
        return {"metadata": {"name": name, "namespace": namespace}, "data": data}


async def create(data: dict[str, bytes] | None, *, now: datetime = NOW) -> Object:
    return await Kubeconfigs(Secrets(data), lambda: now).make(ARGUMENTS)  # type: ignore[arg-type]


def pem(key: Any) -> bytes:
    encoded: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded


def foreign_ca(key: Any, *, life: timedelta = timedelta(days=3650)) -> dict[str, bytes]:
    """A CA as another tool creates it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, algorithm)
    )
    return {"tls.crt": certificate.public_bytes(serialization.Encoding.PEM), "tls.key": pem(key)}


def own_ca() -> dict[str, bytes]:
    pair = authority("kubernetes", now=NOW, life=timedelta(days=3650))
    return {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem}


CAS = [
    pytest.param(own_ca(), id="created by Herder"),
    pytest.param(foreign_ca(ec.generate_private_key(ec.SECP384R1())), id="another curve"),
    pytest.param(foreign_ca(rsa.generate_private_key(65537, 2048)), id="RSA"),
]


@pytest.mark.parametrize("data", CAS)
async def test_the_client_certificate_is_signed_by_the_ca_of_the_cluster(data: dict[str, bytes]) -> None:
    config = base64.b64decode((await create(data))["kubeconfig"]).decode()
    connection = kubeconfig.parse(config)
    assert connection.server == "https://10.0.0.1:6443"
    assert connection.ca == data["tls.crt"]
    assert connection.client_certificate is not None
    certificate = x509.load_pem_x509_certificate(connection.client_certificate)
    assert is_issued_by(certificate, x509.load_pem_x509_certificate(data["tls.crt"]))
    assert certificate.subject.rfc4514_string() == "CN=kubernetes-admin,O=system:masters"
    assert data["tls.key"].decode().strip() not in config


async def test_the_kubeconfig_has_the_names_of_cluster_api() -> None:
    config = yaml.safe_load(base64.b64decode((await create(own_ca()))["kubeconfig"]))
    assert config["current-context"] == "c-admin@c"
    assert [entry["name"] for entry in config["clusters"]] == ["c"]
    assert [entry["name"] for entry in config["users"]] == ["c-admin"]
    assert config["contexts"] == [{"name": "c-admin@c", "context": {"cluster": "c", "user": "c-admin"}}]


@pytest.mark.parametrize(
    ("remaining", "expires", "renew"),
    [
        pytest.param(timedelta(days=3650), timedelta(days=365), timedelta(days=182, hours=12), id="a year"),
        pytest.param(timedelta(days=10), timedelta(days=10), timedelta(days=5), id="as long as the CA"),
    ],
)
async def test_expiry_and_renewal_time(remaining: timedelta, expires: timedelta, renew: timedelta) -> None:
    result = await create(foreign_ca(ec.generate_private_key(ec.SECP256R1()), life=remaining))
    assert datetime.fromisoformat(result["expires"]) == NOW + expires
    assert datetime.fromisoformat(result["renew"]) == NOW + renew


GOOD = own_ca()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "Secret c-ca does not exist"),
        ({}, "Secret c-ca: tls.crt: not a PEM certificate"),
        ({**GOOD, "tls.crt": b"hello"}, "Secret c-ca: tls.crt: not a PEM certificate"),
        ({**GOOD, "tls.key": b"hello"}, "Secret c-ca: tls.key: not a PEM private key without a password"),
        (
            foreign_ca(ed25519.Ed25519PrivateKey.generate()),
            "Secret c-ca: tls.key: neither an RSA nor an elliptic curve key",
        ),
        (
            {**GOOD, "tls.key": own_ca()["tls.key"]},
            "Secret c-ca: tls.key: does not belong to the certificate in tls.crt",
        ),
    ],
)
async def test_an_unusable_ca_is_reported_without_its_content(data: dict[str, bytes] | None, problem: str) -> None:
    with pytest.raises(UnusableAuthority) as raised:
        await create(data)
    assert str(raised.value) == problem


async def test_an_expired_ca_signs_nothing() -> None:
    with pytest.raises(UnusableAuthority, match=r"tls\.crt: expired"):
        await create(GOOD, now=NOW + timedelta(days=4000))
