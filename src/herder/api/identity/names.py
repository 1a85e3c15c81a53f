"""Labels, annotations and names of users and tokens."""

from __future__ import annotations

import base64
import hashlib

TOKEN_USER = "authn.management.cattle.io/token-userId"  # labels of tokens
TOKEN_KIND = "authn.management.cattle.io/kind"
TOKEN_HASHED = "authn.management.cattle.io/token-hashed"  # annotation

STORED_KIND = "cattle.io/kind"  # labels of the Secrets behind ext.cattle.io objects
STORED_USER = "cattle.io/user-id"
STORED_TOKEN, STORED_KUBECONFIG = "token", "kubeconfig"

PASSWORDS_NAMESPACE = "cattle-local-user-passwords"
BOOTSTRAP_SECRET = "bootstrap-secret"
BOOTSTRAP_KEY = "bootstrapPassword"

SESSION, KUBECONFIG, PROVISIONING = "session", "kubeconfig", "provisioning"  # kinds of tokens

LOCAL_PROVIDER = "local"
LOCAL_PRINCIPAL = "local://"
EVERYONE = ("system:authenticated", "system:cattle:authenticated")
"""Groups of all authenticated users."""

SESSION_COOKIE = "R_SESS"


def provisioning_user(namespace: str, cluster: str) -> str:
    """Name of the user, and of its token, of a provisioned cluster's kubeconfig."""
    return principal_user(f"system://provisioning/{namespace}/{cluster}")


def principal_user(principal: str) -> str:
    """Return the user name derived from a principal; deterministic."""
    digest = base64.b32encode(hashlib.sha256(principal.encode()).digest()).decode()
    return f"u-{digest.lower()[:10]}"
