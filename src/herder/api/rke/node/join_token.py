"""Per-machine join tokens, for distributions that give each machine its own identity.

A token contains the Machine's UID and a MAC under the server token, which only servers have: a worker cannot derive
another machine's token from its own, and servers need no list of tokens. The agent token is not used as the key,
because plans of version 0.1 gave it to every worker.
"""

from __future__ import annotations

import hashlib
import hmac


def node_token(key: str, machine_uid: str) -> str:
    proof = hmac.new(key.encode(), f"node-token:{machine_uid}".encode(), hashlib.sha256).hexdigest()
    return f"{machine_uid}.{proof}"


def machine_of(presented: str, key: str) -> str | None:
    """Return the UID of the Machine that the token was issued for; None if it is invalid."""
    machine_uid, _, _ = presented.rpartition(".")
    if not key or not machine_uid:
        return None
    expected = node_token(key, machine_uid)
    return machine_uid if hmac.compare_digest(expected.encode(), presented.encode(errors="replace")) else None
