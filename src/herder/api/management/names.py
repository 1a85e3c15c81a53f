"""Names that managed clusters, their agents and other programs agree on, each in one place."""

from __future__ import annotations

SYSTEM_NAMESPACE = "cattle-system"  # where an agent lives in its cluster
CREDENTIALS_NAMESPACE = "cattle-global-data"  # here: what agents brought along to reach their clusters with
TOKENS_NAMESPACE = "cattle-tokens"
LOCAL = "local"
DEFAULT_TOKEN = "default-token"  # the ClusterRegistrationToken that every managed cluster has

TOKEN_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
TOKEN_LENGTH = 54

TUNNEL_TOKEN = "x-api-tunnel-token"  # headers of an agent that dials in, in lower case
TUNNEL_PARAMETERS = "x-api-tunnel-params"

PROXY_PREFIX = "/k8s/clusters/"


def token_secret(registration_token: str) -> str:
    return f"crt-token-{registration_token}"
