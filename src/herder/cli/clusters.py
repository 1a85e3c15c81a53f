"""The way to workload clusters: by the kubeconfig that the contract keeps in a Secret of each.

Whoever may write that Secret is not therefore trusted with this machine: a kubeconfig that names files or commands is
refused. What is wrong with one is told by the Secret's name and the field, never by its contents.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import kubeconfig_secret
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import Connection, KubeconfigError, parse_foreign
from herder.engine.meta.kinds import Object

FIELD_MANAGER = "herder"
KEY = "value"

KEPT_SECONDS = 300.0
"""A cluster that does not answer is tried again and again with the same kubeconfig: it is parsed once, and forgotten
when nobody has used it for this long, since it holds a credential."""

_recent: dict[bytes, tuple[float, Connection]] = {}


def _parsed(text: str) -> Connection:
    now = time.monotonic()
    for digest in [digest for digest, (used, _) in _recent.items() if now - used > KEPT_SECONDS]:
        del _recent[digest]
    digest = hashlib.sha256(text.encode()).digest()
    connection = _recent[digest][1] if digest in _recent else parse_foreign(text)
    _recent[digest] = (now, connection)
    return connection


async def connect(client: Client, cluster: str) -> Client:
    """A connection to a workload cluster by its key, `namespace/name`; `client` is the management cluster's."""
    from herder.engine.client.http import HttpTransport

    namespace, _, name = cluster.partition("/")
    secret = await client.get(SECRET.resource, kubeconfig_secret(name), namespace=namespace)
    try:
        return Client(HttpTransport(_parsed(_kubeconfig(secret))), field_manager=FIELD_MANAGER)
    except KubeconfigError as error:
        raise KubeconfigError(f"Secret {namespace}/{kubeconfig_secret(name)}: {error}") from None


def _kubeconfig(secret: Object) -> str:
    encoded = (secret.get("data") or {}).get(KEY)
    if not encoded:
        raise KubeconfigError(f"data.{KEY}: required")
    try:
        return base64.b64decode(encoded).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise KubeconfigError(f"data.{KEY}: not text") from None
