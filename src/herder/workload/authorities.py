"""Certificate authorities of workload clusters: made once, kept in a Secret, read from there by who signs with them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

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
    return usable(secret.get("data") or {}, f"Secret {namespace}/{name}")


def usable(data: Mapping[str, str], whence: str) -> KeyPair:
    """The API server that we serve signs with P-256 alone."""
    try:
        authority = certificates.authority_from(data)
        return KeyPair(authority.certificate, certificates.private_key(base64.b64decode(data["tls.key"])))
    except ValueError as error:
        raise AuthorityError(f"{whence}: {error}") from None


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
