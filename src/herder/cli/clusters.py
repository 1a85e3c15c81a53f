"""The way to workload clusters: by the kubeconfig that the contract keeps in a Secret of each.

Whoever may write that Secret is not therefore trusted with this machine: a kubeconfig that names files, commands or a
proxy is refused, and so is an address of this host or of a metadata service, whatever name leads there. Errors name the
Secret and the field, never its contents.
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
from herder.engine.client.addresses import is_local
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import Connection, KubeconfigError, parse_foreign
from herder.engine.meta.kinds import Object

FIELD_MANAGER = "herder"
KEY = "value"
HTTPS = 443

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


WORKLOAD_ANSWER_BYTES = 16 << 20

Allowance = Callable[[str, int], bool]
"""Whether a host and port may be dialed although it is local: those of the manager itself."""


def allowance(setting: Callable[[str], str], serves: Allowance | None = None) -> Allowance:
    """What is local and allowed: this manager's own address, in-memory clusters, and everything if the setting says so.

    Only administrators write settings, and a user who may reach the manager reaches its address without it.
    """

    def allowed(host: str, port: int) -> bool:
        if setting(LOCAL_CLUSTER_ADDRESSES) == "true" or (serves is not None and serves(host, port)):
            return True
        own = (urlsplit(setting(name)) for name in (SERVER_URL, INTERNAL_SERVER_URL))
        return any((url.hostname, url.port or HTTPS) == (host, port) for url in own)

    return allowed


async def connect(client: Client, cluster: str, allowed: Allowance | None = None) -> Client:
    """A connection to a workload cluster by its key, `namespace/name`; `client` is the management cluster's."""
    from herder.engine.client.http import HttpTransport

    namespace, _, name = cluster.partition("/")
    secret = await client.get(SECRET.resource, kubeconfig_secret(name), namespace=namespace)
    try:
        found = _parsed(_kubeconfig(secret))
        server = urlsplit(found.server)
        free = allowed is not None and allowed(server.hostname or "", server.port or HTTPS)
        transport = HttpTransport(found, may_dial=None if free else _is_elsewhere, most_bytes=WORKLOAD_ANSWER_BYTES)
        return Client(transport, field_manager=FIELD_MANAGER)
    except KubeconfigError as error:
        raise KubeconfigError(f"Secret {namespace}/{kubeconfig_secret(name)}: {error}") from None


def _is_elsewhere(address: str) -> bool:
    return not is_local(address)


def _kubeconfig(secret: Object) -> str:
    encoded = (secret.get("data") or {}).get(KEY)
    if not encoded:
        raise KubeconfigError(f"data.{KEY}: required")
    try:
        return base64.b64decode(encoded).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise KubeconfigError(f"data.{KEY}: not text") from None
