"""Clients for workload clusters, from the kubeconfig Secret of the Cluster API contract.

The author of that Secret is not trusted with this host: a kubeconfig with files, commands or a proxy is refused, and so
are addresses of this host or of a metadata service, whatever name resolves to them. Errors name the Secret and the
field, never their content.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import kubeconfig_secret
from herder.api.settings import INTERNAL_SERVER_URL, LOCAL_CLUSTER_ADDRESSES, SERVER_URL
from herder.engine.client.addresses import is_elsewhere
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import KubeconfigError, RestConfig, parse_untrusted
from herder.engine.meta.kinds import Object

FIELD_MANAGER = "herder"
KEY = "value"
HTTPS = 443

CACHE_SECONDS = 300.0
"""Parsed kubeconfigs are reused for retries, and dropped when unused for this long, as they hold credentials."""

_recent: dict[bytes, tuple[float, RestConfig]] = {}


def _parsed(text: str) -> RestConfig:
    now = time.monotonic()
    for digest in [digest for digest, (used, _) in _recent.items() if now - used > CACHE_SECONDS]:
        del _recent[digest]
    digest = hashlib.sha256(text.encode()).digest()
    connection = _recent[digest][1] if digest in _recent else parse_untrusted(text)
    _recent[digest] = (now, connection)
    return connection


WORKLOAD_ANSWER_BYTES = 16 << 20

Allowance = Callable[[str, int], bool]
"""Whether a local host and port may be dialed: those of the manager itself."""


def allowance(setting: Callable[[str], str], serves: Allowance | None = None) -> Allowance:
    """Local addresses that may be dialed: the manager's own, in-memory clusters, and all if the setting says so.

    Only administrators write settings, and users who can reach the manager can reach its address anyway.
    """

    def allowed(host: str, port: int) -> bool:
        if setting(LOCAL_CLUSTER_ADDRESSES) == "true" or (serves is not None and serves(host, port)):
            return True
        own = (urlsplit(setting(name)) for name in (SERVER_URL, INTERNAL_SERVER_URL))
        return any((url.hostname, url.port or HTTPS) == (host, port) for url in own)

    return allowed


def may_dial(setting: Callable[[str], str]) -> Callable[[str], bool]:
    """Addresses at which in-memory clusters may call webhooks and Nodes."""
    return lambda address: setting(LOCAL_CLUSTER_ADDRESSES) == "true" or is_elsewhere(address)


async def connect(client: Client, cluster: str, allowed: Allowance | None = None) -> Client:
    """Client for a workload cluster by its key, `namespace/name`; `client` is the management cluster's."""
    from herder.engine.client.http import HttpTransport

    namespace, _, name = cluster.partition("/")
    secret = await client.get(SECRET.resource, kubeconfig_secret(name), namespace=namespace)
    try:
        found = _parsed(_kubeconfig(secret))
        server = urlsplit(found.server)
        local_allowed = allowed is not None and allowed(server.hostname or "", server.port or HTTPS)
        transport = HttpTransport(
            found, may_dial=None if local_allowed else is_elsewhere, max_bytes=WORKLOAD_ANSWER_BYTES
        )
        return Client(transport, field_manager=FIELD_MANAGER)
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
