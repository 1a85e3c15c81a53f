"""How Jobs may use the daemon that owns the machines of a host: a credential for each machine, and where the socket is.

The daemon and the manager share a key, which the manager keeps in a Secret. What a Job gets is made of the key for its
own machine alone, so it opens nothing else. From the same key, the manager derives the one that signs its Jobs.
"""

from __future__ import annotations

import hashlib
import hmac

HOST_SECRET = "herder-host"
HOST_SECRET_TYPE = "herder.io/host"
HOST_NAMESPACE = "herder-system"
HOST_KEY = "key"  # in its data: what credentials are made of
HOST_DIRECTORY = "directory"  # the directory on the host that holds the socket, and nothing else
HOST_NODE = "node"  # the node whose Jobs can reach it

SOCKET_NAME = "socket"
SOCKET_MOUNT = "/run/herder/host"  # where Jobs see that directory

SOCKET_VARIABLE = "HERDER_HOST_SOCKET"
CREDENTIAL_VARIABLE = "HERDER_HOST_CREDENTIAL"

HOSTED_DRIVERS = ("local", "process")


def machine_credential(key: bytes, scope: str, name: str) -> str:
    """For one machine; `scope` is the namespace of its state Secret."""
    return hmac.new(key, f"{scope}/{name}".encode(), hashlib.sha256).hexdigest()


def approval_key(key: bytes) -> bytes:
    """Signs the Jobs that the runner runs. It equals no machine's credential: those are made of text without NUL."""
    return hmac.new(key, b"\0approval-key", hashlib.sha256).digest()
