"""Access of Jobs to the host daemon, which owns the machines of a host: per-machine credentials and the socket's
location.

Daemon and manager share a key, which the manager stores in a Secret. A Job gets a credential derived for its own
machine only. The manager also derives the key that signs its Jobs from it.
"""

from __future__ import annotations

import hashlib
import hmac

HOST_SECRET = "herder-host"
HOST_SECRET_TYPE = "herder.io/host"
HOST_NAMESPACE = "herder-system"
HOST_KEY = "key"  # key of the Secret's data: the key that credentials are derived from
HOST_DIRECTORY = "directory"  # the host directory that contains only the socket
HOST_NODE = "node"  # the node whose Jobs can reach it

SOCKET_NAME = "socket"
SOCKET_MOUNT = "/run/herder/host"  # mount path of that directory in Jobs

SOCKET_VARIABLE = "HERDER_HOST_SOCKET"
CREDENTIAL_VARIABLE = "HERDER_HOST_CREDENTIAL"

HOSTED_DRIVERS = ("local", "process")


def machine_credential(key: bytes, scope: str, name: str) -> str:
    """Derive the credential of one machine; `scope` is the namespace of its state Secret."""
    return hmac.new(key, f"{scope}/{name}".encode(), hashlib.sha256).hexdigest()


def approval_key(key: bytes) -> bytes:
    """Derive the key that signs Jobs for the runner; it differs from all machine credentials, whose input
    has no NUL.
    """
    return hmac.new(key, b"\0approval-key", hashlib.sha256).digest()
