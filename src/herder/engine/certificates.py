"""X.509 certificates: create CAs and leaf certificates, check them, and load them.

Every certificate gets a new P-256 key. Generating one takes less than a millisecond, so nothing is cached.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATE = timedelta(minutes=5)  # tolerates clients whose clocks are slightly behind


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Certificate with its P-256 private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return private_pem(self.key)


@dataclass(frozen=True, slots=True)
class Authority:
    """CA that was created elsewhere, possibly with an RSA key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Signer(Protocol):
    """CA that signs certificates, created here or elsewhere."""

    @property
    def certificate(self) -> x509.Certificate: ...

    @property
    def key(self) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey: ...


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Load a P-256 private key from PEM; raise ValueError for anything else."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ValueError("not a PEM private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("not a P-256 private key")
    return key


def authority_from(data: Mapping[str, str]) -> Authority:
    """Load a CA from the data of a Secret. Raises ValueError that names the key of the Secret but not its content."""
    try:
        certificate = x509.load_pem_x509_certificate(_content(data, "tls.crt"))
    except ValueError:
        raise ValueError("tls.crt: not a PEM certificate") from None
    try:
        key = serialization.load_pem_private_key(_content(data, "tls.key"), password=None)
    except (ValueError, TypeError):
        raise ValueError("tls.key: not a PEM private key without a password") from None
    if not isinstance(key, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
        raise ValueError("tls.key: neither an RSA nor an elliptic curve key")
    if certificate.public_key() != key.public_key():
        raise ValueError("tls.key: does not belong to the certificate in tls.crt")
    return Authority(certificate, key)


def _content(data: Mapping[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key) or "", validate=True)
    except binascii.Error:
        return b""


# --- create -----------------------------------------------------------------------------------------------------


def authority(name: str, *, now: datetime, life: timedelta) -> KeyPair:
    """Create a self-signed CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(subject, subject, key, now, life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate, key)


def serving(signer: KeyPair, name: str, served: Iterable[str], *, now: datetime, life: timedelta) -> KeyPair:
    """Create a serving certificate for names and addresses."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    alternatives = x509.SubjectAlternativeName([_general_name(item) for item in served])
    return leaf(signer, subject, ExtendedKeyUsageOID.SERVER_AUTH, now=now, life=life, alternatives=alternatives)


def leaf(
    signer: Signer,
    subject: x509.Name,
    purpose: x509.ObjectIdentifier,
    *,
    now: datetime,
    life: timedelta,
    alternatives: x509.SubjectAlternativeName | None = None,
) -> KeyPair:
    """Create a leaf certificate that does not outlive its issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(life, signer.certificate.not_valid_after_utc - now)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = (
        _builder(subject, signer.certificate.subject, key, now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(issuer_key, critical=False)
    )
    if alternatives is not None:
        builder = builder.add_extension(alternatives, critical=False)
    return KeyPair(builder.sign(signer.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - BACKDATE)
        .not_valid_after(now.astimezone(UTC) + life)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


# --- check ------------------------------------------------------------------------------------------------------


def renewal(certificate: x509.Certificate) -> datetime:
    """Return when to renew: after two thirds of the lifetime."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - life / 3


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # ValueError, TypeError or InvalidSignature: not issued by it
        return False
    return True


def serves(certificate: x509.Certificate, names: Iterable[str]) -> bool:
    return {_general_name(name) for name in names} <= set(_alternatives(certificate))


def served_names(certificate: x509.Certificate) -> list[str]:
    return [str(name.value) for name in _alternatives(certificate)]


def _alternatives(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


# --- load -------------------------------------------------------------------------------------------------------


def load_chain(context: ssl.SSLContext, certificate_pem: bytes, key_pem: bytes) -> None:
    """Use this certificate for new connections of the context; open connections keep theirs."""
    # The ssl module loads certificate chains only from files: use a temporary one.
    with tempfile.NamedTemporaryFile(suffix=".pem") as bundle:
        bundle.write(certificate_pem + key_pem)
        bundle.flush()
        context.load_cert_chain(bundle.name)
