"""Names that tokens, users and their stores agree on with other programs, each in one place."""

from __future__ import annotations

import base64
import hashlib

TOKEN_USER = "authn.management.cattle.io/token-userId"  # labels of tokens
TOKEN_KIND = "authn.management.cattle.io/kind"
TOKEN_HASHED = "authn.management.cattle.io/token-hashed"  # an annotation

STORED_KIND = "cattle.io/kind"  # labels of what stands behind objects of ext.cattle.io
STORED_USER = "cattle.io/user-id"
STORED_TOKEN, STORED_KUBECONFIG = "token", "kubeconfig"

PASSWORDS_NAMESPACE = "cattle-local-user-passwords"
BOOTSTRAP_SECRET = "bootstrap-secret"
BOOTSTRAP_KEY = "bootstrapPassword"

SESSION, KUBECONFIG, PROVISIONING = "session", "kubeconfig", "provisioning"  # kinds of tokens

LOCAL_PROVIDER = "local"
LOCAL_PRINCIPAL = "local://"
EVERYONE = ("system:authenticated", "system:cattle:authenticated")
"""Groups of everybody who has proved who they are."""

SESSION_COOKIE = "R_SESS"


def provisioning_user(namespace: str, cluster: str) -> str:
    """The user, and the token of the same name, that a provisioned cluster's own kubeconfig is for."""
    return principal_user(f"system://provisioning/{namespace}/{cluster}")


def principal_user(principal: str) -> str:
    """The user that stands for a principal, always the same."""
    digest = base64.b32encode(hashlib.sha256(principal.encode()).digest()).decode()
    return f"u-{digest.lower()[:10]}"
