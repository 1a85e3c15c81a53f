"""Names of the service account and roles for impersonating a user in a cluster.

The proxy creates them; they are deleted with the user's last binding.
"""

from __future__ import annotations

import hashlib
import re

IMPERSONATOR = "authz.cluster.cattle.io/impersonator"  # label of all objects of an impersonator
_PREFIX = "cattle-impersonation-"
_DIGESTED = "x-"
_PLAIN_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


def impersonator(user_name: str) -> str:
    """Return the name of a user's objects: the user name, or a digest if it does not fit; the prefix keeps
    both apart.
    """
    if _PLAIN_NAME.fullmatch(user_name) and not user_name.startswith(_DIGESTED):
        return _PREFIX + user_name
    return _PREFIX + _DIGESTED + hashlib.sha256(user_name.encode()).hexdigest()[:38]
