"""The way to workload clusters: by the kubeconfig that the contract keeps in a Secret of each.

Whoever may write that Secret is not therefore trusted with this machine: a kubeconfig that names files or commands is
refused. What is wrong with one is told by the Secret's name and the field, never by its contents.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import kubeconfig_secret
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import KubeconfigError, parse_foreign
from herder.engine.meta.kinds import Object

FIELD_MANAGER = "herder"
KEY = "value"

# A cluster that does not answer is tried again and again, with the same kubeconfig.
_parsed = lru_cache(maxsize=1024)(parse_foreign)


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
