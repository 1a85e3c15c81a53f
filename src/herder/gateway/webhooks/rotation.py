"""The certificates of the webhook server through their lives: one step at a time, so that nobody ever meets one that
it does not trust yet.

A new authority is first made known beside the old one; only when that had time to reach every API server does it sign
what is served; and only when that had time to reach every replica of ours is the old one forgotten.
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
OVERLAP = timedelta(hours=1)  # for news to reach everybody


@dataclass(frozen=True, slots=True)
class Certificates:
    serving: KeyPair
    authority: KeyPair  # the newest: what signs next
    older: tuple[x509.Certificate, ...] = ()  # still trusted

    @property
    def bundle(self) -> bytes:
        """All that is to be trusted, newest first."""
        older = b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.older)
        return self.authority.certificate_pem + older


def made(names: Iterable[str], now: datetime) -> Certificates:
    authority = _authority(now)
    return Certificates(_serving(authority, names, now), authority)


def stepped(kept: Certificates, names: Iterable[str], now: datetime) -> Certificates:
    """The next step where one is due; the very same certificates where none is."""
    if now >= kept.authority.certificate.not_valid_after_utc:
        return made(names, now)  # nobody was here for months
    wanted = dict.fromkeys((*names, *certificates.served_names(kept.serving.certificate)))
    is_needed_now = now >= _end(kept) or not certificates.serves(kept.serving.certificate, wanted)
    if is_needed_now or (now >= _next_serving(kept)):
        return replace(kept, serving=_serving(kept.authority, wanted, now))
    if now >= renewal(kept.authority.certificate):
        return replace(kept, authority=_authority(now), older=(kept.authority.certificate, *kept.older))
    if kept.older and now >= _forgetting(kept):
        return replace(kept, older=())
    return kept


def due(kept: Certificates) -> datetime:
    """When the next step is."""
    steps = [_end(kept), _next_serving(kept), renewal(kept.authority.certificate)]
    return min([*steps, _forgetting(kept)] if kept.older and _is_current(kept) else steps)


def _next_serving(kept: Certificates) -> datetime:
    if _is_current(kept):
        return renewal(kept.serving.certificate)
    return _start(kept.authority) + OVERLAP


def _forgetting(kept: Certificates) -> datetime:
    """Of older authorities: once none of them signed what is served, and nobody serves what they had signed."""
    return _start(kept.serving) + OVERLAP if _is_current(kept) else _end(kept)


def _is_current(kept: Certificates) -> bool:
    return certificates.is_issued_by(kept.serving.certificate, kept.authority.certificate)


def _start(pair: KeyPair) -> datetime:
    return pair.certificate.not_valid_before_utc + BACKDATE


def _end(kept: Certificates) -> datetime:
    return kept.serving.certificate.not_valid_after_utc


def _authority(now: datetime) -> KeyPair:
    return certificates.authority(f"herder-webhook-ca@{int(now.timestamp())}", now=now, life=AUTHORITY_LIFE)


def _serving(authority: KeyPair, names: Iterable[str], now: datetime) -> KeyPair:
    return certificates.serving(authority, "herder-webhooks", names, now=now, life=SERVING_LIFE)


# --- in a Secret --------------------------------------------------------------------------------------------------


def to_data(kept: Certificates) -> Object:
    content = {
        "tls.crt": kept.serving.certificate_pem,
        "tls.key": kept.serving.key_pem,
        "ca.crt": kept.bundle,
        "ca.key": kept.authority.key_pem,
    }
    return {name: base64.b64encode(pem).decode() for name, pem in content.items()}


def from_data(data: Object) -> Certificates:
    """ValueError, with the name of the key but nothing of its content, where they cannot be used."""
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
