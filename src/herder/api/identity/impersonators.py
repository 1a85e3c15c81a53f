"""Names of what lets one user be acted as in a cluster. The proxy makes it; it goes with the user's last binding."""

from __future__ import annotations

import hashlib
import re

IMPERSONATOR = "authz.cluster.cattle.io/impersonator"  # label of all that belongs to it
_PREFIX = "cattle-impersonation-"
_DIGESTED = "x-"
_PLAIN_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


def impersonator(user_name: str) -> str:
    """The name of a user's objects. One that cannot be part of such a name is digested, and no plain one looks so."""
    if _PLAIN_NAME.fullmatch(user_name) and not user_name.startswith(_DIGESTED):
        return _PREFIX + user_name
    return _PREFIX + _DIGESTED + hashlib.sha256(user_name.encode()).hexdigest()[:38]
