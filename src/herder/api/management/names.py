"""Names that managed clusters, their agents and other programs agree on, each in one place."""

from __future__ import annotations

import re

from herder.api.machines.names import safe_concat

SYSTEM_NAMESPACE = "cattle-system"  # where an agent lives in its cluster
AGENT_ACCOUNT = "cattle"  # as whom it acts there
AGENT_TOKEN_SECRET = "cattle-agent-token"  # what the manager acts with there
AGENT_REGISTRATION_SECRET = "cattle-agent-registration"  # the registration token as the manager replaced it last
CREDENTIALS_NAMESPACE = "cattle-global-data"  # here: what agents brought along to reach their clusters with
TOKENS_NAMESPACE = "cattle-tokens"
DEFAULT_WORKSPACE = "fleet-default"
LOCAL = "local"
DEFAULT_TOKEN = "default-token"  # the ClusterRegistrationToken that every managed cluster has

TOKEN_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
TOKEN_LENGTH = 54

TUNNELS = ("/v3/connect", "/v3/connect/register")  # where agents dial in
TUNNEL_TOKEN = "x-api-tunnel-token"  # headers of an agent that does, in lower case
TUNNEL_PARAMETERS = "x-api-tunnel-params"
TUNNEL_ID = "x-api-tunnel-id"  # of another replica of the gateway

PROXY_PREFIX = "/k8s/clusters/"

TOKEN_READER = "crt-token-reader"  # the Role that lets read the tokens of a cluster
TOKEN_LABEL = "management.herder.io/registration-token"  # on their Secrets: which ClusterRegistrationToken

PREFIX = "management.herder.io/"  # of what is written on management Clusters by the manager alone
CONNECTED_SINCE = f"{PREFIX}connected-since"  # written by the gateway while an agent has a tunnel to it
CONNECTED_TO = f"{PREFIX}connected-to"  # the replica of the gateway that says so
AGENT_CONFLICT = f"{PREFIX}agent-conflict"  # when another agent tried to register last, and the outcome
PROVISIONING_CLUSTER_OF = f"{PREFIX}provisioning-cluster"  # namespace/name of the one that it was made for
MANAGEMENT_NAME = "provisioning.cattle.io/management-cluster-name"  # on a provisioning Cluster: the name to be given

AGENT_PREFIX = "stv-cluster-"  # of the second tunnel's key, and of the bearer token that opens it

PUSH_TOKEN = "agent-token"  # the effect that brings an agent the registration token that replaces its own
MAKE_KUBECONFIG = "cluster-kubeconfig"  # the effect that makes a cluster's own user, token and kubeconfig

LOCAL_WORKSPACE = "fleet-local"

REMOVE_PROVISIONING = "wrangler.cattle.io/provisioning-cluster-remove"  # finalizers
REMOVE_MANAGEMENT = "wrangler.cattle.io/mgmt-cluster-remove"

LEGACY_NAME = "^(c-[a-z0-9]{5}|local)$"
_LEGACY_NAME = re.compile(LEGACY_NAME)


def is_legacy(management_cluster: str) -> bool:
    """Made as a management Cluster in the first place: its provisioning Cluster follows, of the same name."""
    return _LEGACY_NAME.fullmatch(management_cluster) is not None


def credential_secret(management_cluster: str) -> str:
    """What an agent brought along to reach its cluster with."""
    return safe_concat("cluster-serviceaccounttoken", management_cluster)


def token_secret(registration_token: str) -> str:
    return f"crt-token-{registration_token}"
