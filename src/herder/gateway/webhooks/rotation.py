"""Rotation of the webhook server's certificates, in steps that no API server fails to trust.

A new CA is first published next to the old one. When it has had time to reach every API server, it signs the serving
certificate. When that has had time to reach every replica, the old CA is removed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from herder.engine import certificates
from herder.engine.certificates import BACKDATE, KeyPair, renewal
from herder.engine.meta.kinds import Object

AUTHORITY_LIFE = timedelta(days=730)
SERVING_LIFE = timedelta(days=90)
OVERLAP = timedelta(hours=1)  # propagation time


@dataclass(frozen=True, slots=True)
class Certificates:
    """Serving certificate, current CA, and older CAs."""

    serving: KeyPair
    authority: KeyPair  # the newest CA, which signs the next certificate
    older: tuple[x509.Certificate, ...] = ()  # still trusted

    @property
    def bundle(self) -> bytes:
        """All trusted CAs, newest first."""
        older = b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.older)
        return self.authority.certificate_pem + older


def generate(names: Iterable[str], now: datetime) -> Certificates:
    authority = _authority(now)
    return Certificates(_serving(authority, names, now), authority)


def rotate(current: Certificates, names: Iterable[str], now: datetime) -> Certificates:
    """The next rotation step if one is due; otherwise the same object."""
    if now >= current.authority.certificate.not_valid_after_utc:
        return generate(names, now)  # not running for months
    wanted = dict.fromkeys((*names, *certificates.served_names(current.serving.certificate)))
    is_needed_now = now >= _end(current) or not certificates.serves(current.serving.certificate, wanted)
    if is_needed_now or (now >= _next_serving(current)):
        return replace(current, serving=_serving(current.authority, wanted, now))
    if now >= renewal(current.authority.certificate):
        return replace(current, authority=_authority(now), older=(current.authority.certificate, *current.older))
    if current.older and now >= _prune_time(current):
        return replace(current, older=())
    return current


def next_rotation(current: Certificates) -> datetime:
    """When the next step is due."""
    steps = [_end(current), _next_serving(current), renewal(current.authority.certificate)]
    return min([*steps, _prune_time(current)] if current.older and _is_current(current) else steps)


def _next_serving(current: Certificates) -> datetime:
    if _is_current(current):
        return renewal(current.serving.certificate)
    return _start(current.authority) + OVERLAP


def _prune_time(current: Certificates) -> datetime:
    """When older CAs can be removed: nothing that they signed is served anymore."""
    return _start(current.serving) + OVERLAP if _is_current(current) else _end(current)


def _is_current(current: Certificates) -> bool:
    return certificates.is_issued_by(current.serving.certificate, current.authority.certificate)


def _start(pair: KeyPair) -> datetime:
    return pair.certificate.not_valid_before_utc + BACKDATE


def _end(current: Certificates) -> datetime:
    return current.serving.certificate.not_valid_after_utc


def _authority(now: datetime) -> KeyPair:
    return certificates.authority(f"herder-webhook-ca@{int(now.timestamp())}", now=now, life=AUTHORITY_LIFE)


def _serving(authority: KeyPair, names: Iterable[str], now: datetime) -> KeyPair:
    return certificates.serving(authority, "herder-webhooks", names, now=now, life=SERVING_LIFE)


# --- Secret ---------------------------------------------------------------------------------------------------------


def to_data(current: Certificates) -> Object:
    content = {
        "tls.crt": current.serving.certificate_pem,
        "tls.key": current.serving.key_pem,
        "ca.crt": current.bundle,
        "ca.key": current.authority.key_pem,
    }
    return {name: base64.b64encode(pem).decode() for name, pem in content.items()}


def from_data(data: Object) -> Certificates:
    """Raises ValueError with the key's name, but nothing of its content, if it is invalid."""
    newest, *older = _certificates(data, "ca.crt")
    serving, *_ = _certificates(data, "tls.crt")
    found = Certificates(KeyPair(serving, _key(data, "tls.key")), KeyPair(newest, _key(data, "ca.key")), tuple(older))
    for name, pair in (("tls.key", found.serving), ("ca.key", found.authority)):
        if pair.key.public_key() != pair.certificate.public_key():
            raise ValueError(f"{name} does not belong to its certificate")
    if not any(certificates.is_issued_by(serving, issuer) for issuer in (newest, *older)):
        raise ValueError("tls.crt is signed by none of ca.crt")
    return found


def _certificates(data: Object, name: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_content(data, name))
    except ValueError as error:
        raise ValueError(f"{name}: not a PEM certificate") from error


def _key(data: Object, name: str) -> EllipticCurvePrivateKey:
    try:
        return certificates.private_key(_content(data, name))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _content(data: Object, name: str) -> bytes:
    try:
        return base64.b64decode(data.get(name) or "", validate=True)
    except binascii.Error:
        return b""
