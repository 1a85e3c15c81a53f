"""Secret shared by all gateway replicas: the CA that signs their certificates, and the peer token.

The first replica creates it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn.hashes import Entropy, new_key
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.engine.certificates import KeyPair, authority_from
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, StatusError
from herder.engine.meta.kinds import Object

SHARED_SECRET = "herder-gateway"
PEER_TOKEN = "peerToken"
_MIN_TOKEN_LENGTH = 32


@dataclass(frozen=True, slots=True)
class GatewaySecret:
    """Content of the shared Secret."""

    authority: KeyPair = field(repr=False)
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """How other replicas reach this one, and the shared Secret."""

    address: str  # host:port
    shared: GatewaySecret


async def shared(client: Client, own: KeyPair, entropy: Entropy) -> GatewaySecret:
    """Read the shared Secret, or create it with `own` as the CA."""
    try:
        secret = await client.create(SECRET.resource, _secret(own, new_key(entropy)), namespace=SYSTEM_NAMESPACE)
    except AlreadyExists:
        secret = await client.get(SECRET.resource, SHARED_SECRET, namespace=SYSTEM_NAMESPACE)
    return _read(secret)


def _secret(authority: KeyPair, token: str) -> Object:
    data = {"tls.crt": authority.certificate_pem, "tls.key": authority.key_pem, PEER_TOKEN: token.encode()}
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {"name": SHARED_SECRET, "namespace": SYSTEM_NAMESPACE},
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _read(secret: Object) -> GatewaySecret:
    """Raises StatusError with the invalid key, but nothing of its content."""
    data = secret.get("data") or {}
    try:
        authority = authority_from(data)
        token = base64.b64decode(data.get(PEER_TOKEN) or "").decode()
    except ValueError as error:
        raise _invalid(str(error)) from None
    if not isinstance(authority.key, ec.EllipticCurvePrivateKey):
        raise _invalid("tls.key: not an elliptic curve key")
    if len(token) < _MIN_TOKEN_LENGTH:
        raise _invalid(f"{PEER_TOKEN}: must be at least {_MIN_TOKEN_LENGTH} characters")
    return GatewaySecret(KeyPair(authority.certificate, authority.key), token)


def _invalid(problem: str) -> StatusError:
    message = f"Secret {SYSTEM_NAMESPACE}/{SHARED_SECRET}: data.{problem}; delete the Secret to regenerate it"
    return StatusError(message, code=500, reason="InternalError")
