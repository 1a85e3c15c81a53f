"""Join tokens of single machines, where a distribution gives each machine an identity of its own.

A token names its machine and proves it by a MAC under the server token, which servers alone hold: a worker cannot
derive the token of another machine from its own, and servers need no list of tokens. The agent token is no such key:
plans of version 0.1 gave it to every worker.
"""

from __future__ import annotations

import hashlib
import hmac


def node_token(key: str, machine_uid: str) -> str:
    proof = hmac.new(key.encode(), f"node-token:{machine_uid}".encode(), hashlib.sha256).hexdigest()
    return f"{machine_uid}.{proof}"


def machine_of(presented: str, key: str) -> str | None:
    """The UID of the Machine that the token was made for; None for any other text."""
    machine_uid, _, _ = presented.rpartition(".")
    if not key or not machine_uid:
        return None
    good = node_token(key, machine_uid)
    return machine_uid if hmac.compare_digest(good.encode(), presented.encode(errors="replace")) else None
