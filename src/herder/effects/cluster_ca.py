"""Effect `cluster-authorities`: create the CAs of a provisioned cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives import serialization

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import CLUSTER_NAME, SECRET_TYPE
from herder.api.machines.names import BACKUP_LABEL
from herder.api.rke.names import authority_secret
from herder.engine import certificates
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists

LIFE = timedelta(days=3650)
ACCOUNTS = "sa"  # a key pair for service account tokens, without a certificate

_NAMES = {"ca": "kubernetes", "etcd": "etcd-ca", "proxy": "front-proxy-ca", ACCOUNTS: "service-accounts"}


class ClusterAuthorities:
    """Executor of `cluster-authorities`."""

    def __init__(self, client: Client, clock: Callable[[], datetime]) -> None:
        self._client = client
        self._clock = clock

    async def __call__(self, arguments: Mapping[str, Any]) -> None:
        """Existing CAs are kept, because certificates they signed must stay valid."""
        for purpose in arguments["purposes"]:
            certificate, key = self._generate(purpose)
            secret = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": SECRET_TYPE,
                "metadata": {
                    "name": authority_secret(arguments["cluster"], purpose),
                    "namespace": arguments["namespace"],
                    "labels": {CLUSTER_NAME: arguments["cluster"], BACKUP_LABEL: "true"},
                    "ownerReferences": [dict(arguments["owner"])],
                },
                "stringData": {"tls.crt": certificate.decode(), "tls.key": key.decode()},
            }
            try:
                await self._client.create(SECRET.resource, secret, namespace=arguments["namespace"])
            except AlreadyExists:
                continue

    def _generate(self, purpose: str) -> tuple[bytes, bytes]:
        pair = certificates.authority(_NAMES[purpose], now=self._clock(), life=LIFE)
        if purpose != ACCOUNTS:
            return pair.certificate_pem, pair.key_pem
        public = pair.certificate.public_key()
        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        return public.public_bytes(*form), pair.key_pem
