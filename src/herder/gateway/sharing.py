"""What the replicas of a gateway have in common, in a Secret that the first of them makes: who signs the certificates
that they show, so that agents trust all of them, and the token by which they know one another."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec

from herder.api.capi.kinds import SECRET
from herder.api.identity.hashes import Entropy, new_key
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.engine.certificates import KeyPair, authority_from
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, StatusError
from herder.engine.meta.kinds import Object

SHARED_SECRET = "herder-gateway"
PEER_TOKEN = "peerToken"
_FEWEST_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class Shared:
    authority: KeyPair = field(repr=False)
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Of one replica: where the others reach it, and what it shares with them."""

    address: str  # host:port
    shared: Shared


async def shared(client: Client, own: KeyPair, entropy: Entropy) -> Shared:
    """`own` is the authority of the gateway where there is none yet."""
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


def _read(secret: Object) -> Shared:
    """Raises StatusError naming what is wrong, and nothing of what it holds."""
    data = secret.get("data") or {}
    try:
        authority = authority_from(data)
        token = base64.b64decode(data.get(PEER_TOKEN) or "").decode()
    except ValueError as error:
        raise _unusable(str(error)) from None
    if not isinstance(authority.key, ec.EllipticCurvePrivateKey):
        raise _unusable("tls.key: not an elliptic curve key")
    if len(token) < _FEWEST_CHARACTERS:
        raise _unusable(f"{PEER_TOKEN}: must be at least {_FEWEST_CHARACTERS} characters")
    return Shared(KeyPair(authority.certificate, authority.key), token)


def _unusable(problem: str) -> StatusError:
    message = f"Secret {SYSTEM_NAMESPACE}/{SHARED_SECRET}: data.{problem}; delete it to have it made anew"
    return StatusError(message, code=500, reason="InternalError")
