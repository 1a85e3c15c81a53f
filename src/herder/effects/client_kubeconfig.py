"""Effect `kubeconfig`: kubeconfig for a workload cluster, with a client certificate signed by its CA.

The CA key is read, used and dropped; the result goes only into a Secret.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import authority_secret
from herder.engine.certificates import Authority, KeyPair, authority_from, leaf
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Object

LIFE = timedelta(days=365)
ADMINISTRATOR, ADMINISTRATORS = "kubernetes-admin", "system:masters"


class UnusableAuthority(ValueError):
    """A CA that cannot sign; the message names the Secret and the key, but not its content."""


class Kubeconfigs:
    """Executor of `kubeconfig`."""

    def __init__(self, client: Client, clock: Callable[[], datetime]) -> None:
        self._client = client
        self._clock = clock

    async def make(self, arguments: Mapping[str, Any]) -> Object:
        """{namespace, cluster, server} → {kubeconfig in base64, expires, renew}."""
        authority = await self._authority(arguments["namespace"], arguments["cluster"])
        now = self._clock()
        pair = _administrator(authority, now)
        expires = pair.certificate.not_valid_after_utc
        return {
            "kubeconfig": _encoded(arguments["cluster"], arguments["server"], authority, pair),
            "expires": expires.isoformat(),
            "renew": (now + (expires - now) / 2).isoformat(),
        }

    async def _authority(self, namespace: str, cluster: str) -> Authority:
        name = authority_secret(cluster)
        try:
            secret = await self._client.get(SECRET.resource, name, namespace=namespace)
        except NotFound:
            raise UnusableAuthority(f"Secret {name} does not exist") from None
        try:
            authority = authority_from(secret.get("data") or {})
        except ValueError as error:
            raise UnusableAuthority(f"Secret {name}: {error}") from None
        if authority.certificate.not_valid_after_utc <= self._clock():
            raise UnusableAuthority(f"Secret {name}: tls.crt: expired")
        return authority


def _administrator(authority: Authority, now: datetime) -> KeyPair:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ADMINISTRATORS),
            x509.NameAttribute(NameOID.COMMON_NAME, ADMINISTRATOR),
        ]
    )
    return leaf(authority, subject, ExtendedKeyUsageOID.CLIENT_AUTH, now=now, life=LIFE)


def _encoded(cluster: str, server: str, authority: Authority, pair: KeyPair) -> str:
    config = kubeconfig.build(
        server=server,
        ca=authority.certificate.public_bytes(serialization.Encoding.PEM),
        name=cluster,
        user=f"{cluster}-admin",
        certificate=pair.certificate_pem,
        key=pair.key_pem,
    )
    return base64.b64encode(yaml.safe_dump(config).encode()).decode()
