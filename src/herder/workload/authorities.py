"""CAs of in-memory workload clusters: created once, stored in a Secret."""

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
    """A Secret with unusable content; the message names its key, but not its content."""


async def make_authority(arguments: Mapping[str, Any], *, clock: Callable[[], datetime]) -> dict[str, str]:
    """A new CA as the data of a Secret."""
    pair = certificates.authority(f"{arguments['name']}-ca", now=clock(), life=LIFE)
    return {"tls.crt": _base64(pair.certificate_pem), "tls.key": _base64(pair.key_pem)}


async def read_authority(client: Client, namespace: str, cluster: str) -> KeyPair:
    name = authority_secret(cluster)
    secret = await client.get(SECRET.resource, name, namespace=namespace)
    return usable(secret.get("data") or {}, f"Secret {namespace}/{name}")


def usable(data: Mapping[str, str], source: str) -> KeyPair:
    """The CA key pair; the API server only signs with P-256."""
    try:
        authority = certificates.authority_from(data)
        return KeyPair(authority.certificate, certificates.private_key(base64.b64decode(data["tls.key"])))
    except ValueError as error:
        raise AuthorityError(f"{source}: {error}") from None


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
