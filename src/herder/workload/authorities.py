"""Certificate authorities of workload clusters: made once, kept in a Secret, read from there by who signs with them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import authority_secret
from herder.engine import certificates
from herder.engine.certificates import KeyPair
from herder.engine.client.client import Client

LIFE = timedelta(days=3650)


class AuthorityError(Exception):
    """A Secret whose content cannot be used; the text names its key, and nothing of what it holds."""


async def make_authority(arguments: Mapping[str, Any], *, clock: Callable[[], datetime]) -> dict[str, str]:
    """As a Secret's data."""
    pair = certificates.authority(f"{arguments['name']}-ca", now=clock(), life=LIFE)
    return {"tls.crt": _base64(pair.certificate_pem), "tls.key": _base64(pair.key_pem)}


async def read_authority(client: Client, namespace: str, cluster: str) -> KeyPair:
    name = authority_secret(cluster)
    secret = await client.get(SECRET.resource, name, namespace=namespace)
    return authority_from(secret.get("data") or {}, f"Secret {namespace}/{name}")


def authority_from(data: Mapping[str, str], whence: str) -> KeyPair:
    try:
        certificate = x509.load_pem_x509_certificate(_content(data, "tls.crt"))
    except ValueError as error:
        raise AuthorityError(f"{whence}: tls.crt: not a PEM certificate") from error
    try:
        key = certificates.private_key(_content(data, "tls.key"))
    except ValueError as error:
        raise AuthorityError(f"{whence}: tls.key: {error}") from None
    if certificate.public_key() != key.public_key():
        raise AuthorityError(f"{whence}: tls.key: does not belong to the certificate in tls.crt")
    return KeyPair(certificate, key)


def _content(data: Mapping[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key, ""), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
