"""JSON Web Tokens signed with ECDSA P-256. Any algorithm but ES256 is rejected before a key is used."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

Claims = dict[str, Any]
_MAX_TOKEN = 16 << 10  # far longer than any token we issue; longer ones are not parsed
_ES256 = ec.ECDSA(hashes.SHA256())


class TokenError(Exception):
    """The token is invalid or of another issuer. The message never contains the token."""


class SigningKey:
    """Signs and verifies tokens. Additional public keys are accepted during key rotation."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, others: tuple[ec.EllipticCurvePublicKey, ...] = ()) -> None:
        self._key = key
        self._public = {key_id(public): public for public in (key.public_key(), *others)}
        header = {"alg": "ES256", "kid": key_id(key.public_key())}
        self._header = _encoded(msgspec.json.encode(header))

    def sign(self, claims: Claims) -> str:
        signed = f"{self._header}.{_encoded(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), _ES256))
        return f"{signed}.{_encoded(r.to_bytes(32) + s.to_bytes(32))}"

    def verify(self, token: str) -> Claims:
        """Return the claims of a token signed by one of the keys. Time, audience and subject are not checked."""
        signed, header, claims, signature = _parts(token)
        if header.get("alg") != "ES256" or len(signature) != 64:
            raise TokenError("unexpected signature algorithm")
        public = self._public.get(str(header.get("kid")))
        if public is None:
            raise TokenError("unknown signing key")
        der = encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
        try:
            public.verify(der, signed.encode(), _ES256)
        except InvalidSignature:
            raise TokenError("bad signature") from None
        return claims

    def jwks(self) -> dict[str, Any]:
        """Return the public keys as a JSON Web Key Set, for external verifiers."""
        return {"keys": [_jwk(identity, public) for identity, public in self._public.items()]}


def unverified_claims(token: str) -> Claims:
    """Return the claims without verification, only to determine the issuer."""
    return _parts(token)[2]


def key_id(public: ec.EllipticCurvePublicKey) -> str:
    """Return the key ID of a public key: the SHA-256 of its DER encoding."""
    encoded = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _encoded(hashlib.sha256(encoded).digest())


def _jwk(identity: str, public: ec.EllipticCurvePublicKey) -> dict[str, str]:
    numbers = public.public_numbers()
    x, y = _encoded(numbers.x.to_bytes(32)), _encoded(numbers.y.to_bytes(32))
    return {"use": "sig", "kty": "EC", "kid": identity, "crv": "P-256", "alg": "ES256", "x": x, "y": y}


def _parts(token: str) -> tuple[str, Claims, Claims, bytes]:
    signed, _, signature = token.rpartition(".")
    header, dot, claims = signed.partition(".")
    if not dot or "." in claims or len(token) > _MAX_TOKEN:
        raise TokenError("not a signed token")
    try:
        decoded = msgspec.json.decode(_decoded(header)), msgspec.json.decode(_decoded(claims))
        raw = _decoded(signature)
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        raise TokenError("not a signed token") from None
    if not isinstance(decoded[0], dict) or not isinstance(decoded[1], dict):
        raise TokenError("not a signed token")
    return signed, decoded[0], decoded[1], raw


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
